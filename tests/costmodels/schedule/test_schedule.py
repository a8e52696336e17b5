"""Schedules: published bubbles, golden grids of actions, and the laws that every timeline obeys.

Regenerate the grids with `python tests/costmodels/schedule/test_schedule.py` after a change that is
meant.
"""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action, Timeline, Work
from meshplan.costmodels.schedule.held_micro_batches import _moments, fullest_moments, moments
from meshplan.costmodels.schedule.in_flight import (
    _counted,
    _rank_vectors,
    in_flight,
    rank_of_chunk,
)
from meshplan.costmodels.schedule.orders import V_SHAPED, numbered_order, order
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.schedule.simulation import end_s, play
from meshplan.planner.problem.pipeline_shape import apart

GRIDS = Path(__file__).parents[2] / "data" / "schedules"
GOLDEN: tuple[tuple[Schedule, int, int, int], ...] = (
    ("gpipe", 4, 1, 6), ("1f1b", 4, 1, 6), ("interleaved_1f1b", 2, 2, 4), ("zb_h1", 4, 1, 6),
    ("zb_v", 3, 2, 6), ("dualpipe_v", 2, 2, 5),
)  # fmt: skip
ONLY_SPLIT = {"zb_h1", "zb_v"}  # whose backward is always I and W
CHUNKS = {"interleaved_1f1b": 2, "zb_v": 2, "dualpipe_v": 2}
EVEN = settings(max_examples=60)


def even(chunks: int, f: float = 1.0, i: float = 1.0, w: float = 1.0, send: float = 0.0) -> Work:
    return Work((f,) * chunks, (i,) * chunks, (w,) * chunks, send)


def draw_grid(timeline: Timeline) -> str:
    """One line per rank: actions in order, dots for whole units of waiting."""
    lines = []
    for rank, actions in enumerate(timeline.actions):
        cells, free = [], 0.0
        for action, start, end in actions:
            cells += ["."] * round(start - free)
            cells.append(str(action))
            free = end
        lines.append(f"{rank}: " + " ".join(cells))
    return "\n".join(lines) + "\n"


def golden_grid(schedule: Schedule, pp: int, vpp: int, m: int) -> str:
    return draw_grid(play(schedule, pp, vpp, m, even(pp * vpp)))


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), GOLDEN)
def test_golden_grid(schedule: Schedule, pp: int, vpp: int, m: int):
    """Who does what when, with every action a unit long (B two), is as drawn in the file."""
    drawn = (GRIDS / f"{schedule}.txt").read_text(encoding="utf-8")
    assert golden_grid(schedule, pp, vpp, m) == drawn


@pytest.mark.parametrize(("pp", "m"), [(1, 4), (2, 1), (4, 4), (4, 32), (8, 20), (16, 5)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_bubble_of_1f1b(schedule: Schedule, pp: int, m: int):
    """Equal stages idle (p-1) / (p-1+m) of the time (2006.09503); GPipe takes the same time."""
    makespan = play(schedule, pp, 1, m, even(pp)).makespan_s
    assert 1 - 3 * m / makespan == pytest.approx((pp - 1) / (pp - 1 + m))


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (8, 4, 32)])
def test_bubble_of_interleaved(pp: int, vpp: int, m: int):
    """Over the ideal time it is (p-1) / (v m): v times less (2104.04473, section 2.2)."""
    makespan = play("interleaved_1f1b", pp, vpp, m, even(pp * vpp)).makespan_s
    ideal = 3 * vpp * m
    assert makespan / ideal - 1 == pytest.approx((pp - 1) / (vpp * m))


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 16), (4, 40), (16, 64)])
@pytest.mark.parametrize(
    ("f", "i", "w"),
    [
        pytest.param(1.0, 1.0, 1.0, id="F = I = W"),
        pytest.param(1.0, 1.2, 0.8, id="I is longer than W"),
    ],
)
def test_bubble_of_zb_h1(pp: int, m: int, f: float, i: float, w: float):
    """ZB-H1 idles (p-1)(F + I - W): 2401.10241, table 1."""
    makespan = play("zb_h1", pp, 1, m, even(pp, f, i, w)).makespan_s
    bubble = makespan - m * (f + i + w)
    assert bubble == pytest.approx((pp - 1) * (f + i - w))
    assert bubble < play("1f1b", pp, 1, m, even(pp, f, i, w)).makespan_s - m * (f + i + w)


