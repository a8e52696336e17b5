"""What whole layers of a rank must recompute at least to fit, by hand."""

import math

import numpy as np
import pytest
from stage_problems import problem_of

from meshplan.planner.bounds.packing import layer_overheads
from meshplan.planner.bounds.split import BoundedLayouts
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StageProblem


def two_ranks(saved_kib: tuple[int, int, int], cap_kib: int, partly_ns: int = 0) -> StageProblem:
    """Four layers, any of which recompute in full, or in part where that takes `partly_ns`."""
    return problem_of(
        pattern=(0,) * 4, schedule="1f1b", pp=2, vpp=1, m=4,
        modes=(0, 2) if not partly_ns else (0, 1, 2), splits=None,
        layer_ns=((100, partly_ns, 130),), saved_kib=(saved_kib,), state_kib=(20,),
        update_kib=(0,), step_ns=(0,), transient_kib=(7, 6, 9), embedding=End(), head=End(),
        send_ns=0, fixed_kib=3, cap_kib=cap_kib, fixed_step_ns=0, passes_ns=Passes(1, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("saved_kib", "cap_kib", "expected"),
    [
        pytest.param(50, 250, [0, 0], id="3 + 7 + 2 x (20 + 2 x 50) = 250"),
        pytest.param(50, 249, [0.375, 0], id="1 KiB of 2 micro-batches at 30 ns for 40 KiB"),
        pytest.param(50, 150, [37.5, 0], id="100 KiB of them"),
        pytest.param(50, 89, [math.inf, 45.75], id="161 KiB of 160 at most; 61 of 80"),
        pytest.param(10, 90, [0, 0], id="nothing to save, 3 + 7 + 2 x (20 + 2 x 10)"),
        pytest.param(10, 89, [math.inf, 0], id="which full recompute keeps too"),
        pytest.param(0, 50, [0, 0], id="no room, and nothing that needs any: 3 + 7 + 2 x 20"),
        pytest.param(0, 49, [math.inf, math.inf], id="less than their weights"),
    ],
)
def test_two_layers_on_each_of_two_ranks(
    saved_kib: int, cap_kib: int, expected: list[float]
) -> None:
    """A layer keeps 10 KiB of a micro-batch recomputed in full, which takes 30 ns; its states are
    20 KiB. Of 1F1B's ranks the first holds two micro-batches.
    """
    problem = two_ranks((saved_kib, 40, min(10, saved_kib)), cap_kib)
    found = layer_overheads(problem.alone, [0], np.array([4]), np.array([2]))
    assert found.ravel().tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("saved_kib", "partly_ns", "segments"),
    [
        pytest.param(
            (50, 30, 10), 104, [(4, 20 / 4), (26, 20 / 26)], id="20 KiB in 4 ns, 20 in 26"
        ),
        pytest.param((50, 40, 10), 120, [(30, 40 / 30)], id="10 KiB in 20 ns is no corner"),
    ],
)
def test_what_recomputing_frees_for_each_nanosecond(
    saved_kib: tuple[int, int, int], partly_ns: int, segments: list[tuple[float, float]]
) -> None:
    """The hull of nothing, some and all of 40 KiB for 30 ns: so many ns at so many KiB each."""
    found = BoundedLayouts(two_ranks(saved_kib, 1000, partly_ns).alone).hulls[0]
    numbers = [(float(ns[0]), float(kib[0])) for ns, kib in found]
    assert numbers == [pytest.approx(each) for each in segments]


@pytest.mark.parametrize(
    ("cap_kib", "expected"),
    [
        pytest.param(90, [0, 0], id="3 + 7 + 2 x (20 + 2 x 30) = 170 less 4 x 20"),
        pytest.param(89, [math.inf, 0], id="1 KiB more; 3 + 7 + 2 x (20 + 30) - 2 x 20 = 70"),
        pytest.param(69, [math.inf, math.inf], id="and 1 KiB less than 70"),
    ],
)
def test_layers_of_two_kinds_are_as_light_as_the_lighter_one(
    cap_kib: int, expected: list[float]
) -> None:
    """One keeps 50 KiB of a micro-batch or 10, the other 30 and saves nothing; states are 20 and 40
    KiB. Which of them recompute is not known, so that nothing is counted for it.
    """
    problem = problem_of(
        pattern=(0, 1) * 2, schedule="1f1b", pp=2, vpp=1, m=4, modes=(0, 2), splits=None,
        layer_ns=((100, 0, 130), (90, 0, 95)), saved_kib=((50, 50, 10), (30, 30, 30)),
        state_kib=(20, 40), update_kib=(0, 0), step_ns=(0, 0), transient_kib=(7, 6, 9),
        embedding=End(), head=End(), send_ns=0, fixed_kib=3, cap_kib=cap_kib, fixed_step_ns=0,
        passes_ns=Passes(1, 1, 1),
    )  # fmt: skip
    found = layer_overheads(problem.alone, [0, 1], np.array([4]), np.array([2]))
    assert found.ravel().tolist() == expected
