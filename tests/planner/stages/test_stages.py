"""The inner problem: solver against enumeration and against an independent dynamic programme."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import pytest
from compositions import compositions
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StagePlan, StageProblem, evaluate
from meshplan.planner.stages.any_cut import any_cut
from meshplan.planner.stages.counts import solve_counts
from meshplan.planner.stages.first_plan import first_plan
from meshplan.planner.stages.heuristic import first_counts
from meshplan.planner.stages.path import Intervals, greedy_path

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


@pytest.mark.parametrize("seed", range(12))
def test_counts_model_equals_enumeration(seed: int, problem: Problems, every_plan: Plans) -> None:
    """Several chunks per rank: CP-SAT finds what enumerating every plan finds."""
    case = problem(seed, 2, pp=2, m=4, pattern=(0, 0, 0, 0, 0), empty_ends=False)
    best = best_by_enumeration(case, every_plan)
    plan, known = solve_counts(case, 10.0)
    assert known
    assert (plan and plan.objective) == (best and best.objective)


@pytest.mark.parametrize("seed", range(12))
def test_counts_model_equals_dynamic_programme(seed: int, problem: Problems) -> None:
    """One chunk per rank: CP-SAT and labels over cuts find the same optimum, or both none."""
    case = problem(seed, 1)
    plan, known = solve_counts(case, 10.0)
    assert known
    assert (plan and plan.objective) == best_by_dynamic_programme(case)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_first_plans_are_plans(seed: int, vpp: int, problem: Problems) -> None:
    """A first plan fits, its bound is below the optimum, and it is no better than the optimum."""
    case = problem(seed, vpp)
    bound, plan = first_plan(case)
    best, _ = solve_counts(case, 10.0)
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


def test_the_split_with_the_least_bound_need_not_be_the_best_of_a_list() -> None:
    """Two layers of 2 x 50 KiB each and of 20 do not fit in 240 on rank 0: one is run again, in 400
    ns, and X = 500 + 11. On rank 1 three layers of 50 and 20 KiB do, and X = 300 + 31.
    """
    case = by_hand(splits=((2, 2), (1, 3)), layer_ns=((100, 110, 400),), cap_kib=240)
    bound, plan = first_plan(case)
    assert plan is not None
    assert plan.stages == (Stage(1), Stage(3))
    assert bound == plan.objective


def test_a_stage_leaves_the_next_a_layer_that_it_can_hold() -> None:
    """The first of three ranks, of 3, 2 and 1 micro-batches in flight, could hold two layers, 3 x 2
    x 10 of 60 KiB. The next would begin with the one of 40, of which it cannot hold 2; with one
    layer each, 30 and 20, the last holds 40 + 10.
    """
    case = by_hand(
        pattern=(0, 0, 1, 0), pp=3, modes=(0,), layer_ns=((100,) * 3, (400,) * 3),
        saved_kib=((10,) * 3, (40,) * 3), state_kib=(0, 0), update_kib=(0, 0), step_ns=(7, 7),
        transient_kib=(0, 0, 0), fixed_kib=0, cap_kib=60, embedding=End(), head=End(),
    )  # fmt: skip
    slowest, plan = greedy_path(Intervals(case))
    assert plan is not None
    assert plan.stages == (Stage(1), Stage(1), Stage(2))
    assert slowest == 400 + 100 + 1


@pytest.mark.parametrize("cap_kib", [50, 60, 70, 120])
def test_three_ranks_of_two_kinds_of_layers_are_cut_best(cap_kib: int) -> None:
    """By trying every cut of five layers, heavy ones among light ones in every order."""
    for pattern in product((0, 1), repeat=5):
        case = by_hand(
            pattern=pattern, pp=3, modes=(0,), layer_ns=((100,) * 3, (300,) * 3),
            saved_kib=((10,) * 3, (40,) * 3), state_kib=(0, 0), update_kib=(0, 0), step_ns=(7, 7),
            transient_kib=(0, 0, 0), fixed_kib=0, cap_kib=cap_kib, embedding=End(), head=End(),
        )  # fmt: skip
        intervals = Intervals(case)
        slowest, plan = greedy_path(intervals)
        found = []
        for counts in compositions(5, [case.fewest_layers(stage) for stage in range(3)]):
            prices = intervals.priced(list(accumulate(counts)))
            found += [max(price.ns for price in prices)] if prices else []
        assert (plan is None) == (not found)
        assert not found or slowest == min(found)


def test_engine_splits_are_kept(problem: Problems) -> None:
    """With a list of splits the answer is one of them, for one chunk per rank and for two."""
    case = problem(3, 1, pp=2, pattern=(0,) * 6, splits=((2, 4), (5, 1)), cap_kib=10**6)
    plan = first_plan(case)[1]
    assert plan is not None
    assert tuple(stage.layers for stage in plan.stages) in ((2, 4), (5, 1))
    chunked = problem(
        3, 2, pp=2, pattern=(0,) * 6, m=4, splits=((1, 1, 1, 3), (2, 1, 1, 2)), cap_kib=10**6
    )
    plan = first_plan(chunked)[1]
    assert plan is not None
    assert tuple(stage.layers for stage in plan.stages) in ((1, 1, 1, 3), (2, 1, 1, 2))


def test_no_needless_recomputation() -> None:
    """With memory to spare nothing is recomputed, also where recomputing would cost no time."""
    problem = by_hand(schedule="interleaved_1f1b", vpp=2, pattern=(0,) * 5, head=End(ns=900), m=4)
    plan = solve_counts(problem, 10.0)[0]
    assert plan is not None
    assert sum(stage.full_layers + stage.selective_layers for stage in plan.stages) == 0
    thumb = first_counts(problem)
    assert thumb is not None
    assert thumb.objective >= plan.objective


def test_a_less_even_split_is_planned_where_the_most_even_ones_do_not_fit() -> None:
    """A layer keeps 50 KiB of each micro-batch. Rank 0 holds two of both its chunks: three layers
    there need 10 + 3 x 2 x 50 = 310. On rank 1 two layers in its first chunk, held twice, and one
    in its last, held once, need 10 + 2 x 2 x 50 + 50 = 260.
    """
    splits = ((1, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1))
    problem = by_hand(
        schedule="interleaved_1f1b", vpp=2, m=2, modes=(0,), pattern=(0,) * 5, splits=splits,
        state_kib=(0,), embedding=End(), transient_kib=(0, 0, 0), cap_kib=260,
    )  # fmt: skip
    bound, plan = first_plan(problem)
    assert plan is not None
    assert bound is not None
    assert [stage.layers for stage in plan.stages] == [1, 2, 1, 1]
    assert plan.peak_kib == (210, 260)
    assert first_plan(replace(problem, splits=splits[::2])) == (None, None)


@pytest.mark.parametrize(
    ("changed", "least_kib", "layers"),
    [
        pytest.param(
            {"schedule": "interleaved_1f1b", "vpp": 2, "pattern": (0,) * 5,
             "splits": ((1, 1, 2, 1), (2, 1, 1, 1))},
            10 + 2 * 2 * 50, [1, 1, 1, 2],
            id="of two chunks rank 0 holds two layers twice, rank 1 one twice and two once",
        ),
        pytest.param(
            {"splits": ((3, 1),)}, 10 + 3 * 50, [1, 3],
            id="rank 0 holds each layer twice, rank 1 once",
        ),
    ],
)  # fmt: skip
def test_any_cut_is_one_that_no_list_has(
    changed: dict[str, Any], least_kib: int, layers: list[int]
) -> None:
    """Where a list's cuts need more. With 1 KiB less no cut fits, which is known."""
    few = {
        "m": 2, "modes": (0,), "state_kib": (0,), "embedding": End(), "transient_kib": (0, 0, 0),
    }  # fmt: skip
    problem = by_hand(**changed, **few, cap_kib=least_kib)
    plan, known = any_cut(problem)
    assert plan is not None
    assert known
    assert [stage.layers for stage in plan.stages] == layers
    assert any_cut(by_hand(**changed, **few, cap_kib=least_kib - 1)) == (None, True)
