"""The prices of rows that are priced when they are asked for are those of pricing all at once."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from nightly import later

from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.costmodels.prices.passes import PassSeconds, pass_seconds
from meshplan.costmodels.prices.prices import least_micro_batch_s, mean_states_bytes, price
from meshplan.costmodels.setting import Setting
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.first_layouts import first_layout
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.problem.coefficients import NS_PER_S, Coefficients
from meshplan.planner.search.rows import row_prices
from meshplan.planner.search.rows import rows_below as below
from meshplan.planner.search.rows.priced_space import (
    Question,
    busy_ns,
    closed_form,
    price_space,
    space_of,
)
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.rows.rows_below import Given, bounds_of_rows, rows_below
from meshplan.planner.space.legal_layouts import Space

ASKED = Arguments(
    model="mixtral-8x7b", gpus=64, cluster="dgx-h100", engine="torchtitan", global_batch=256
)


@pytest.fixture(scope="module")
def question() -> Question:
    """A question of some thousand rows of which some do not fit."""
    return ask(ASKED).question


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [pytest.param(0, id="none"), pytest.param(10**6, id="all")])
def test_rows_are_priced_as_all_at_once(
    monkeypatch: pytest.MonkeyPatch, question: Question, kept: int
) -> None:
    """Of a space whose prices are kept and of one whose are not: every column, bound and fit; rows
    asked for twice, in any order, and more of them than are kept.
    """
    monkeypatch.setattr(row_prices, "ALL", kept)
    monkeypatch.setattr(row_prices, "TOGETHER", 1000)
    monkeypatch.setattr(row_prices, "AHEAD", 100)
    space = space_of(question)
    whole, found = (
        price_space(question, space, closed_form),
        RowPrices(question, space, closed_form),
    )
    assert len(space.layouts) > 2000
    fits, bounds = np.flatnonzero(row_fits(space, whole)), row_bounds(space, whole)
    assert (found.rows == fits[np.argsort(bounds[fits], kind="stable")]).all()
    assert (found.bounds[fits] == bounds[fits]).all()
    assert 0 < len(fits) < len(bounds)
    draw = np.random.default_rng(1)
    for count in (1, 7, 50, 300, 50):
        rows = draw.integers(0, len(space.layouts), count)
        assert _columns(found.take(rows)) == _columns(whole.take(rows))
    found.hold(np.arange(10))
    assert found.holds(np.arange(10))


@cache
@cache
def priced(engine: str) -> tuple[Question, Space, Coefficients, Floats]:
    """The question in an engine, its rows, their prices, and bounds of what they compute."""
    asked = ask(replace(ASKED, engine=engine, gpus=16, global_batch=64)).question
    space = space_of(asked)
    return asked, space, price_space(asked, space, closed_form), busy_ns(asked, space)


@pytest.mark.few(3)
@pytest.mark.parametrize("kept", [pytest.param(0, id="none"), pytest.param(10**6, id="all")])
@pytest.mark.parametrize("engine", ["torchtitan", "native", "megatron"])
def test_rows_in_order_are_those_of_pricing_all(
    monkeypatch: pytest.MonkeyPatch, engine: str, kept: int
) -> None:
    """The first rows by bound, however far they are priced; what is left would come later, and of
    those below a limit the ones that fit are the same, with the same prices.
    """
    monkeypatch.setattr(row_prices, "ALL", kept)
    monkeypatch.setattr(row_prices, "TOGETHER", 200)
    asked, space, whole, busy = priced(engine)
    fits, bounds = row_fits(space, whole), np.maximum(row_bounds(space, whole), busy)
    rows = np.flatnonzero(fits)[np.argsort(bounds[fits], kind="stable")]
    found = RowPrices(asked, space, closed_form, busy)
    assert not len(found.rows)
    for number in (1, 5, 50):
        found.settle(number)
        assert (found.rows[:number] == rows[:number]).all()
        assert (found.bounds[found.rows] == bounds[found.rows]).all()
    left = np.setdiff1d(rows, found.priced)
    assert len(left)
    assert bounds[left].min() > bounds[rows[49]]
    below = found.below(float(np.quantile(bounds[rows], 0.2)) / NS_PER_S)
    fit, prices = found.fitting(below)
    assert (fit == below[fits[below]]).all()
    assert _columns(prices) == _columns(whole.take(fit))
    found.settle(len(rows) + 1)
    assert (found.rows == rows).all()
    assert not len(found.unpriced(None))


def test_packed_prices_are_looked_up_in_64_bits(question: Question) -> None:
    """The same numbers, in half the bytes or less; a column that is one number takes none. Passes
    that are joined are packed too.
    """
    space = space_of(question)
    rows = np.arange(0, len(space.layouts), 7)
    prices = price_space(question, space.take(rows), closed_form)
    packed, some = prices.packed(), np.arange(len(rows))[::3]
    names = list(_columns(prices))
    assert _columns(packed.take(some)) == _columns(prices.take(some))
    assert {getattr(packed.take(some), name).dtype for name in names} == {np.dtype(np.int64)}
    taken = [sum(map(_bytes_of, (getattr(x, n) for n in names))) for x in (packed, prices)]
    assert taken[0] < taken[1] / 2
    passes = pass_seconds(space.layouts.take(rows), question.setting)
    joined = PassSeconds.joined([passes.take(some), passes.take(some)])
    twice = passes.take(np.concatenate([some, some]))
    for name in ("layer_s", "step_s", "eight_bit", "dense"):
        assert np.array_equal(getattr(joined, name), getattr(twice, name))
    assert _bytes_of(joined.step_s) == 8


def _bytes_of(column: Floats) -> int:
    """What an array takes: one row where it is that row alone."""
    return column[:1].nbytes if column.strides[0] == 0 else column.nbytes


@later(held_by="test_rows_in_order_are_those_of_pricing_all")
def test_the_answer_is_that_of_all_prices_kept(
    monkeypatch: pytest.MonkeyPatch, question: Question
) -> None:
    """The same layouts, steps and bound, wherever the prices come from."""
    every = solve(question, 3)
    monkeypatch.setattr(row_prices, "ALL", 0)
    again = solve(question, 3)
    assert again.solutions == every.solutions
    assert (again.bound_s, again.simulated) == (every.bound_s, every.simulated)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("mixtral-8x7b", "torchtitan"), ("mixtral-8x7b", "native"),
        ("deepseek-v3", "megatron"), ("nemotron-h-56b", "nemo"),
    ],
)  # fmt: skip
def test_rows_left_out_unpriced_are_those_that_their_bound_leaves_out(
    monkeypatch: pytest.MonkeyPatch, model: str, engine: str
) -> None:
    """No row is busy for longer than the bound of its simulated step, nor has its mean rank more
    states than prices say; and at any limit the rows kept, their passes and prices are those of
    pricing all.
    """
    monkeypatch.setattr(below, "_beaten_in_kind", lambda space, _found, _setting: np.zeros(
        len(space.layouts), bool
    ))  # fmt: skip
    q = ask(replace(ASKED, model=model, engine=engine)).question
    space, setting = space_of(q), Setting.fitted(q.model, q.training, q.cluster, q.engine)
    every = np.arange(len(space.layouts))
    prices = price_space(q, space, closed_form)
    kept, passes, simulated = rows_below(space, Given(every, prices), setting, np.inf)
    assert (kept == every).all()
    bounds = bounds_of_rows(space, passes)
    layouts = space.layouts.take(every)
    each = least_micro_batch_s(layouts, setting)
    busy = each * layouts.num_micro_batches / layouts.pipeline_parallel
    assert (busy <= bounds * (1 + 1e-12)).all()
    assert np.quantile(busy / bounds, 0.9) > 0.9
    limit_s = float(np.quantile(bounds, 0.1))
    source = RowPrices(q, space, closed_form, busy_ns(q, space))
    kept, passes, some = rows_below(space, source, setting, limit_s)
    assert (kept == np.flatnonzero((bounds < limit_s) & row_fits(space, prices))).all()
    assert (bounds_of_rows(space.take(kept), passes) == bounds[kept]).all()
    assert _columns(some) == _columns(simulated.take(kept))
    assert len(source.below(limit_s)) < len(every) / 2
    counts, pp = np.array(space.kind_counts), space.layouts.pipeline_parallel
    states = prices.layer_state_kib @ counts + prices.embedding_state_kib + prices.head_state_kib
    least = mean_states_bytes(space.layouts.take(every), setting) / 1024
    assert (least * (1 - 1e-12) <= states / pp).all()
    assert np.median(least / (states / pp)) > 0.9


def test_a_limit_leaves_the_layout_that_meets_it(question: Question) -> None:
    """What is found without a limit is found where the limit is a tenth above its step, which is
    more than the closed form may be above the simulation here; where every row is busy for longer
    nothing is.
    """
    found = first_layout(question, np.inf, KnownWork())
    assert found is not None
    again = first_layout(question, found.step_s * 1.1, KnownWork())
    assert again is not None
    assert again.step_s <= found.step_s * (1 + 1e-9)
    assert first_layout(question, found.step_s / 10, KnownWork()) is None


def _columns(prices: Coefficients) -> dict[str, list[int]]:
    each = {field.name: getattr(prices, field.name) for field in fields(prices)}
    return {name: x.tolist() for name, x in each.items() if isinstance(x, np.ndarray)}


def test_a_grid_prices_each_stage_with_its_own_hooks() -> None:
    """Under Megatron-FSDP the host takes longer for a layer, in a grid as alone."""
    asked = Arguments(
        model="llama-3.1-8b", gpus=8, cluster="dgx-h100", engine="megatron-bridge",
        global_batch=64, seq_len="512",
    )  # fmt: skip
    question = ask(asked).question
    space = space_of(question).layouts
    alone = (space.micro_batch_size == 1) & (space.data_parallel == 8)
    some = space.take(np.flatnonzero(alone))
    forward_s = price(some, question.setting).forward_s.reshape(len(some), -1).min(axis=1)
    of_stage = {zero: {*forward_s[some.zero_stage == zero]} for zero in (0, 1, 3)}
    assert of_stage[0] == of_stage[1]
    assert max(of_stage[1]) < min(of_stage[3])
