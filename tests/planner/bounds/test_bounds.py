"""No bound is above what it bounds: the proof of optimality rests on this."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from first_plans import Plans, least_ns

from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.bounds.memory_prices import least_work_ns
from meshplan.planner.bounds.packing import packing_bounds
from meshplan.planner.bounds.split import Pairs, least_of_splits, split_bounds, weighed
from meshplan.planner.problem.stage_problem import StageProblem, stage_problem
from meshplan.planner.search.rows.priced_space import Pricer, Question, price_space
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.counts import solve_counts
from meshplan.planner.stages.first_plan import first_plan

CLOSE = 1 + 1e-9
Problems = Callable[..., StageProblem]


@pytest.mark.parametrize("vpp", [1, 2])
def test_packing_is_below_the_optimum(vpp: int, problem: Problems) -> None:
    """For 20 problems the packing bound, with and without a cutoff, is at most the optimum."""
    for seed in range(20):
        case = problem(seed, vpp)
        best, _ = solve_counts(case, 10.0)
        if best is None:
            continue
        for below in (None, best.objective + 1, best.objective * 2):
            limit = None if below is None else np.array([below])
            assert packing_bounds(case.alone, limit)[0] <= best.objective, seed


def test_rows_of_splits_are_below_the_optimum(problem: Problems, every_plan: Plans) -> None:
    """For 10 chunked problems with four splits each the bound is at most the optimum."""
    bounded = 0
    for seed in range(10):
        case = problem(seed, 2)
        alike = every_plan(replace(case, modes=(0,)))  # each cut once
        cuts = {tuple(s.layers for s in stages) for stages in alike}
        some = random.Random(seed).sample(sorted(cuts), min(4, len(cuts)))
        case = replace(case, splits=tuple(some))
        best = least_ns(case, every_plan)
        if best is None:
            continue
        for below in (None, best + 1, best * 3 // 2):
            assert _split_bound(case, below) <= best, seed
        bounded += _split_bound(case, best * 9 // 10) >= best * 9 // 10
    assert bounded > 1


def test_the_likeliest_split_limits_the_others_and_loses_none(
    problem: Problems, every_plan: Plans
) -> None:
    """For 60 chunked problems with all their splits: the least of all, each bounded alone."""
    found = 0
    for seed in range(60):
        case = problem(seed, 2)
        cuts = {tuple(s.layers for s in stages) for stages in every_plan(replace(case, modes=(0,)))}
        same = replace(case, splits=tuple(sorted(cuts))).alone
        _, each = least_of_splits(same, None)
        least = each.min(initial=math.inf)
        for limit in (None, int(each.max(initial=0.0, where=np.isfinite(each))) + 1):
            below = None if limit is None else np.array([limit])
            assert split_bounds(same, below)[0] == least, seed
        found += len(set(each[np.isfinite(each)])) > 2
    assert found > 20


def test_prices_of_memory_bound_what_each_rank_recomputes(
    problem: Problems, every_plan: Plans
) -> None:
    """For 60 chunked problems with six splits each: the split whose prices are taken recomputes so
    much by the knapsack too, no other less.
    """
    paid = 0
    for seed in range(60):
        case = problem(seed, 2)
        alike = every_plan(replace(case, modes=(0,)))
        cuts = sorted({tuple(s.layers for s in stages) for stages in alike})
        case = replace(case, splits=tuple(random.Random(seed).sample(cuts, min(6, len(cuts)))))
        same, splits = case.alone, np.arange(len(case.splits or ()))
        pairs = Pairs.of(same, np.zeros_like(splits), splits)
        exact = np.max(
            [pairs.least_work_ns(which) for which in range(same.covers.shape[1])], axis=0
        )
        for like in splits:
            found = least_work_ns(same, np.array([like]))[:, 0].T
            assert (found <= exact * CLOSE + 1e-6).all(), seed
            fits = np.isfinite(exact[like])
            assert found[like][fits] == pytest.approx(exact[like][fits], rel=1e-9, abs=1e-6), seed
            paid += np.count_nonzero(exact[like][fits])
    assert paid > 100


def _split_bound(case: StageProblem, below: int | None) -> float:
    limit = None if below is None else np.array([below])
    return float(split_bounds(case.alone, limit)[0])


def test_row_bounds_are_below_every_variant(
    question: Callable[..., Question],
    pricer: Callable[[int, float, int], Pricer],
    every_plan: Plans,
) -> None:
    """A row's bound is at most the optimum of each of its variants; a misfit row has none."""
    asked = question((0, 0, 0, 1, 1), 4, 8, hybrid_shard=False, zero_stages=(0, 1))
    space = enumerate_space(
        asked.model, asked.training, 4, asked.engine, asked.pins, asked.cluster.gpus_per_node
    )
    coefficients = price_space(asked, space, pricer(5, 5e7, 2))
    bounds, fits = row_bounds(space, coefficients), row_fits(space, coefficients)
    assert 0 < np.count_nonzero(fits) < len(fits)
    for row in range(0, len(space.layouts), 7):
        for variant in space.variants(row):
            case = stage_problem(space, coefficients, row, variant)
            best = least_ns(case, every_plan)
            assert fits[row] or best is None
            assert best is None or bounds[row] <= best


