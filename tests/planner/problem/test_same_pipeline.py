"""What bounds read off a pipeline: its ends, its fewest layers, its fastest modes; by hand."""

from typing import Any

import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Schedule
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.recompute_mixes import mixes
from meshplan.planner.problem.same_pipeline import end_kib
from meshplan.planner.problem.stage_problem import End, StageProblem

PASSES = Passes(1, 1, 1)


def pipeline(pp: int, schedule: Schedule = "1f1b", **changed: Any) -> StageProblem:
    """Four micro-batches on ranks of one chunk."""
    numbers: dict[str, Any] = {
        "pattern": (0,) * 4, "modes": (0, 1, 2), "splits": None, "layer_ns": ((100, 100, 130),),
        "saved_kib": ((50, 40, 10),), "state_kib": (20,), "update_kib": (0,), "step_ns": (0,),
        "transient_kib": (7, 6, 9), "embedding": End(), "head": End(), "send_ns": 0,
        "fixed_kib": 3, "cap_kib": 1000, "fixed_step_ns": 0, "passes_ns": PASSES,
    }  # fmt: skip
    return problem_of(schedule=schedule, pp=pp, vpp=1, m=4, **numbers | changed)


@pytest.mark.parametrize(
    ("modes", "kib"),
    [
        pytest.param((0, 1, 2), [65, 114], id="3 + 10 + 2 x 23 + 6, 3 + 11 + 90 + 10 of the head"),
        pytest.param((0, 2), [66, 114], id="of none and full recompute the least is 7"),
        pytest.param((2,), [68, 114], id="9 where all is replayed"),
    ],
)
def test_what_a_rank_without_layers_holds(modes: tuple[int, ...], kib: list[int]) -> None:
    """Of 1F1B's two ranks the first holds two micro-batches, the last one."""
    embedding, head = End(saved_kib=23, state_kib=10), End(0, 90, 11, 0, 10)
    problem = pipeline(2, modes=modes, embedding=embedding, head=head)
    assert end_kib(problem.alone).tolist() == [kib]


@pytest.mark.parametrize(
    ("ranks", "empty", "fewest"),
    [
        pytest.param(3, True, [0, 1, 0], id="the ends may hold none"),
        pytest.param(3, False, [1, 1, 1], id="no rank may"),
        pytest.param(1, True, [1], id="a rank alone holds all"),
    ],
)
def test_the_fewest_layers_of_a_stage(ranks: int, empty: bool, fewest: list[int]) -> None:
    """One, but for the ends of several where the engine counts these as layers."""
    problem = pipeline(ranks, empty_ends=empty)
    assert [problem.fewest_layers(stage) for stage in range(ranks)] == fewest


def test_the_fastest_mode_is_the_smallest_of_equals() -> None:
    """Nothing and the selective set take 100 ns, and the set keeps 40 KiB of 50."""
    ns, kib = pipeline(2).alone.fastest
    assert (ns.tolist(), kib.tolist()) == ([[100]], [[40]])


@pytest.mark.parametrize(
    ("passes", "least"),
    [
        pytest.param(Passes(20, 30, 40), 30, id="forward: 20 + 10"),
        pytest.param(Passes(40, 20, 50), 30, id="input gradient: 20 + 10"),
        pytest.param(Passes(20, 30, 15), 15, id="weight gradient: nothing is sent behind it"),
    ],
)
def test_half_of_the_transfers_are_forward(passes: Passes[int], least: int) -> None:
    """Two stages send 10 ns each; ZB-H1 is (2 - 2 + 2) / 2 of the least pass shorter."""
    problem = pipeline(2, "zb_h1", send_ns=10, passes_ns=passes)
    assert problem.form.constant_ns == -least


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        pytest.param((0,), [(0, 0, 5)], id="nothing"),
        pytest.param((2,), [(2, 0, 9)], id="all in full"),
        pytest.param((1, 2), [(0, 2, 7), (1, 1, 9), (2, 0, 9)], id="none that keeps all"),
        pytest.param((0, 1), [(0, 0, 5), (0, 1, 7), (0, 2, 7)], id="none in full"),
        pytest.param(
            (0, 1, 2), [(0, 0, 5), (0, 1, 7), (0, 2, 7), (1, 0, 9), (1, 1, 9), (2, 0, 9)],
            id="each of two layers in any",
        ),
    ],
)  # fmt: skip
def test_mixes_of_two_layers(modes: tuple[int, ...], expected: list[tuple[int, ...]]) -> None:
    """(full, selective, the largest transient present of 5, 7 and 9 KiB)."""
    found = zip(*(column.tolist() for column in mixes(2, modes, (5, 7, 9))), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize(
    ("modes", "transients", "kib"),
    [
        pytest.param((0, 1), (5, 0, 0), [5, 5, 0], id="5 while a layer keeps all"),
        pytest.param((1, 2), (5, 0, 9), [0, 9, 9], id="9 while one is replayed"),
        pytest.param((1, 2), (5, 7, 0), [7, 7, 0], id="7 while one is replayed in part"),
    ],
)
def test_a_mode_that_no_layer_has_holds_nothing(
    modes: tuple[int, ...], transients: tuple[int, int, int], kib: list[int]
) -> None:
    """Of two layers, the least recomputation first."""
    assert mixes(2, modes, transients)[2].tolist() == kib