@pytest.mark.parametrize(("pp", "m"), [(2, 8), (4, 16), (8, 32)])
def test_v_shapes_hide_more_than_zb_h1(pp: int, m: int):
    """With F = I = W the V schedules wait for the first micro-batch to return, and hardly more."""
    for schedule in ("zb_v", "dualpipe_v"):
        makespan = play(schedule, pp, 2, m, even(2 * pp, 0.5, 0.5, 0.5)).makespan_s
        assert makespan <= play("zb_h1", pp, 1, m, even(pp)).makespan_s
        assert makespan >= 3 * m / 2


@pytest.mark.parametrize(("pp", "m"), [(4, 32), (8, 60), (16, 120)])
@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        pytest.param("zb_v", 1.3, id="1 + 1.2 - 0.9 for each rank but one"),
        pytest.param("dualpipe_v", 1.5, id="2 x 1.2 - 0.9, of DualPipe's pairs one by one"),
    ],
)  # fmt: skip
def test_v_shapes_bear_unequal_passes(schedule: Schedule, bubble: float, pp: int, m: int):
    """F 1, I 1.2, W 0.9: a bubble of ranks, not one of each micro-batch."""
    makespan = play(schedule, pp, 2, m, even(2 * pp, 1.0, 1.2, 0.9)).makespan_s
    assert makespan - 2 * m * 3.1 <= bubble * (pp - 1) + 1e-9


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Schedule, int, int, int, Work]:
    """A schedule on uneven stages."""
    schedule = draw(st.sampled_from([name for name, *_ in GOLDEN]))
    pp, vpp = draw(st.sampled_from((2, 3, 4))), CHUNKS.get(schedule, 1)
    m = draw(st.integers(2 * pp if schedule == "dualpipe_v" else 1, 12))
    m = -(-m // pp) * pp if schedule == "interleaved_1f1b" else m
    times = st.lists(st.floats(0.1, 3), min_size=pp * vpp, max_size=pp * vpp).map(tuple)
    send = draw(st.sampled_from((0.0, 0.3)))
    return schedule, pp, vpp, m, Work(draw(times), draw(times), draw(times), send)


def played_one_by_one(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Timeline:
    """A schedule of fixed order, each rank doing what it can until it waits for another."""
    orders, last = [order(schedule, pp, vpp, m, s) for s in range(pp)], pp * vpp - 1
    holder = [rank_of_chunk(schedule, pp, j) for j in range(pp * vpp)]
    arrived: dict[tuple[int, str, int], float] = {}
    played: list[list[tuple[Action, float, float]]] = [[] for _ in orders]
    while any(len(done) < len(actions) for done, actions in zip(played, orders, strict=True)):
        for done, actions in zip(played, orders, strict=True):
            for action in actions[len(done) :]:
                stage, kind, i = action
                backward = (stage + 1, "I", i) if stage < last else (stage, "F", i)
                source = (stage - 1, "F", i) if kind == "F" else backward
                if kind == "W" or (kind == "F" and stage == 0):
                    ready = 0.0
                elif source in arrived:
                    near = holder[source[0]] == holder[stage]  # nothing is sent
                    ready = arrived[source] + (0.0 if near else work.send_s)
                else:
                    break
                start = max(done[-1][2] if done else 0.0, ready)
                end = start + work.seconds(action)
                arrived[stage, "I" if kind == "B" else kind, i] = end
                done.append((action, start, end))
    return Timeline(tuple(map(tuple, played)))


@pytest.mark.parametrize(
    ("schedule", "vpp", "pp"),
    [(*each, pp) for each in [("1f1b", 1), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2),
                              ("interleaved_1f1b", 3)] for pp in (2, 3, 5, 8)]
    + [("interleaved_1f1b", 30, pp) for pp in (2, 3, 5)],
)  # fmt: skip
def test_long_runs_hold_no_more(schedule: Schedule, vpp: int, pp: int):
    """What is counted of a few micro-batches is what a long run holds. Of 30 chunks what a rank
    holds is no 64-bit number.
    """
    for m in (2 * pp, 2 * pp + 1, 3 * pp - 1, 4 * pp + 1, 6 * pp + 2):
        assert in_flight(schedule, pp, vpp, m) == tuple(
            _rank_vectors(schedule, pp, vpp, m, rank) for rank in range(pp)
        )


@pytest.mark.parametrize("pp", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("1f1b", 1), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2), ("interleaved_1f1b", 3)],
)
def test_long_runs_have_no_other_moments(schedule: Schedule, vpp: int, pp: int):
    """Those of a few micro-batches are all there are, and where weight gradients are late it is
    among them what a V-shaped pipeline's covers are chosen of.
    """
    for m in (2 * pp, 2 * pp + 1, 2 * pp + 2, 4 * pp + 1, 6 * pp + 2):
        whole = _moments(schedule, pp, vpp, m)
        assert moments(schedule, pp, vpp, m) == whole


