"""Layouts that are bounded together by what each rank of each split must recompute."""

import math

import pytest
from listed_layouts import listed_layouts
from nightly import cases

from meshplan.planner.bounds.split_chains import split_bounds_s
from meshplan.planner.problem.stage_problem import stage_problem
from meshplan.planner.search.simulation import open_layouts
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated

FAR = 1.3  # times the smallest bound: what is below is bounded more closely


def alone_s(proof: Simulated, entry: Open, limit_s: float) -> float:
    """The bound of one layout that knows of no other: its own knapsacks, rank by rank."""
    _, passes = proof.problem(entry.row, entry.variant)
    problem = stage_problem(proof.space, proof.least, entry.row, entry.variant)
    _, _, least_s, _ = split_bounds_s(problem.alone, passes, limit_s)
    return max(entry.bound_s, min(limit_s, float(least_s.min(initial=math.inf))))


def opened(proof: Simulated) -> dict[tuple[int, int, int], Open]:
    """By their orders, which they keep."""
    return {each.order: each for each in proof.open._layouts}


def closely_bounded(proof: Simulated) -> bool:
    """Whether the smallest bound is that of a layout, whose chains are those that are known."""
    least_s = proof.open.least_s
    return math.isfinite(least_s) and proof.open.first_s == least_s


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["native", "hai-llm", "generic"])
def test_bounds_of_many_layouts_are_those_of_each_alone(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches the limit waits at it; all others are as far as one by one, some of them
    higher than before.
    """
    monkeypatch.setattr(open_layouts, "FEWEST_FILLED", 1)
    higher, at_limit, together = 0, 0, 0
    proofs = {id(each[0]): each[0] for each in listed_layouts(engine, range(cases(5, nightly=7)))}
    for proof in proofs.values():
        while not closely_bounded(proof) and proof.open.closer(math.inf):
            pass
        limit_s = FAR * proof.open.first_s
        before = opened(proof)
        while closely_bounded(proof) and proof.open._filled(limit_s):
            after = opened(proof)
            filled = {order for order in before if not before[order].filled} & {
                order for order in before if order not in after or after[order].filled
            }
            together = max(together, len(filled))
            for order in filled:
                expected = alone_s(proof, before[order], limit_s)
                found = after[order].bound_s if order in after else limit_s
                assert found == pytest.approx(expected, rel=1e-12)
                higher += before[order].bound_s < found < limit_s
                at_limit += order not in after
            before = after
    assert min(higher, at_limit) > 0
    assert together > 1
