"""What is asked of the search, and the prices of every row of its space."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, Ints, Layouts, distinct
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.costmodels.prices.prices import (
    Prices,
    least_micro_batch_s,
    mean_states_bytes,
    memory_bytes,
)
from meshplan.costmodels.prices.prices import price as closed_form_price
from meshplan.costmodels.prices.tables import work_key
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.problem.coefficients import ABSENT, NS_PER_S, Coefficients, Held
from meshplan.planner.processes.second_core import blocks, done_of_each, done_of_many, done_until
from meshplan.planner.space.exchange_choice import open_exchanges
from meshplan.planner.space.legal_layouts import Space, enumerate_space
from meshplan.planner.space.pinned_modules import replaying_pinned
from meshplan.planner.space.pins import Pins

ROWS_PER_PRICE = 32_768
ROWS_PER_GLANCE = 65_536  # rows whose least busy time is found at once
ROWS_PER_TABLE = 8_192  # distinct rows whose work is found at once: some 2 KiB each meanwhile
Pricer = Callable[[Layouts, "Question"], Prices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be trained, on what, by which engine, and what the user fixed.

    empty_stages   as in `Setting`
    rounds_up      whether bytes are, when they become KiB (`planner.search.both_roundings`)
    """

    model: Model
    training: Training
    gpus: int
    cluster: Cluster
    engine: Engine
    pins: Pins = field(default_factory=Pins)
    empty_stages: bool = False
    rounds_up: bool = True

    @property
    def setting(self) -> Setting:
        """What its layouts are priced against, with what was fitted for this engine and GPU; of a
        pinned set of modules that set is all that selective recomputation may replay.
        """
        engine = replaying_pinned(self.engine, self.pins)
        fitted = Setting.fitted(self.model, self.training, self.cluster, engine)
        on_host = self.pins.offloads_activations
        if not (self.empty_stages or on_host):
            return fitted
        return replace(fitted, empty_stages=self.empty_stages, waits_on_host=on_host)

    def counted(self, number: int) -> str:
        """So many of what it runs on: "8 GPUs", or "2 processes" of a CPU."""
        return counted(number, *self.cluster.device_nouns)


def space_of(
    question: Question,
    gpus: Sequence[int] | None = None,
    known: KnownWork | None = None,
    deadline: float | None = None,
) -> Space:
    """Every legal row, of the question's GPUs or of each count of `gpus`; `known` is of questions
    that differ in the batch alone. Nothing more is listed after the `deadline`.
    """
    space = _without_exchanges(question, gpus, deadline)
    return open_exchanges(space, question.setting, blocks, done_of_each, known)


def _without_exchanges(
    question: Question, gpus: Sequence[int] | None, deadline: float | None = None
) -> Space:
    """`space_of` before the kinds of exchanges are opened, the long part of it."""
    q = question
    per_node, counts = q.cluster.gpus_per_node, q.gpus if gpus is None else gpus
    job = q.model, q.training, counts, q.engine, q.pins, per_node
    done_of = done_of_each if deadline is None else partial(done_until, deadline=deadline)
    space = enumerate_space(*job, done_of=done_of)
    return space.replaying(recompute_sets(q.setting))


def space_of_sizes(question: Question, gpus: Sequence[int]) -> tuple[Space, int]:
    """`space_of` each count of `gpus` without rows whose states alone do not fit, whatever their
    exchanges are; and how many rows there were.
    """
    space = _without_exchanges(question, gpus)
    rows = np.arange(len(space.layouts))
    if len(rows):
        firsts = blocks(len(rows), ROWS_PER_GLANCE)
        parts = [rows[first : first + firsts.step] for first in firsts]
        found = done_of_each(lambda part: _states_fit(question, space, part), parts)
        space = space.take(np.concatenate(found))
    return open_exchanges(space, question.setting, blocks, done_of_each), len(rows)


def closed_form(layouts: Layouts, question: Question) -> Prices:
    """The cost model's own prices."""
    return closed_form_price(layouts, question.setting)


