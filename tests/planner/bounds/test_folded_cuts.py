"""Bounds of V shapes by whole layers of their chunks, against every cut and mix of small models and
against steps of random passes.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
from nightly import cases
from played_layouts import Played, played

from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.lines import enough, folded_lines
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.cuts import folded_paths
from meshplan.planner.cuts.folded_paths import FoldedPaths
from meshplan.planner.cuts.free_cut_program import FreeCutProgram, best_weights
from meshplan.planner.cuts.whole_cuts import WholeCuts

CLOSE = 1 + 1e-9
SHAPES = (
    ("zb_v", 2, 1), ("zb_v", 2, 2), ("zb_v", 3, 2), ("zb_v", 3, 7), ("zb_v", 4, 16),
    ("zb_v", 5, 43), ("dualpipe_v", 2, 4), ("dualpipe_v", 3, 7), ("dualpipe_v", 4, 16),
    ("dualpipe_v", 5, 43),
)  # fmt: skip


def folded(seeds: int) -> Iterator[tuple[int, Played]]:
    """Layouts of V shapes of some questions."""
    for seed in range(seeds):
        for each in played(seed, V_SHAPED):
            yield seed, each


def test_no_cut_of_a_v_shape_is_faster_than_its_bounds() -> None:
    """By chains rank after rank, by the best weights of chains over the paths, and by all paths one
    after the other; below several limits. Some are close.
    """
    close, refused, nearest = 0, 0, 0.0
    for seed, (cuts_of, least_s, layers) in folded(cases(10, nightly=150)):
        reached_s = least_s if math.isfinite(least_s) else 100.0
        for limit_s in (reached_s * 0.97, reached_s * (1 + 1e-7), reached_s * 1.3):
            program = FreeCutProgram(cuts_of, limit_s, first_lines(*shape_of(cuts_of.same)))
            answers = list(program.answers(limit_s))
            most, ways = cuts_of.most_layers(np.full(1, limit_s)), FoldedCuts(cuts_of)
            found_s = ways.bounds_s(limit_s, most)[0]
            assert found_s <= min(least_s, limit_s) * CLOSE, seed
            by = answers[-1].by
            if by is None or found_s >= limit_s:
                refused += found_s >= limit_s
                continue
            mean = cuts_of.mean(program.lines[: len(by.lines)], by, limit_s)
            both_s = ways.bounds_s(limit_s, most, [mean])[0]
            assert found_s <= both_s * CLOSE
            assert both_s <= min(least_s, limit_s) * CLOSE, seed
            if both_s >= limit_s:
                continue
            paths = FoldedPaths(program, ways, mean)
            game_s, best = paths.game(limit_s, 10)
            assert game_s <= min(least_s, limit_s) * CLOSE, seed
            edges = paths.below(paths.sums(best), limit_s, 10_000)
            assert edges is not None
            every = paths.layers(edges)
            if layers and least_s < limit_s:
                assert list(layers) in every.tolist(), seed
            if not len(every):
                continue
            last_s = list(WholeCuts(program, every, [mean, best]).bounds_s(limit_s))[-1]
            assert last_s <= min(least_s, limit_s) * CLOSE, seed
            close += last_s >= least_s * 0.999
            nearest = max(nearest, found_s / least_s)
    assert close > 1
    assert refused > 3
    assert 0.97 < nearest <= CLOSE


@pytest.mark.parametrize(("together", "work"), [(1, 3 + 2), (6, 2 * 3)])
def test_a_way_is_kept_that_leaves_room_in_every_mean(
    together: int, work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three ways the first mean, 1 + 1, 2 + 1 and 2 + 5, lets go of the last; the second one,
    1 + 3, 2 + 3 and 2 + 1, of the one between. One mean at a time, or both at once.
    """
    monkeypatch.setattr(folded_paths, "TOGETHER", together)
    paths = FoldedPaths.__new__(FoldedPaths)
    paths.work = 0
    sums, least = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[1.0, 5.0], [3.0, 1.0]])
    before, way = paths._kept(
        np.array([0, 1, 1]), np.array([0, 0, 1]), sums, least, np.array([6.5, 4.5])
    )
    assert (before.tolist(), way.tolist(), paths.work) == ([0], [0], work)