@pytest.mark.parametrize("pp", [2, 3, 5, 8])
@pytest.mark.parametrize("schedule", sorted(V_SHAPED))
def test_no_moment_of_a_long_run_is_fuller_than_the_covers(schedule: Schedule, pp: int):
    """The last three covers are the moments with the largest sum of micro-batches that await their
    weight gradient, with those that await their backward, and with half of these.
    """
    for m in (2 * pp, 3 * pp + 1, 6 * pp + 2):
        held, late = (each[-3:].sum(axis=2) for each in apart(schedule, pp, 2, m))
        for rank, every in enumerate(_moments(schedule, pp, 2, m)):
            sums = [(sum(each.held), sum(each.deferred)) for each in every]
            for at, (a, b) in enumerate(((0, 1), (1, 1), (1, 2))):
                largest = max(a * h + b * w for h, w in sums)
                assert a * held[at, rank] + b * late[at, rank] >= largest


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_what_one_chunk_holds_is_what_is_counted_along_its_order(schedule: Schedule):
    """The formulas, and the most that a rank holds after any of its actions."""
    for pp, m in product(range(1, 7), range(1, 15)):
        for rank in range(pp):
            counted = _counted(numbered_order(schedule, pp, 1, m, rank) // m, pp, 1)
            assert _rank_vectors(schedule, pp, 1, m, rank) == ((counted.max(),),)


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), [*GOLDEN, ("zb_v", 4, 2, 20)])
def test_the_fullest_moments_are_as_full_as_any(schedule: Schedule, pp: int, vpp: int, m: int):
    """Whatever a micro-batch takes in each chunk, of each action on each rank."""
    sizes, fewer = np.random.default_rng(1).random((20, 2 * vpp)), 0
    for every, fullest in zip(
        moments(schedule, pp, vpp, m), fullest_moments(schedule, pp, vpp, m), strict=True
    ):
        kept = fullest.each
        assert set(kept) <= every
        fewer += len(kept) < len(every)
        for action in {moment[:4] for moment in every}:
            most = [
                np.max([
                    sizes @ (*each.held, *each.deferred) for each in some if each[:4] == action
                ], axis=0)
                for some in (every, kept)
            ]  # fmt: skip
            assert most[0] == pytest.approx(most[1], rel=1e-12)
    assert fewer


@EVEN
@given(pipeline=pipelines())
def test_written_out_orders_play_as_one_by_one(pipeline):
    """The recurrence over places gives the very floats of playing action by action."""
    expected = played_one_by_one(*pipeline)
    assert play(*pipeline) == expected
    schedule, pp, vpp, m, work = pipeline
    assert program(schedule, pp, vpp, m).end_s(work) == expected.end_s


def test_a_message_to_oneself_takes_no_time():
    """Two ranks, one micro-batch: there and back are two messages, the turn is none."""
    assert play("1f1b", 2, 1, 1, even(2, send=0.25)).makespan_s == 2 * (1 + 2) + 2 * 0.25
    assert play("zb_v", 1, 2, 1, even(2, send=0.25)).makespan_s == 2 * 3


