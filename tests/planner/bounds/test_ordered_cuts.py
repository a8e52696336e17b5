"""Bounds by whole layers of chunks that pass in rows, against every cut and mix of small models."""

import math
import tracemalloc
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from nightly import cases, later
from played_layouts import ALL, Played, played

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.units import MIB
from meshplan.planner.bounds.first_chains import first_lines, linear_from
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.cuts import ordered_cuts
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.ordered_bound import ordered_bound_s
from meshplan.planner.cuts.ordered_cuts import OrderedCuts
from meshplan.planner.cuts.whole_cuts import WholeLayers

CLOSE = 1 + 1e-9
SHAPES = [
    ("interleaved_1f1b", 2, 3), ("interleaved_1f1b", 4, 2), ("interleaved_1f1b", 5, 4),
    ("zb_v", 2, 2), ("zb_v", 5, 2), ("dualpipe_v", 3, 2),
]  # fmt: skip


def in_rows(seeds: int) -> Iterator[tuple[int, Played]]:
    """Layouts of some questions whose ranks have their chunks one row after the other."""
    for seed in range(seeds):
        for each in played(seed, ALL - V_SHAPED):
            yield seed, each


def ordered_of(each: Played, limit_s: float) -> OrderedCuts | None:
    """Its cuts under the best weights of the chains that are known; None where they end it."""
    program = program_of(each, limit_s)
    by = program.answer().by
    return None if by is None else OrderedCuts(program, each.cuts.mean(program.lines, by, limit_s))


def program_of(each: Played, limit_s: float) -> FreeCutProgram:
    """That of a layout, with all chains that it learns."""
    program = FreeCutProgram(each.cuts, limit_s, ())
    program = FreeCutProgram(each.cuts, limit_s, first_lines(*program.shape))
    list(program.answers(limit_s))
    return program


def test_no_cut_in_rows_is_faster_than_its_bounds() -> None:
    """By the best weights of chains over the paths, and by all that is listed one after the other,
    below several limits; the fastest cut is listed where it is below. Some bounds are close.
    """
    close, refused = 0, 0
    for seed, each in in_rows(cases(6, nightly=150)):
        least_s, layers = each.least_s, each.layers
        reached_s = least_s if math.isfinite(least_s) else 100.0
        for limit_s in (reached_s * 0.97, reached_s * (1 + 1e-7), reached_s * 1.3):
            if (ordered := ordered_of(each, limit_s)) is None:
                continue
            game_s, best = ordered.game(limit_s, 10)
            assert game_s <= min(least_s, limit_s) * CLOSE, seed
            every = ordered.below([best], limit_s)
            if every is not None and layers and least_s < limit_s:
                assert list(layers) in every.tolist(), seed
            whole = WholeLayers(program_of(each, limit_s), limit_s, lambda _: False)
            found_s = ordered_bound_s(whole)
            assert found_s <= min(least_s, limit_s) * CLOSE, seed
            close += least_s * 0.999 <= found_s < limit_s
            refused += found_s >= limit_s
    assert close > 3
    assert refused > 3


def test_each_round_of_the_game_may_raise_its_bound() -> None:
    """The best weights against the paths of one round are tried in the next."""
    raised = 0
    for _, each in in_rows(3):
        games = [ordered_of(each, 2 * each.least_s) for _ in range(2)]
        if (one := games[0]) and (two := games[1]) and math.isfinite(each.least_s):
            raised += one.game(math.inf, 1)[0] * 1.0001 < two.game(math.inf, 10)[0]
    assert raised > 0


@later(held_by="test_no_cut_in_rows_is_faster_than_its_bounds")
def test_paths_of_one_kind_say_no_less_than_the_program_that_prices_them() -> None:
    """Whole layers on each chunk are fewer cuts than real numbers, and what ranks hold at most is
    priced alike.
    """
    asked, limited = 0, 0
    for seed, each in in_rows(cases(14, nightly=200)):
        if len(each.cuts.kinds) > 1 or not math.isfinite(each.least_s):
            continue
        program = program_of(each, each.least_s)
        answer = program.answer()
        if answer.by is None:
            continue
        mean = each.cuts.mean(program.lines, answer.by, each.least_s, program.most)
        shortest_s, _ = OrderedCuts(program, mean).shortest(mean)
        assert shortest_s >= answer.bound_s * (1 - 1e-9), seed
        asked += 1
        limited += bool((answer.by.most * program.most[0]).sum() > 1e-6)
    assert asked > 5
    assert limited > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("block", [2, ordered_cuts.BLOCK])