def test_a_layer_that_is_alone_of_its_kind_needs_room(
    question: Callable[..., Question], pricer: Callable[[int, float, int], Pricer]
) -> None:
    """Of five layers the third weighs more than a GPU holds: nothing fits, though four do."""
    asked = question((0, 0, 1, 0, 0), 4, 8, hybrid_shard=False, zero_stages=(0, 1))
    space = enumerate_space(
        asked.model, asked.training, 4, asked.engine, asked.pins, asked.cluster.gpus_per_node
    )
    coefficients = price_space(asked, space, pricer(5, 5e7, 2))
    assert space.kind_counts == [4, 1]
    heavy = coefficients.layer_state_kib.copy()
    heavy[:, 1] = coefficients.cap_kib + 1
    assert row_fits(space, coefficients).any()
    assert not row_fits(space, replace(coefficients, layer_state_kib=heavy)).any()


def test_rows_that_fit_plainly_are_those_with_a_schedule_of_one_chunk_that_fits(
    question: Callable[..., Question], pricer: Callable[[int, float, int], Pricer]
) -> None:
    """Where a schedule of one chunk per rank has a plan its row fits plainly; some rows fit by
    V shapes alone, whose first rank holds less.
    """
    asked = question((0, 0, 0, 1, 1), 4, 8, hybrid_shard=False, zero_stages=(0, 1))
    space = enumerate_space(
        asked.model, asked.training, 4, asked.engine, asked.pins, asked.cluster.gpus_per_node
    )
    coefficients = price_space(asked, space, pricer(5, 3e7, 2))
    fits, plainly = (row_fits(space, coefficients, plainly=each) for each in (False, True))
    assert not (plainly & ~fits).any()
    assert (fits & ~plainly).any()
    for row in range(0, len(space.layouts), 3):
        plain = [each for each in space.variants(row) if each.virtual_stages == 1]
        assert plain or plainly[row] == fits[row]
        for variant in plain:
            case = stage_problem(space, coefficients, row, variant)
            assert plainly[row] or first_plan(case)[1] is None
    chunked = replace(space, pins=parse_pins({"virtual_stages": "2.."}), _variants={})
    assert (row_fits(chunked, coefficients, plainly=True) == row_fits(chunked, coefficients)).all()
    assert row_fits(chunked, coefficients).any()


@pytest.mark.parametrize(
    ("pp", "vpp", "m"), [(2, 2, 2), (2, 3, 8), (4, 2, 4), (4, 4, 16), (8, 3, 24), (3, 2, 9)]
)
def test_interleaved_ranks_hold_what_1f1b_holds(pp: int, vpp: int, m: int) -> None:
    """Some interleaved vector has at least min(m, S - s) micro-batches in every chunk."""
    for s, vectors in enumerate(in_flight("interleaved_1f1b", pp, vpp, m)):
        assert max(min(vector) for vector in vectors) >= min(m, pp - s)


@pytest.mark.parametrize(
    ("schedule", "vpp", "expected"),
    [
        pytest.param("gpipe", 1, [8, 8, 8, 8], id="gpipe: all 8"),
        pytest.param("1f1b", 1, [4, 3, 2, 1], id="1f1b: S - s"),
        pytest.param("zb_h1", 1, [4, 4, 4, 4], id="zb_h1: S, as 1f1b's first"),
        pytest.param("interleaved_1f1b", 2, [11, 9, 7, 5], id="2 (S - s - 1) + S + 1"),
        pytest.param("zb_v", 2, [8, 8, 8, 8], id="zb_v: 2 S chunks"),
        pytest.param("dualpipe_v", 2, [9, 9, 9, 9], id="dualpipe_v: 2 S + 1 chunks"),
    ],
)
def test_most_micro_batches_in_flight(schedule: str, vpp: int, expected: list[int]) -> None:
    """Four ranks, eight micro-batches (sixteen for dualpipe_v): the fullest moment of each rank."""
    m = 16 if schedule == "dualpipe_v" else 8
    ranks = in_flight(schedule, 4, vpp, m)  # type: ignore[arg-type]
    assert [max(map(sum, vectors)) for vectors in ranks] == expected


def test_rows_that_cannot_be_had_cost_everything():
    """0 x infinity is infinity here: a single micro-batch does not make a plan fit."""
    found = weighed(np.array([0.0, 2.0, 0.0]), np.array([math.inf, 3.0, 5.0]))
    assert list(found) == [math.inf, 6.0, 0.0]
