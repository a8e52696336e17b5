"""What an interleaved pipeline shows of the traffic of its weights and gradients."""

import math

import pytest

from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import play
from meshplan.costmodels.seconds.chunk_traffic import Beside, beside_chunks, exposed_beside_s
from meshplan.hardware_profiles.engines import load_engine

INTERLEAVED = "interleaved_1f1b"


@pytest.mark.parametrize(("beside", "overlap", "interference", "expected"), [
    pytest.param((True, INTERLEAVED, 8, 4, 16), 1.0, 0.0, 1.75, id="(8 - 1) / 4; 8 <= 8 x 1"),
    pytest.param((True, INTERLEAVED, 4, 4, 16), 1.0, 0.0, 4.75, id="7 / 4 + 3/4 (8 - 4)"),
    pytest.param((True, INTERLEAVED, 8, 4, 2), 1.0, 0.0, 6.25, id="7 / 4 + 3/4 (8 - 2): m < pp"),
    pytest.param((True, INTERLEAVED, 8, 4, 16), 0.5, 0.0, 4.75, id="(4 + 3) / 4 + 3/4 x 4"),
    pytest.param((True, INTERLEAVED, 8, 4, 16), 1.0, 1.0, 4.75, id="7 / 4 + 3/4 x 8 / 2"),
    pytest.param((True, "1f1b", 8, 1, 16), 1.0, 0.0, 7.0, id="one chunk: 8 - 1"),
    pytest.param((True, "zb_v", 8, 2, 16), 1.0, 0.0, 7.0, id="a V shape has no rounds"),
    pytest.param((False, INTERLEAVED, 8, 4, 16), 1.0, 0.0, 7.0, id="an engine that does not"),
])  # fmt: skip
def test_eight_seconds_beside_one(
    beside: tuple[bool, str, int, int, int], overlap: float, interference: float, expected: float
) -> None:
    """8 s of traffic, 1 s of computing in a pass of one micro-batch."""
    found = exposed_beside_s(8.0, 1.0, overlap, interference, beside_chunks(*beside))
    assert found == pytest.approx(expected)


def test_passes_bound_what_is_hidden() -> None:
    """No more than `passes` times the computing is hidden; of 3 chunks 1/3 + 2/3 x 4."""
    beside = beside_chunks(True, INTERLEAVED, 4, 3, 8)
    assert beside == Beside(1 / 3, 4)
    assert beside.passes == pytest.approx(3.0)
    for whole_s in (0.1, 1.0, 2.0, 3.5, 4.5, 20.0):
        hidden_s = whole_s - exposed_beside_s(whole_s, 1.0, 1.0, 0.0, beside)
        assert 0 <= hidden_s <= 3.0 + 1e-12
    assert hidden_s == pytest.approx(3.0)


@pytest.mark.parametrize(("pp", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (8, 4, 32), (4, 3, 2)])
@pytest.mark.parametrize("whole_s", [0.5, 2.0, 8.0, 30.0])
def test_gradients_behind_played_chunks(pp: int, v: int, m: int, whole_s: float) -> None:
    """Sent one chunk after the other as soon as its last backward runs, whatever else a rank does:
    the first rank, which never waits at the end, shows what the formula says; no rank shows more.
    """
    timeline = play(INTERLEAVED, pp, v, m, Work(*[(1.0,) * (pp * v)] * 3, 0.0))
    room_s = 2.0 * v
    expected = exposed_beside_s(
        whole_s, room_s, 1.0, 0.0, beside_chunks(True, INTERLEAVED, pp, v, m)
    )
    shown = [_shown_s(events, whole_s / v) for events in timeline.actions]
    assert max(shown) <= expected + 1e-9
    assert m < pp or shown[0] == pytest.approx(expected)


def _shown_s(events, chunk_s: float) -> float:
    """What is left of a rank's gradients after its last action. Layers of a chunk are sent while
    its last backward runs, so it is done no sooner than that.
    """
    last: dict[int, tuple[float, float]] = {}
    for action, begin_s, end_s in events:
        if action.kind == "B":
            last[action.stage] = begin_s, end_s
    free_s = -math.inf
    for begin_s, end_s in sorted(last.values()):
        free_s = max(max(free_s, begin_s) + chunk_s, end_s)
    return free_s - max(end_s for _, end_s in last.values())


@pytest.mark.parametrize(("engine", "expected"), [
    ("megatron", True), ("nemo", True), ("megatron-bridge", True), ("mlperf", True),
    ("native", True), ("torchtitan", False), ("generic", False),
])  # fmt: skip
def test_which_engines_work_so(engine: str, expected: bool) -> None:
    """Those whose code says so."""
    assert load_engine(engine).overlap.beside_chunks is expected