def busy_ns(question: Question, space: Space, known: KnownWork | None = None) -> Floats:
    """For how long the mean rank of each row is surely busy, in nanoseconds: no step is shorter.
    What a micro-batch takes is asked once of all rows that it cannot differ between, and not of
    those that are `known`, as in `space_of`.
    """
    layouts, setting = space.layouts, question.setting
    rows = np.arange(len(layouts))
    if not len(rows):
        return np.empty(0)
    firsts = blocks(len(rows), ROWS_PER_GLANCE)

    def block(first: int) -> tuple[Ints, NDArray[np.int32]]:
        some = layouts.take(rows[first : first + firsts.step])
        different, which = distinct(work_key(setting, some))
        return first + different, which.astype(np.int32)

    done, found = done_of_many(block, firsts), np.empty(len(rows))
    different = np.concatenate([rows for rows, _ in done])
    parts = blocks(len(different), ROWS_PER_TABLE)

    def micro_batch_s(first: int) -> Floats:
        some = layouts.take(different[first : first + parts.step])
        if known is None:
            return least_micro_batch_s(some, setting)
        key = [np.broadcast_to(column, len(some)) for column in work_key(setting, some)]
        return known.of(
            "micro_batch", key, lambda rows: least_micro_batch_s(some.take(rows), setting)
        )

    each_s = np.concatenate(done_of_each(micro_batch_s, parts))
    of_blocks = np.split(each_s, np.cumsum([len(rows) for rows, _ in done])[:-1])
    for first, of_block, (_, which) in zip(firsts, of_blocks, done, strict=True):
        some = slice(first, first + len(which))
        work_s = of_block[which] * layouts.num_micro_batches[some]
        found[some] = np.floor(work_s / layouts.pipeline_parallel[some] * (SAFETY * NS_PER_S))
    return found


def may_hold(question: Question, space: Space, rows: Ints) -> Ints:
    """Those of `rows` that may fit, by what their mean rank keeps of states and then by all that is
    kept: most of a large space do not, so that no seconds are priced of them.
    """
    rows = _states_fit(question, space, rows)
    some = space.take(rows)
    columns = memory_bytes(some.layouts, question.setting)
    held = Held.of(columns, question.cluster.fillable_bytes, up=question.rounds_up)
    return rows[row_fits(some, held)]


def _states_fit(question: Question, space: Space, rows: Ints) -> Ints:
    """Those of `rows` whose mean rank can keep its states."""
    kept = mean_states_bytes(space.layouts.take(rows), question.setting) * SAFETY
    return rows[kept <= question.cluster.fillable_bytes]


def rows_that_may_hold(question: Question, space: Space) -> Ints:
    """`may_hold` of all rows, some at a time."""
    rows = np.arange(len(space.layouts))
    if not len(rows):
        return rows
    firsts = blocks(len(rows), ROWS_PER_GLANCE)
    parts = [rows[first : first + firsts.step] for first in firsts]
    found = done_of_each(lambda part: may_hold(question, space, part), parts)
    return np.concatenate(found)


def price_space(question: Question, space: Space, price: Pricer) -> Coefficients:
    """Every row of `space` priced, in blocks so that memory stays small."""
    rows = np.arange(len(space.layouts))
    firsts = blocks(len(rows), ROWS_PER_PRICE)

    def block(first: int) -> Coefficients:
        some = rows[first : first + firsts.step]
        return Coefficients.of(price(space.layouts.take(some), question), up=question.rounds_up)

    return Coefficients.joined(done_of_each(block, firsts))


def as_simulated(coefficients: Coefficients, passes: PassSeconds) -> Coefficients:
    """The prices with the times of passes that the simulation sums."""
    columns = (
        passes.layer_s.sum(axis=3),
        passes.embedding_s.sum(axis=1),
        passes.head_s.sum(axis=1),
    )
    layer, embedding, head = (
        np.where(np.isfinite(each), np.rint(each * NS_PER_S), ABSENT).astype(np.int64)
        for each in columns
    )
    return replace(coefficients, layer_ns=layer, embedding_ns=embedding, head_ns=head)
