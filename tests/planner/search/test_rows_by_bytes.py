"""Rows that may fit by less than is priced: found by bytes alone, then priced."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.prices.prices import bytes_beside_one_layer, mean_states_bytes
from meshplan.costmodels.setting import Setting
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.search.least_memory import LeastMemory
from meshplan.planner.search.rows import least_held
from meshplan.planner.search.rows.least_held import CountedRows, LeastHeld, rows_that_may_fit
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds, RowsOfKinds
from meshplan.planner.search.rows.priced_space import (
    Question,
    closed_form,
    price_space,
    space_of,
    space_of_sizes,
)
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.space.legal_layouts import Space

Asked = tuple[Question, Space, Coefficients, Ints]


def asked_of(model: str, engine: str) -> Asked:
    """A question that is short of memory, its rows, and the prices of all of them."""
    arguments = Arguments(model=model, gpus=16, cluster="l40s-8", engine=engine, global_batch=64)
    question = ask(replace(arguments, seq_len="8192")).question
    space = space_of(question)
    return question, space, price_space(question, space, closed_form), np.arange(len(space.layouts))


def by_kinds(whole: Coefficients, space: Space, setting: Setting) -> Coefficients:
    """The least of each row, where layers are of several kinds."""
    rows = np.arange(len(space.layouts))
    return LeastOfKinds(_Whole(whole), space.layouts, setting, rows).take(rows)


def by_moments(whole: Coefficients, space: Space, setting: Setting) -> Coefficients:
    """The least of each row, where every moment is counted."""
    rows = np.arange(len(space.layouts))
    least = LeastHeld(_Whole(whole), space.layouts, setting, rows).take(rows)
    return least.held_as("zb_h1")


class _Whole:
    """Prices of all rows, made before."""

    def __init__(self, prices: Coefficients) -> None:
        self.prices = prices

    def take(self, rows: Ints) -> Coefficients:
        """Some of them."""
        return self.prices.take(rows)


@pytest.mark.parametrize(
    ("model", "engine", "source", "least"),
    [
        pytest.param("deepseek-v2-lite", "nemo", RowsOfKinds, by_kinds, id="dense first layer"),
        pytest.param("qwen3.5-27b", "mlperf", RowsOfKinds, by_kinds, id="hybrid"),
        pytest.param("llama-3.1-8b", "native", CountedRows, by_moments, id="passes counted"),
    ],
)
def test_rows_that_may_fit_are_those_whose_least_fits(
    model: str,
    engine: str,
    source: type[RowsOfKinds | CountedRows],
    least: Callable[[Coefficients, Space, Setting], Coefficients],
) -> None:
    """All rows whose least bytes fit, in their order, and no others; with their prices, whether
    these were held before or not. Some fit by less alone, and some not at all.
    """
    question, space, whole, rows = asked_of(model, engine)
    prices = RowPrices(question, space, closed_form, np.zeros(len(rows)))
    prices.hold(rows[::7])
    of_less = source(space, prices, question.setting)
    found = of_less.that_fit(rows)
    fits = row_fits(space, least(whole, space, question.setting))
    if question.engine.kernels.counts_passes:
        alone = bytes_beside_one_layer(space.take(rows).layouts, question.setting)
        fits &= (alone <= question.cluster.fillable_bytes).all(axis=1)
    expected = np.flatnonzero(fits)
    assert found.tolist() == expected.tolist()
    assert _columns(of_less.of_each(found)) == _columns(whole.take(found))
    priced = np.flatnonzero(row_fits(space, whole))
    assert set(priced.tolist()) < set(found.tolist()) < set(rows.tolist())


def test_no_layer_is_too_large_that_waits_on_the_host() -> None:
    """What its passes take there is not counted; on the device none of the same rows fits."""
    question, space, _, rows = asked_of("llama-3.1-8b", "native")
    few = question.cluster.model_copy(update={"plan_memory_bytes": 1e9})
    setting, layouts = replace(question, cluster=few).setting, space.take(rows).layouts
    for offload in (0, 1):
        some = replace(layouts, activation_offload=np.full(len(layouts), offload))
        fits = least_held._each_layer_may_fit(replace(space, layouts=some), setting)
        assert fits.tolist() == [offload == 1] * len(layouts)


@pytest.mark.parametrize("engine", ["accelerate", "nemo", "generic"])
@pytest.mark.parametrize("model", ["nemotron-h-8b", "deepseek-v2-lite", "gemma-3-12b"])
def test_the_least_of_kinds_is_no_more_than_is_priced(model: str, engine: str) -> None:
    """Neither of both ends at the loss nor of a replayed layer, also of a step's only micro-batch,
    at whose loss some engines hold no gradients: with these counted, rows that fit were refused.
    """
    question, space, whole, rows = asked_of(model, engine)
    at_loss = ("fixed_kib", "embedding_state_kib", "head_state_kib", "head_transient_kib")
    least = by_kinds(whole, space, question.setting)
    needs = [sum(getattr(each, name) for name in at_loss) for each in (least, whole)]
    assert (needs[0] <= needs[1]).all()
    assert (least.transient_kib <= whole.transient_kib).all()
    assert (space.layouts.take(rows).num_micro_batches == 1).any()


def test_of_many_rows_pipelines_fit_by_their_prices() -> None:
    """Where not all degrees are looked at, rows of several pipeline ranks fit by what is priced,
    rows of one by every moment.
    """
    question, space, whole, rows = asked_of("llama-3.1-8b", "native")
    source = CountedRows(space, RowPrices(question, space, closed_form), question.setting)
    source.all_degrees = False
    found = source.that_fit(rows)
    alone = space.layouts.pipeline_parallel == 1
    least = row_fits(space, by_moments(whole, space, question.setting))
    expected = np.where(alone, least, row_fits(space, whole))
    assert found.tolist() == np.flatnonzero(expected).tolist()
    assert _columns(source.of_each(found)) == _columns(whole.take(found))
    assert expected.sum() < least.sum()


@pytest.mark.parametrize("seq_len", ["8192", "524288"])
def test_rows_of_a_small_space_that_may_fit_by_every_moment(seq_len: str) -> None:
    """Where nothing fits by its prices they are looked at, too: also of sequences that the packed
    columns of a space could not be multiplied by.
    """
    arguments = Arguments(model="llama-3.1-8b", gpus=8, cluster="l40s-8", engine="native")
    question = ask(replace(arguments, seq_len=seq_len, global_batch=16)).question
    space = space_of(question)
    whole = price_space(question, space, closed_form)
    least = row_fits(space, by_moments(whole, space, question.setting))
    found = rows_that_may_fit(space, question.setting)
    assert found.tolist() == np.flatnonzero(least).tolist()
    assert 0 < len(found) < len(space.layouts)


def _columns(prices: Coefficients) -> dict[str, list[int]]:
    return {each.name: np.ravel(getattr(prices, each.name)).tolist() for each in fields(prices)}


def test_sizes_leave_out_rows_whose_states_alone_do_not_fit() -> None:
    """What is left of 8 to 24 GPUs is what all of it leaves after kinds of exchanges are opened."""
    arguments = Arguments(model="mixtral-8x7b", gpus=16, cluster="dgx-a100", engine="megatron")
    asked, sizes = ask(replace(arguments, global_batch=64)).question, (8, 16, 24)
    every, (some, number) = space_of(asked, sizes), space_of_sizes(asked, sizes)
    states = mean_states_bytes(every.layouts, asked.setting)
    held = every.take(np.flatnonzero(states * SAFETY <= asked.cluster.fillable_bytes))
    assert 0 < len(held.layouts) < number < len(every.layouts)
    assert LeastMemory(asked, closed_form, sizes).looked_at == number
    for field in fields(held.layouts):
        name = field.name
        assert np.array_equal(getattr(some.layouts, name), getattr(held.layouts, name)), name
