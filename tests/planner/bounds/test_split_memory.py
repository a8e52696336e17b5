"""What each split of a list needs at least in any mix of recomputation."""

from dataclasses import replace
from typing import Any

import pytest
from stage_problems import problem_of

from meshplan.planner.bounds.split_memory import least_kib, some_mix_fits
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StageProblem
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
        embedding=End(saved_kib=7), head=End(transient_kib=9), send_ns=0, fixed_kib=1,
        cap_kib=cap_kib, fixed_step_ns=0, passes_ns=Passes(1, 1, 1),
    )  # fmt: skip
    return problem_of(**numbers | changed)


def test_what_splits_need_by_hand() -> None:
    """3 + 2: rank 0 needs 1 + 3 x 20 + 2 (7 + 3 x 10) + 5. 4 + 1: 1 + 4 x 20 + 2 (7 + 4 x 10) + 5.
    1 + 4: rank 1 needs 1 + 4 x 20 + 4 x 10 + 9, rank 0 but 1 + 20 + 2 (7 + 10) + 5 = 60.
    """
    assert least_kib(lacking(0)).tolist() == [140, 180, 130]
    for capacity, fits in ((129, 0), (130, 1), (139, 1), (140, 2), (180, 3)):
        assert some_mix_fits(lacking(capacity)).sum() == fits


@pytest.mark.parametrize(("changed", "needed"), [
    pytest.param({"update_kib": (100,)}, [1 + 3 * 20 + 3 * 100, 1 + 4 * 20 + 4 * 100,
                 1 + 4 * 20 + 4 * 100], id="what the optimizer step holds, where that is more"),
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
