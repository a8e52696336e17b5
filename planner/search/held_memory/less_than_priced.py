"""Where ranks may need less than the memory that is priced: which rows a proof has to look at."""

from dataclasses import replace

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.setting import Setting
from meshplan.planner.search.rows.least_held import (
    MOST_REFUSED,
    CountedRows,
    rows_may_fit,
    rows_that_may_fit,
)
from meshplan.planner.search.rows.least_of_kinds import (
    RowsOfKinds,
    rows_of_kinds_may_fit,
    rows_of_kinds_that_may_fit,
)
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.rows.rows_below import Given, Source
from meshplan.planner.search.simulation.counted_ranks import memory_is_a_bound
from meshplan.planner.space.legal_layouts import Space

BLOCK = 4_096  # rows whose memory is looked at together


def counting_empty_stages(question: Question) -> Question:
    """Where the first or the last stage may be without layers, whose buffers, weights unpacked or
    gathered it is priced with, the same question by what each stage holds.
    """
    lora, rules = question.training.lora, question.engine.legality
    priced = question.engine.kernels.keeps_buffers or 3 in rules.zero_with_pipeline
    priced |= lora is not None and lora.base_precision != "bf16"
    return replace(question, empty_stages=True) if rules.layers_count_ends and priced else question


def source_of_rows(space: Space, prices: RowPrices, setting: Setting, *, fits: bool) -> Source:
    """The rows that may fit: by their prices or, where these are a bound, by less; where no plan
    `fits` by them, of a small space all that may.
    """
    if not memory_is_a_bound(setting):
        return prices
    if not fits:
        return Given(rows_beyond(space, setting), prices)
    if setting.engine.kernels.counts_passes:
        return CountedRows(space, prices, setting)
    return RowsOfKinds(space, prices, setting)


def rows_beyond(space: Space, setting: Setting) -> Ints:
    """Of a small space of which nothing fits by its prices, the rows that may fit all the same."""
    if setting.engine.kernels.counts_passes:
        return rows_that_may_fit(space, setting)
    if setting.has_several_kinds:
        return rows_of_kinds_that_may_fit(space, setting)
    return np.arange(0)


def leaves_rows_out(space: Space, setting: Setting) -> bool:
    """Whether `rows_beyond` of a space is not all that may fit: it is large, and by the least that
    ranks hold some row may.
    """
    number = len(space.layouts)
    if number <= MOST_REFUSED or not memory_is_a_bound(setting):
        return False
    may = rows_may_fit if setting.engine.kernels.counts_passes else rows_of_kinds_may_fit
    blocks = (np.arange(first, min(first + BLOCK, number)) for first in range(0, number, BLOCK))
    return any(may(space.take(rows), setting).any() for rows in blocks)