@EVEN
@given(pipeline=pipelines())
def test_every_action_once_and_no_two_at_once(pipeline):
    """Each chunk runs F, and B or I and W, of each micro-batch once, one action at a time."""
    schedule, pp, vpp, m, work = pipeline
    timeline = play(schedule, pp, vpp, m, work)
    for rank, actions in enumerate(timeline.actions):
        held = [j for j in range(pp * vpp) if rank_of_chunk(schedule, pp, j) == rank]
        done = [tuple(action) for action, *_ in actions]
        whole = {(j, i) for j, kind, i in done if kind == "B"}
        assert not whole or schedule not in ONLY_SPLIT
        kinds = {(j, i): "FB" if (j, i) in whole else "FIW" for j in held for i in range(m)}
        expected = [(j, kind, i) for (j, i), both in kinds.items() for kind in both]
        assert sorted(done) == sorted(expected)
        assert all(a[2] <= b[1] + 1e-9 for a, b in pairwise(actions))
        assert all(end - start == pytest.approx(work.seconds(a)) for a, start, end in actions)


@EVEN
@given(pipeline=pipelines())
def test_actions_wait_for_their_input(pipeline):
    """F after the stage before, B or I after the one behind, each plus the send; W after its I."""
    schedule, pp, vpp, m, work = pipeline
    spans = {
        tuple(action): (start, end)
        for actions in play(schedule, pp, vpp, m, work).actions
        for action, start, end in actions
    }
    for (stage, kind, i), (start, _) in spans.items():
        behind = next(
            (each for each in ((stage + 1, "I", i), (stage + 1, "B", i)) if each in spans),
            (stage, "F", i),
        )
        before = {
            "F": (stage - 1, "F", i) if stage else None, "B": behind, "I": behind,
            "W": (stage, "I", i),
        }[kind]  # fmt: skip
        ranks = {rank_of_chunk(schedule, pp, j) for j in (stage, before[0] if before else stage)}
        sent = work.send_s if len(ranks) > 1 else 0.0
        assert before is None or start >= spans[before][1] + sent - 1e-9


@EVEN
@given(pipeline=pipelines())
def test_no_rank_holds_more_than_in_flight_says(pipeline):
    """Micro-batches between F and the end of B (or W), chunks together, stay within the vectors."""
    schedule, pp, vpp, m, work = pipeline
    vectors = in_flight(schedule, pp, vpp, m)
    for rank, actions in enumerate(play(schedule, pp, vpp, m, work).actions):
        most, held = max(map(sum, vectors[rank])), 0
        for action, *_ in actions:
            held += (action.kind == "F") - (action.kind in "BW")
            assert held <= most


@EVEN
@given(pipeline=pipelines())
def test_no_schedule_beats_its_slowest_rank(pipeline):
    """A step lasts at least its busiest rank's work, and one micro-batch's way out and back."""
    schedule, pp, vpp, m, work = pipeline
    makespan = play(schedule, pp, vpp, m, work).makespan_s
    chunks = range(pp * vpp)
    each = [work.forward_s[j] + work.input_grad_s[j] + work.weight_grad_s[j] for j in chunks]
    busy = [sum(each[j] for j in chunks if rank_of_chunk(schedule, pp, j) == s) for s in range(pp)]
    assert makespan >= m * max(busy) - 1e-9
    assert makespan >= sum(work.forward_s) + sum(work.input_grad_s) - 1e-9


@settings(max_examples=40, deadline=None)
@given(data=st.data(), pp=st.sampled_from((1, 2, 3, 4)), more=st.integers(0, 60))
@pytest.mark.parametrize("schedule", [name for name, *_ in GOLDEN])
def test_long_steps_are_what_playing_all_of_them_gives(schedule: Schedule, data, pp, more):
    """`end_s` leaps over what repeats, and every rank ends when playing every action says."""
    vpp, m = CHUNKS.get(schedule, 1), 5 * pp + more
    m -= m % pp if schedule == "interleaved_1f1b" else 0
    each = data.draw(st.sampled_from((st.floats(1, 1.5), st.floats(1, 1.001), st.just(1.0))))
    times = st.lists(each, min_size=pp * vpp, max_size=pp * vpp).map(tuple)
    work = Work(data.draw(times), data.draw(times), data.draw(times), 0.05)
    played = play(schedule, pp, vpp, m, work).end_s
    assert end_s(schedule, pp, vpp, m, work) == pytest.approx(played, rel=1e-9)


if __name__ == "__main__":
    for name, ranks, chunks, count in GOLDEN:
        text = golden_grid(name, ranks, chunks, count)
        (GRIDS / f"{name}.txt").write_text(text, encoding="utf-8")
