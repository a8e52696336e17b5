"""The inner problem: solver against enumeration and against an independent dynamic programme."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StagePlan, StageProblem, evaluate
from meshplan.planner.stages.counts import solve_counts
from meshplan.planner.stages.heuristic import first_counts
from meshplan.planner.stages.least_path import solve_path
from meshplan.planner.stages.path import Intervals, greedy_path
from meshplan.planner.stages.solve import Solver

Problems = Callable[..., StageProblem]
Plans = Callable[[StageProblem], Iterator[tuple[Stage, ...]]]


def by_hand(**changed: object) -> StageProblem:
    """Two ranks, four layers; all else as `changed`."""
    numbers: dict[str, Any] = {
        "pattern": (0,) * 4, "schedule": "1f1b", "pp": 2, "vpp": 1, "m": 4, "modes": (0, 2),
        "layer_ns": ((100, 110, 130),), "saved_kib": ((50, 40, 10),), "state_kib": (20,),
        "update_kib": (0,), "step_ns": (7,), "transient_kib": (0, 0, 5), "embedding": End(ns=10),
        "head": End(ns=30), "send_ns": 1, "fixed_kib": 10, "cap_kib": 10**6, "fixed_step_ns": 5,
        "passes_ns": Passes(150, 150, 100),
    }  # fmt: skip
    return problem_of(**numbers | changed)


HAND = by_hand()


def best_by_enumeration(problem: StageProblem, every_plan: Plans) -> StagePlan | None:
    """The best of all plans, None if none fits."""
    plans = (evaluate(problem, stages) for stages in every_plan(problem))
    return min((p for p in plans if p is not None), key=lambda p: p.objective, default=None)


def best_by_dynamic_programme(problem: StageProblem) -> int | None:
    """V = 1 by labels (longest stage, sum, step end) per cut: no solver, no windows."""
    intervals, last = Intervals(problem), len(problem.pattern)
    labels: dict[int, set[tuple[int, int, int]]] = {0: {(0, 0, 0)}}
    for stage in range(problem.pp):
        reached: dict[int, set[tuple[int, int, int]]] = {}
        for first, known in labels.items():
            for end in range(first + problem.fewest_layers(stage), last + 1):
                price = intervals.price(stage, first, end)
                if price is None:
                    continue
                step = intervals.step_ns(stage, first, end)
                reached.setdefault(end, set()).update(
                    (max(x, price.ns), total + price.ns, max(d, step)) for x, total, d in known
                )
        labels = reached
    finished = labels.get(last, set())
    return min(
        ((problem.m - 1) * x + total + d + problem.constant_ns for x, total, d in finished),
        default=None,
    )


def test_objective_by_hand() -> None:
    """2+2 layers: X = 231, step = (4-1) 231 + (211 + 231) + D, D = 2 x 7 + 5."""
    plan = evaluate(HAND, (Stage(2), Stage(2)))
    assert plan is not None
    assert plan.objective == 3 * 231 + 211 + 231 + 14 + 5


def test_memory_by_hand() -> None:
    """Rank 0 holds two micro-batches: 10 + 2 x 20 + 2 x (50 + 10) + 5 with one layer recomputed."""
    plan = evaluate(HAND, (Stage(2, 0, 1), Stage(2)))
    assert plan is not None
    assert plan.peak_kib == (10 + 40 + 2 * 60 + 5, 10 + 40 + 100)
    assert evaluate(by_hand(cap_kib=174), (Stage(2, 0, 1), Stage(2))) is None


def test_interleaved_objective_by_hand() -> None:
    """V = 2: rows of 101 and 131 four times, a quarter of 3 x 101 + 131, rounded up, and D."""
    problem = by_hand(schedule="interleaved_1f1b", vpp=2, embedding=End())
    plan = evaluate(problem, (Stage(1),) * 4)
    assert plan is not None
    assert plan.objective == 4 * (101 + 131) + 109 + 14 + 5


@pytest.mark.parametrize("seed", range(40))
def test_least_path_equals_dynamic_programme(seed: int, problem: Problems) -> None:
    """One chunk per rank: halved caps and labels over cuts find the same optimum, or both none."""
    case = problem(seed, 1)
    outcome = solve_path(Intervals(case), None)
    best = best_by_dynamic_programme(case)
    assert (outcome.plan.objective if outcome.plan else None) == best
    assert outcome.status == ("INFEASIBLE" if best is None else "OPTIMAL")


def test_least_path_through_layers_of_three_kinds(problem: Problems) -> None:
    """14 layers on four ranks that must recompute: a longer longest stage often takes less in all,
    and between two caps lie many paths.
    """
    for seed in range(40):
        draw = random.Random(f"three kinds {seed}")
        base, saved = (draw.choices(range(*span), k=3) for span in ((500, 3000), (200, 900)))
        case = problem(
            seed, 1, pp=4, schedule="1f1b", modes=(0, 1, 2), cap_kib=10_000,
            pattern=(0, 1, 2, *draw.choices(range(3), k=11)),
            layer_ns=tuple((t, t + draw.randint(1, 200), t + t // 3) for t in base),
            saved_kib=tuple((s, s * 3 // 4, s // 5) for s in saved),
            state_kib=(200, 300, 400), update_kib=(0, 0, 0),
            step_ns=tuple(draw.choices(range(9000), k=3)),
        )  # fmt: skip
        plan = solve_path(Intervals(case), None).plan
        assert (plan.objective if plan else None) == best_by_dynamic_programme(case)


def test_stages_as_long_as_the_mean_are_found() -> None:
    """Four equal layers, no ends: X = 400 / 2 is the least that a longest stage can be. The step is
    (4 - 1) 200 + 400 and D, 5.
    """
    case = by_hand(embedding=End(), head=End(), send_ns=0, step_ns=(0,))
    outcome = solve_path(Intervals(case), None)
    assert outcome.status == "OPTIMAL"
    assert outcome.plan is not None
    assert outcome.plan.objective == 3 * 200 + 400 + 5


@pytest.mark.parametrize("seed", range(12))
def test_counts_model_equals_enumeration(seed: int, problem: Problems, every_plan: Plans) -> None:
    """Several chunks per rank: CP-SAT finds what enumerating every plan finds."""
    case = problem(seed, 2, pp=2, m=4, pattern=(0, 0, 0, 0, 0), empty_ends=False)
    best = best_by_enumeration(case, every_plan)
    outcome = solve_counts(case, None, 10.0)
    assert (outcome.plan.objective if outcome.plan else None) == (best and best.objective)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_a_window_loses_nothing(seed: int, vpp: int, problem: Problems) -> None:
    """Below its optimum a problem is infeasible; one above it the same optimum is found."""
    case, solver = problem(seed, vpp, cap_kib=10**6), Solver()
    best = solver.solve(case, None)
    assert best.plan is not None
    optimum = best.plan.objective
    assert solver.solve(case, optimum).status == "INFEASIBLE"
    again = solver.solve(case, optimum + 1)
    assert again.plan is not None
    assert again.plan.objective == optimum


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_first_plans_are_plans(seed: int, vpp: int, problem: Problems) -> None:
    """A first plan fits, its bound is below the optimum, and it is no better than the optimum."""
    case, solver = problem(seed, vpp), Solver()
    bound, plan = solver.first_plan(case)
    best = solver.solve(case, None).plan
    if best is None:
        assert plan is None
        return
    assert bound is not None
    assert bound <= best.objective
    assert plan is None or plan.objective >= best.objective


def test_greedy_path_finds_the_least_bottleneck(problem: Problems) -> None:
    """No cut has a shorter longest stage than the greedy one: all cuts of 20 problems tried."""
    for seed in range(20):
        case = problem(seed, 1, pp=2, embedding=End(), m=2)
        intervals = Intervals(case)
        slowest, plan = greedy_path(intervals)
        cuts = [
            max(a.ns, b.ns)
            for cut in range(case.fewest_layers(0), len(case.pattern) + 1 - case.fewest_layers(1))
            if (a := intervals.price(0, 0, cut))
            and (b := intervals.price(1, cut, len(case.pattern)))
        ]
        assert (plan is None) == (not cuts)
        assert not cuts or slowest == min(cuts)


def test_engine_splits_are_kept(problem: Problems) -> None:
    """With a list of splits the answer is one of them, for one chunk per rank and for two."""
    case = problem(3, 1, pp=2, pattern=(0,) * 6, splits=((2, 4), (5, 1)), cap_kib=10**6)
    plan = Solver().solve(case, None).plan
    assert plan is not None
    assert tuple(stage.layers for stage in plan.stages) in ((2, 4), (5, 1))
    chunked = problem(
        3, 2, pp=2, pattern=(0,) * 6, m=4, splits=((1, 1, 1, 3), (2, 1, 1, 2)), cap_kib=10**6
    )
    plan = Solver().solve(chunked, None).plan
    assert plan is not None
    assert tuple(stage.layers for stage in plan.stages) in ((1, 1, 1, 3), (2, 1, 1, 2))


def test_no_needless_recomputation() -> None:
    """With memory to spare nothing is recomputed, also where recomputing would cost no time."""
    problem = by_hand(schedule="interleaved_1f1b", vpp=2, pattern=(0,) * 5, head=End(ns=900), m=4)
    plan = solve_counts(problem, None, 10.0).plan
    assert plan is not None
    assert sum(stage.full_layers + stage.selective_layers for stage in plan.stages) == 0
    thumb = first_counts(problem)
    assert thumb is not None
    assert thumb.objective >= plan.objective