def test_a_mean_of_no_seconds_lists_every_cut_that_ranks_hold(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are ways to lay bars between layers, less those of which a rank would hold
    more than it has room for: counted one by one; however many are looked at together.
    """
    monkeypatch.setattr(ordered_cuts, "BLOCK", block)
    asked, left_out = 0, 0
    for _, each in in_rows(8):
        program = FreeCutProgram(each.cuts, 1e9, ())
        cuts, same = each.cuts, each.cuts.same
        nothing = MeanOfRows(np.zeros((1, same.chunks, len(cuts.kinds))), np.zeros(1))
        program.answer()
        found = OrderedCuts(program, nothing).below([nothing], 1e9)
        every = [cut for cut in all_cuts(len(same.pattern), cuts.fewest) if holds(each, cut)]
        assert found is not None
        assert sorted(found.tolist()) == sorted(every)
        asked += 1
        left_out += len(every) < len(list(all_cuts(len(same.pattern), cuts.fewest)))
    assert asked > 5
    assert left_out > 0


def test_of_too_many_cuts_few_are_written_down() -> None:
    """Of 400,000 begun cuts with several numbers of layers next each: 24 bytes of each of the
    187,500 that may be looked at, twice while they are joined, and what a block adds; 130 MiB were
    all of them.
    """
    several = (each for _, each in in_rows(20) if each.cuts.same.chunks > 2)
    program = FreeCutProgram(next(several).cuts, 1e9, ())
    cuts, many, lines = program.cuts, 400_000, ordered_cuts.FIRST
    program.answer()
    nothing = MeanOfRows(np.zeros((1, cuts.same.chunks, len(cuts.kinds))), np.zeros(1))
    ordered, (covers, ranks) = OrderedCuts(program, nothing), cuts.room_kib.shape[1:]
    begun = ordered_cuts._Begun(
        np.ones((many, 1), np.int16), np.ones(many, int), np.zeros((lines, many)),
        np.full((covers, ranks, many), -1e15),
    )  # fmt: skip
    places = np.zeros((lines, len(cuts.same.pattern) + 1))
    assert len(ordered._held(1)) >= 2
    tracemalloc.start()
    assert ordered._longer(begun, 1, places, places + math.inf) is None
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 32 * MIB


def all_cuts(layers: int, fewest: np.ndarray) -> Iterator[list[int]]:
    """All cuts of layers into chunks that hold at least the `fewest`."""
    least = fewest.astype(int)
    spare, chunks = layers - int(least.sum()), len(least)
    for bars in combinations(range(spare + chunks - 1), chunks - 1):
        ends = [-1, *bars, spare + chunks - 1]
        yield [b - a - 1 + n for a, b, n in zip(ends, ends[1:], least.tolist(), strict=False)]


def holds(each: Played, cut: list[int]) -> bool:
    """Whether each rank has room under each cover for its layers in the modes that keep least."""
    cuts, end = each.cuts, 0
    held, late = cuts.held()
    used = np.zeros(cuts.room_kib.shape[1:])
    for chunk, count in enumerate(cut):
        for layer in range(end, end + count):
            kind = cuts.kinds.index(cuts.same.pattern[layer])
            saved = cuts.saved_kib[0, kind][cuts.runs[0, kind]]
            for cover in range(len(used)):
                kept = held[cover, chunk] * saved + late[cover, chunk] * cuts.deferred_kib[0, kind]
                used[cover, cuts.rank_of[chunk]] += kept.min() + cuts.state_kib[0, kind]
        end += count
    return bool((used <= cuts.room_kib[0] + 1.0).all())


@pytest.mark.parametrize(("schedule", "pp", "vpp"), SHAPES)
def test_first_lines_have_as_many_more_passes_for_each_micro_batch(
    schedule: str, pp: int, vpp: int
) -> None:
    """From `linear_from` micro-batches on, and end on the same rank after as many hops."""
    enough = linear_from(schedule, pp)
    shapes = [(schedule, pp, vpp, enough + more) for more in (0, 1, 7)]
    for some, next_one, more in zip(*(first_lines(*shape) for shape in shapes), strict=True):
        assert some[1:] == next_one[1:] == more[1:]
        assert np.allclose(some.often + 7 * (next_one.often - some.often), more.often)
