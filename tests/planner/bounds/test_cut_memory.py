"""One chunk per rank: whether any cut may fit (`planner.bounds.cut_memory`), against the path that
prices every stage, and by hand.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshplan.planner.bounds.cut_memory import some_cut_fits
from meshplan.planner.problem.stage_problem import End, StageProblem
from meshplan.planner.stages.path import Intervals, greedy_path

Problems = Callable[..., StageProblem]


def test_no_cut_fits_where_it_is_said_so(problem: Problems) -> None:
    """120 problems under five capacities: what is refused has no plan, and of the others nearly all
    have one.
    """
    refused = fitting = other = 0
    for seed in range(120):
        case = problem(seed, 1)
        for eighths in (3, 5, 6, 7, 8):
            prices = replace(case.prices, cap_kib=case.cap_kib * eighths // 8)
            some = replace(case, prices=prices)
            fits = greedy_path(Intervals(some))[1] is not None
            may = some_cut_fits(some)
            assert may or not fits, (seed, eighths)
            refused += not may
            fitting += fits
            other += may and not fits
    assert refused > 100
    assert fitting > 100
    assert other < 0.05 * refused


@pytest.mark.parametrize(
    ("cap_kib", "expected"),
    [
        pytest.param(285, True, id="2 and 2: 105 + 2 x (50 + 20), and 165 + 2 x (50 + 10) = 285"),
        pytest.param(284, False, id="the last has 1: the first needs 105 + 3 x (50 + 20) = 315"),
    ],
)
def test_a_cut_of_four_layers(cap_kib: int, expected: bool, problem: Problems) -> None:
    """Layers of 50 KiB that save 40 or, at a transient of 5 more, 10; a head of 60 KiB."""
    case = problem(
        0, 1, pattern=(0,) * 4, pp=2, schedule="1f1b", m=4, modes=(0, 2),
        layer_ns=((100, 100, 130),), saved_kib=((40, 40, 10),), state_kib=(50,), update_kib=(0,),
        step_ns=(0,), transient_kib=(0, 0, 5), embedding=End(), head=End(state_kib=60), send_ns=0,
        fixed_kib=100, cap_kib=cap_kib,
    )  # fmt: skip
    assert some_cut_fits(case) == expected


def test_a_stage_without_layers_pays_none_of_their_transients(problem: Problems) -> None:
    """All four layers on the first rank, 100 + 4 x 10 + 30, leave the head 100 + 150 = 250 KiB;
    one layer is none for the head.
    """
    case = problem(
        0, 1, pattern=(0,) * 4, pp=2, schedule="1f1b", m=4, modes=(0,), layer_ns=((1, 1, 1),),
        saved_kib=((0, 0, 0),), state_kib=(10,), update_kib=(0,), step_ns=(0,),
        transient_kib=(30, 30, 30), embedding=End(), head=End(state_kib=150), send_ns=0,
        fixed_kib=100, cap_kib=250,
    )  # fmt: skip
    assert not some_cut_fits(replace(case, empty_ends=False))
    assert some_cut_fits(replace(case, empty_ends=True))
    assert not some_cut_fits(replace(case, empty_ends=False, pattern=(0,)))
