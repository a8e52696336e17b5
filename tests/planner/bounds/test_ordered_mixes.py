"""What a rank must recompute at least where its layers do so in the order of the stack."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.planner.bounds.ordered_mixes import OrderedMixes
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import (
    End,
    StageProblem,
    chunk_times_ns,
    evaluate,
    modes_of,
)

NO_END = End()
Problems = Callable[..., StageProblem]
Plans = Callable[[StageProblem], Iterator[tuple[Stage, ...]]]


def extra_ns(problem: StageProblem, stages: tuple[Stage, ...]) -> list[int]:
    """By rank, what recomputing adds to a micro-batch, each layer in its fastest mode else."""
    times = chunk_times_ns(problem, stages, [modes_of(stage) for stage in stages])
    fastest = [min(ns[mode] for mode in problem.modes) for ns in problem.layer_ns]
    at = 0
    for chunk, stage in enumerate(stages):
        kinds = problem.pattern[at : at + stage.layers]
        times[chunk] -= sum(fastest[kind] for kind in kinds) + problem.send_ns
        at += stage.layers
    times[0] -= problem.embedding.ns
    times[-1] -= problem.head.ns
    return [sum(times[chunk] for chunk in chunks) for chunks in problem.chunks_of_rank]


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(6))
def test_no_mix_that_fits_takes_less(seed: int, problem: Problems, every_plan: Plans) -> None:
    """Of every split: no plan that fits recomputes less on any rank; on some, something must."""
    case = problem(seed, 2, pp=2, m=4, modes=(0, 1, 2), cap_kib=3500)
    mixes, below = OrderedMixes(case), 0
    for stages in every_plan(case):
        if evaluate(case, stages) is not None:
            bound = mixes.work_ns(tuple(stage.layers for stage in stages))
            assert (bound <= np.array(extra_ns(case, stages)) + 1e-6).all()
            below += bool((bound > 0).any())

    assert below


def dear_then_cheap(cap_kib: int, head: End = NO_END) -> StageProblem:
    """A dear layer (a full replay takes 100 ns, frees 40 KiB) before a cheap one (10 ns, 40 KiB),
    on either rank.
    """
    return problem_of(
        pattern=(0, 1) * 2, schedule="interleaved_1f1b", pp=2, vpp=2, m=2, modes=(0, 2),
        layer_ns=((200, 200, 300), (200, 200, 210)), saved_kib=((50, 50, 10), (50, 50, 10)),
        state_kib=(0, 0), update_kib=(0, 0), step_ns=(0, 0), transient_kib=(0, 0, 0),
        embedding=NO_END, head=head, send_ns=0, fixed_kib=0, cap_kib=cap_kib, fixed_step_ns=0,
        passes_ns=Passes(1, 1, 1), splits=((2, 0, 0, 2),), empty_ends=True,
    )  # fmt: skip


def test_a_cheap_kind_behind_a_dear_one() -> None:
    """Room for 60 KiB of 2 x 50: 40 must go. By kind the cheap one does, 10 ns; in order it is the
    dear one, 100 ns, or a half of both: 110 x 40 / 80 = 55 ns.
    """
    mixes = OrderedMixes(dear_then_cheap(60))
    assert mixes._paid_ns([(1, 0, 2)], 0, 60.0) == pytest.approx(55.0)
    assert mixes._paid_ns([(1, 0, 2)], 0, 100.0) == 0.0
    assert mixes._paid_ns([(1, 0, 2)], 0, 19.0) == float("inf")


@pytest.mark.parametrize(
    ("cap_kib", "head", "expected_ns"),
    [
        pytest.param(200, NO_END, (0, 0), id="2 x 100 fit, and 1 x 100"),
        pytest.param(160, NO_END, (27.5, 0), id="40 of 2 x 80 must go: 110 x 40 / 160"),
        pytest.param(130, NO_END, (48.125, 0), id="70: 110 x 70 / 160"),
        pytest.param(130, End(0, 7, 0, 0, 40), (48.125, 23.375),
                     id="rank 1 holds 7 and 40 of the head: 17 of 80, 110 x 17 / 80"),
        pytest.param(30, NO_END, (np.inf, 96.25), id="2 x 20 do not fit; 70 of 80"),
    ],
)  # fmt: skip
def test_what_both_ranks_must_recompute(
    cap_kib: int, head: End, expected_ns: tuple[float, float]
) -> None:
    """Two micro-batches of the first chunk are held on rank 0, one of the last on rank 1."""
    found = OrderedMixes(dear_then_cheap(cap_kib, head)).work_ns((2, 0, 0, 2))
    assert found.tolist() == pytest.approx(expected_ns)
