"""No bound is above what it bounds: the proof of optimality rests on this."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from first_plans import Plans, least_ns

from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.bounds.memory_prices import least_work_ns
from meshplan.planner.bounds.split import Pairs
from meshplan.planner.problem.coefficients import COLUMNS, Coefficients
from meshplan.planner.problem.stage_problem import StageProblem, stage_problem
from meshplan.planner.search.rows.priced_space import Pricer, Question, price_space
from meshplan.planner.space.legal_layouts import Space, enumerate_space
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.first_plan import first_plan

CLOSE = 1 + 1e-9
Problems = Callable[..., StageProblem]


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


def weighing(
    weights: Sequence[float], asked: Question, price: Pricer
) -> tuple[Space, Coefficients]:
    """Its rows, where a layer of each kind weighs such a part of what a GPU holds, and nothing
    else weighs anything.
    """
    space = enumerate_space(
        asked.model, asked.training, asked.gpus, asked.engine, asked.pins,
        asked.cluster.gpus_per_node,
    )  # fmt: skip
    prices = price_space(asked, space, price)
    bare = {name: np.zeros_like(getattr(prices, name)) for name in COLUMNS if name.endswith("_kib")}
    bare["layer_state_kib"] += np.array([int(each * prices.cap_kib) for each in weights])
    return space, replace(prices, **bare)


@pytest.mark.parametrize(
    ("pp", "pattern", "weights", "fits"),
    [
        pytest.param(1, (0, 0, 0, 1, 1), (0.15, 0.27), True, id="0.45 and 0.54 of one GPU"),
        pytest.param(1, (0, 0, 0, 1, 1), (0.15, 0.28), False, id="0.45 and 0.56 of one GPU"),
        pytest.param(2, (0, 1, 2, 2), (0.1, 0.6, 0.5), True, id="1, and 2 together, of 2 GPUs"),
        pytest.param(2, (0, 1, 2, 2), (0.1, 0.6, 0.51), False, id="3 of which no 2 fit, of 2 GPUs"),
    ],
)
def test_kinds_that_fit_alone_need_room_together(
    pp: int,
    pattern: tuple[int, ...],
    weights: tuple[float, ...],
    fits: bool,
    question: Callable[..., Question],
    pricer: Callable[[int, float, int], Pricer],
) -> None:
    """Each kind alone has room, and so have all layers if they weigh what the lightest does."""
    asked = question(pattern, pp, 8)
    pins = parse_pins({"pipeline_parallel": str(pp)})
    space, prices = weighing(weights, replace(asked, pins=pins), pricer(5, 5e7, len(weights)))
    assert (row_fits(space, prices) == fits).all()


def test_a_row_of_several_kinds_that_does_not_fit_has_no_plan(
    question: Callable[..., Question],
    pricer: Callable[[int, float, int], Pricer],
    every_plan: Plans,
) -> None:
    """Three kinds of layers that weigh 0.7 to 1.2 of two GPUs, and keep something: where a row is
    refused no cut and no mix fits, and some that are not refused have a plan.
    """
    found = Counter[tuple[bool, bool]]()
    for seed in range(24):
        draw = random.Random(seed)
        pattern = (2, 0, 1, *draw.choices(range(3), k=2))
        asked = question(pattern, 2, 2, schedules=("1f1b",), zero_stages=(0,))
        weights = np.array([draw.uniform(0.1, 1) for _ in range(3)])
        weights *= 2 * draw.uniform(0.7, 1.2) / weights[list(pattern)].sum()
        space, prices = weighing(weights.tolist(), asked, pricer(seed, 5e7, 3))
        kept = [[draw.randrange(prices.cap_kib // 40) for _ in range(3)] for _ in range(3)]
        prices = replace(prices, layer_saved_kib=prices.layer_saved_kib + kept)
        row = int(np.argmax(space.layouts.pipeline_parallel))
        fits = bool(row_fits(space, prices)[row])
        for variant in space.variants(row):
            plan = least_ns(stage_problem(space, prices, row, variant), every_plan)
            assert fits or plan is None, seed
            found[fits, plan is not None] += 1
    assert min(found[False, False], found[True, True]) > 4


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
