"""The prices of rows that are priced when they are asked for are those of pricing all at once."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshplan.costmodels.step.prices import busy_s
from meshplan.costmodels.step.setting import Setting
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.first_layouts import first_layout
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.search import row_prices
from meshplan.planner.search.priced_space import (
    Question,
    busy_below,
    closed_form,
    price_space,
    space_of,
)
from meshplan.planner.search.row_prices import RowPrices
from meshplan.planner.search.rows_below import bounds_of_rows, passes_below

ASKED = Arguments(
    model="mixtral-8x7b", gpus=64, cluster="dgx-h100", engine="torchtitan", global_batch=256
)


@pytest.fixture(scope="module")
def question() -> Question:
    """A question of some thousand rows of which some do not fit."""
    return ask(ASKED).question


@pytest.mark.parametrize("kept", [pytest.param(0, id="none"), pytest.param(10**6, id="all")])
def test_rows_are_priced_as_all_at_once(
    monkeypatch: pytest.MonkeyPatch, question: Question, kept: int
) -> None:
    """Of a space whose prices are kept and of one whose are not: every column, bound and fit; rows
    asked for twice, in any order, and more of them than are kept.
    """
    monkeypatch.setattr(row_prices, "ALL", kept)
    monkeypatch.setattr(row_prices, "ROWS_PER_PRICE", 1000)
    monkeypatch.setattr(row_prices, "AHEAD", 100)
    space = space_of(question)
    whole, found = (
        price_space(question, space, closed_form),
        RowPrices(question, space, closed_form),
    )
    assert len(space.layouts) > 2000
    assert found.cap_kib == whole.cap_kib
    assert (found.bounds == row_bounds(space, whole)).all()
    assert (found.fits == row_fits(space, whole)).all()
    assert 0 < np.count_nonzero(found.fits) < len(found.fits)
    draw = np.random.default_rng(1)
    for count in (1, 7, 50, 300, 50):
        rows = draw.integers(0, len(space.layouts), count)
        assert _columns(found.take(rows)) == _columns(whole.take(rows))
    found.hold(np.arange(10))
    assert found.holds(np.arange(10))


def test_the_answer_is_that_of_all_prices_kept(
    monkeypatch: pytest.MonkeyPatch, question: Question
) -> None:
    """The same layouts, steps and bound, wherever the prices come from."""
    every = solve(question, 3)
    monkeypatch.setattr(row_prices, "ALL", 0)
    again = solve(question, 3)
    assert again.solutions == every.solutions
    assert (again.bound_s, again.simulated) == (every.bound_s, every.simulated)


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("mixtral-8x7b", "torchtitan"), ("mixtral-8x7b", "native"),
        ("deepseek-v3", "megatron"), ("nemotron-h-56b", "nemo"),
    ],
)  # fmt: skip
def test_rows_left_out_unpriced_are_those_that_their_bound_leaves_out(
    model: str, engine: str
) -> None:
    """No row is busy for longer than the bound of its simulated step, and at any limit the rows
    kept and their passes are those of pricing all.
    """
    q = ask(replace(ASKED, model=model, engine=engine)).question
    space, setting = space_of(q), Setting.fitted(q.model, q.training, q.cluster, q.engine)
    every = np.arange(len(space.layouts))
    kept, passes = passes_below(space, every, setting, np.inf)
    assert (kept == every).all()
    bounds = bounds_of_rows(space, passes)
    busy = busy_s(space.layouts.take(every), setting)
    assert (busy <= bounds * (1 + 1e-12)).all()
    assert np.quantile(busy / bounds, 0.9) > 0.9
    limit_s = float(np.quantile(bounds, 0.1))
    kept, passes = passes_below(space, every, setting, limit_s)
    assert (kept == np.flatnonzero(bounds < limit_s)).all()
    assert (bounds_of_rows(space.take(kept), passes) == bounds[kept]).all()
    assert len(busy_below(space, every, setting, limit_s)) < len(every) / 2


def test_a_limit_leaves_the_layout_that_meets_it(question: Question) -> None:
    """What is found without a limit is found where the limit is a tenth above its step, which is
    more than the closed form may be above the simulation here; where every row is busy for longer
    nothing is.
    """
    found = first_layout(question, np.inf)
    assert found is not None
    again = first_layout(question, found.step_s * 1.1)
    assert again is not None
    assert again.step_s <= found.step_s * (1 + 1e-9)
    assert first_layout(question, found.step_s / 10) is None


def _columns(prices: Coefficients) -> dict[str, list[int]]:
    names = [field.name for field in fields(prices) if field.name != "cap_kib"]
    return {name: getattr(prices, name).tolist() for name in names}
