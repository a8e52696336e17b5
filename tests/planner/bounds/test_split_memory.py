"""What each split of a list needs at least in any mix of recomputation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.planner.bounds.split_memory import least_kib, some_mix_fits
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StageProblem, evaluate
from meshplan.planner.stages.first_plan import first_plan
from meshplan.planner.stages.path import Intervals


def lacking(cap_kib: int, **changed: Any) -> StageProblem:
    """Two ranks, of which the first holds two micro-batches: a layer keeps 50 KiB of each, 10
    recomputed, 20 of states, and 5 while it is replayed.
    """
    numbers = dict(
        pattern=(0,) * 5, schedule="1f1b", pp=2, vpp=1, m=4, modes=(0, 2), first=True,
        splits=((3, 2), (4, 1), (1, 4)), layer_ns=((100, 110, 130),), saved_kib=((50, 40, 10),),
        state_kib=(20,), update_kib=(0,), step_ns=(0,), transient_kib=(0, 0, 5),
        embedding=End(saved_kib=7), head=End(transient_kib=9, state_kib=2), send_ns=0, fixed_kib=1,
        cap_kib=cap_kib, fixed_step_ns=0, passes_ns=Passes(1, 1, 1),
    )  # fmt: skip
    return problem_of(**numbers | changed)


def test_what_splits_need_by_hand() -> None:
    """3 + 2: rank 0 needs 1 + 3 x 20 + 2 (7 + 3 x 10) + 5. 4 + 1: 1 + 4 x 20 + 2 (7 + 4 x 10) + 5.
    1 + 4: rank 1 needs 1 + 4 x 20 + 2 + 4 x 10 + 9, rank 0 but 1 + 20 + 2 (7 + 10) + 5 = 60.
    """
    assert least_kib(lacking(0)).tolist() == [140, 180, 132]
    for capacity, fits in ((131, 0), (132, 1), (139, 1), (140, 2), (180, 3)):
        assert some_mix_fits(lacking(capacity)).sum() == fits


def test_a_rank_is_as_full_as_its_fullest_moment() -> None:
    """Where nothing may recompute there is one mix: a split needs what its stages do, whichever of
    the vectors of micro-batches in flight fills a rank of several chunks.
    """
    several = replace(
        lacking(10**6), schedule="interleaved_1f1b", vpp=2, modes=(0,), first=False,
        splits=((2, 1, 1, 1), (1, 1, 1, 2), (1, 2, 1, 1)),
    )  # fmt: skip
    assert max(map(len, several.shape.in_flight)) > 1
    assert several.splits is not None
    plans = [evaluate(several, tuple(map(Stage, counts))) for counts in several.splits]
    assert least_kib(several).tolist() == [max(plan.peak_kib) for plan in plans]


def test_no_stage_is_priced_where_no_mix_of_the_rule_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 fits with its three layers recomputed alone, 1 + 60 + 2 (7 + 30) + 100 = 235 of 240,
    rank 1 with none: 1 + 40 + 80 + 100 + 9 = 230, and 1 + 40 + 80 + 20 + 100 = 241 with both.
    """
    problem = replace(lacking(240), splits=((3, 2),))
    columns = {"head_state_kib": 80, "transient_kib": (0, 0, 100)}
    named = {name: np.array([value]) for name, value in columns.items()}
    problem = replace(problem, prices=replace(problem.prices, **named))
    assert some_mix_fits(problem).tolist() == [True]
    monkeypatch.setattr(Intervals, "priced", None)
    assert first_plan(problem)[1] is None


@pytest.mark.parametrize(("changed", "needed"), [
    pytest.param({"update_kib": (100,)}, [1 + 3 * 20 + 3 * 100, 1 + 4 * 20 + 4 * 100,
                 1 + 4 * 20 + 4 * 100 + 2], id="what the optimizer step holds, where that is more"),
    pytest.param({"embedding": End(saved_kib=100), "splits": ((0, 5),), "transient_kib": (3, 0, 5)},
                 [1 + 2 * 100], id="a rank without layers passes through none"),
])  # fmt: skip
def test_what_else_a_rank_needs_by_hand(changed: dict[str, Any], needed: list[int]) -> None:
    """The rank that needs most: by its update instead of its passes, or by its end alone."""
    assert least_kib(lacking(0, **changed)).tolist() == needed


@pytest.mark.parametrize("first", [False, True])
def test_stages_of_splits_that_cannot_fit_are_not_priced(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One split fits, and it alone is asked for its stages."""
    asked, priced = list[tuple[int, ...]](), Intervals.priced

    def noted(self: Intervals, ends: list[int]) -> object:
        asked.append(tuple(ends))
        return priced(self, ends)

    monkeypatch.setattr(Intervals, "priced", noted)
    plan = first_plan(replace(lacking(139), first=first))[1]
    assert plan is not None
    assert set(asked) == {(1, 5)}
    asked.clear()
    assert first_plan(replace(lacking(129), first=first))[1] is None
    assert not asked