def shape_of(same) -> tuple[str, int, int, int]:  # type: ignore[no-untyped-def]
    """What decides the order of actions."""
    return same.schedule, same.pp, same.vpp, int(same.m[0])


@pytest.mark.parametrize(("schedule", "pp", "m"), SHAPES)
def test_chains_through_a_rank_are_no_longer_than_the_step(schedule: str, pp: int, m: int) -> None:
    """Of passes that take random times; where all take about as long, some chain is the step or
    nearly so. No chain has a pass less often than never.
    """
    draw, nearest = random.Random(f"{schedule} {pp} {m}"), 0.0
    for spread in (0.1, 0.1, 3.0, 3.0, 3.0):
        times = np.exp([[draw.uniform(-spread, spread) for _ in range(3)] for _ in range(2 * pp)])
        send_s = draw.choice((0.0, 0.3))
        forward, input_grad, weight_grad = (tuple(each) for each in times.T.tolist())
        work = Work(forward, input_grad, weight_grad, send_s)
        step = longest_chain(schedule, pp, 2, m, work, [0.0] * pp)
        counts = np.array(step.counts, float).reshape(4, 2 * pp)
        often = np.stack([counts[0], counts[1] + counts[2], counts[1] + counts[3]], axis=1)
        step_s = (often * times).sum() + step.hops * send_s
        for line in chain.from_iterable(folded_lines(schedule, pp, m)):
            assert (line.often >= 0).all()
            found_s = (line.often * times).sum() + line.hops * send_s
            assert found_s <= step_s * CLOSE
            nearest = max(nearest, found_s / step_s)
    assert nearest > 0.95


@pytest.mark.parametrize(("schedule", "pp"), [("zb_v", 3), ("dualpipe_v", 4)])
def test_more_micro_batches_repeat_what_a_rank_does(schedule: str, pp: int) -> None:
    """Each micro-batch beyond enough of them adds one pass of each kind on both chunks of a rank,
    and nothing else, to every chain through it.
    """
    few = enough(pp, 1_000)
    ranks = zip(folded_lines(schedule, pp, few), folded_lines(schedule, pp, few + 5), strict=True)
    for rank, (some, more) in enumerate(ranks):
        own = np.zeros((2 * pp, 3))
        own[[rank, 2 * pp - 1 - rank]] = 5
        added = Counter(str(line.often + own) for line in some)
        assert not added - Counter(str(line.often) for line in more)


def test_the_best_weights_of_two_lines() -> None:
    """Of two cuts, by hand: with weights w and 1 - w the sums are 4 w + 1 - w and 1 w + 2 (1 - w),
    which are 7 / 4 at w = 1 / 4.
    """
    most_s, weights = best_weights(np.array([[4.0, 1.0], [1.0, 2.0]]))
    assert most_s == pytest.approx(1.75)
    assert weights == pytest.approx([0.25, 0.75])


def test_a_mean_of_no_seconds_lists_every_cut_below_the_limit() -> None:
    """As many as there are ways to lay bars between layers, where no limit, memory or chain takes
    any away.
    """
    asked = 0
    for _, (cuts_of, least_s, _layers) in folded(20):
        if not math.isfinite(least_s):
            continue
        endless, chunks = least_s * 1e3, cuts_of.same.chunks
        ways, program = FoldedCuts(cuts_of), FreeCutProgram(cuts_of, endless, ())
        room = cuts_of.room_kib
        cuts_of.room_kib = room + 2.0**50
        ways, count = FoldedCuts(cuts_of), len(cuts_of.same.pattern)
        most = np.full((1, cuts_of.same.pp), float(count))
        assert ways.bounds_s(endless, most)[0] < endless
        cuts_of.room_kib = room
        assert len(ways._known) == 1  # the terms of one rank at a time
        nothing = MeanOfRows(np.zeros((1, chunks, len(cuts_of.kinds))), np.zeros(1))
        paths = FoldedPaths(program, ways, nothing)
        edges = paths.below(paths.sums(nothing), endless, 100_000)
        assert edges is not None
        every = paths.layers(edges)
        free = int(count - cuts_of.fewest.sum())
        assert len(every) == math.comb(free + chunks - 1, chunks - 1)
        assert (every.sum(axis=1) == count).all()
        asked += 1
    assert asked > 3
