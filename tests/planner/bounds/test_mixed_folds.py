"""Bounds of V shapes whose ranks recompute whole layers, against every cut and mix of small models
and by hand.
"""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from nightly import cases
from played_layouts import Played, played

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.bounds.folded import mixes
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.mixed_cuts import MixedFolds
from meshplan.planner.bounds.folded.mixes import Words, _falling, _least_so_far
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.cuts.folded_bound import folded_bound_s
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.mixed_paths import MixedPaths
from meshplan.planner.cuts.whole_cuts import WholeLayers

CLOSE = 1 + 1e-9


def mixing(seeds: int) -> Iterator[tuple[int, Played, FreeCutProgram, float]]:
    """Layouts of V shapes whose layers may run in several modes, each below several limits."""
    for seed in range(seeds):
        for each in played(seed):
            same = each.cuts.same
            if same.schedule not in V_SHAPED or len(same.modes) == 1:
                continue
            reached_s = each.least_s if math.isfinite(each.least_s) else 100.0
            for times in (0.97, 1 + 1e-7, 1.3):
                shape = same.schedule, same.pp, same.vpp, int(same.m[0])
                program = FreeCutProgram(each.cuts, reached_s * times, first_lines(*shape))
                yield seed, each, program, reached_s * times


def test_no_cut_and_mix_of_a_v_shape_is_faster_than_its_bounds() -> None:
    """Rank after rank, by the game over cuts and mixes, by lists of cuts, and by limits that are
    tried. Bounds of whole layers are nowhere below those of prices of memory, and often above; some
    are the step. Lists say more than games of some, too much for a list says nothing, and a list of
    cuts of which none fits is settled.
    """
    above, close, listed = 0, 0, 0
    for seed, (cuts, least_s, _), program, limit_s in mixing(cases(22, nightly=200)):
        answers = list(program.answers(limit_s))
        most, below_s = program.most, min(least_s, limit_s)
        folds = MixedFolds.of(cuts, most, limit_s)
        assert folds, seed
        priced_s, mixed_s = (x.bounds_s(limit_s, most)[0] for x in (FoldedCuts(cuts), folds))
        assert mixed_s <= below_s * CLOSE, seed
        above += mixed_s > priced_s * 1.001
        if answers[-1].by and 0 < mixed_s < limit_s:
            by = answers[-1].by
            paths = MixedPaths(program, folds, by)
            game_s, list_s = paths.game(limit_s, 10)[0], paths.cuts_s(limit_s, by, 10)
            assert max(game_s, list_s) <= below_s * CLOSE, seed
            listed += list_s > game_s * 1.001
            none_s = paths.cuts_s(limit_s, by, 10, lambda layers: np.zeros(len(layers), bool))
            assert none_s == (limit_s if list_s else 0.0), seed
        whole = WholeLayers(program, limit_s, lambda work: False)
        found_s = folded_bound_s(whole)
        assert found_s <= below_s * CLOSE, seed
        assert not whole.cuts or min(whole.cuts, key=lambda x: x[0])[0] > 0
        close += found_s >= below_s * 0.999
    assert above > 3
    assert close > 3
    assert listed > 1


def test_chains_asked_together_are_those_asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each adds to a rank, and the least behind it, some sums at once or one after the other;
    and no list of cuts is another one for it.
    """
    asked = 0
    for _, each, program, limit_s in islice(mixing(32), 24):
        folds, answer = MixedFolds.of(each.cuts, program.most, limit_s), program.answer()
        if not folds or not answer.by or folds.bounds_s(limit_s, program.most)[0] >= limit_s:
            continue
        paths = MixedPaths(program, folds, answer.by)
        chains = paths._likely(answer.by)
        together = paths.sums(chains)
        monkeypatch.setattr(mixes, "AT_ONCE", 1)
        for row in range(len(chains.fixed)):
            alone = paths.sums(MeanOfRows(*(part[row : row + 1] for part in chains)))
            for of_all, of_one in zip(together[:2], alone[:2], strict=True):
                for every, one in zip(of_all, of_one, strict=True):
                    assert every[row] == pytest.approx(one[0], rel=1e-12)
        monkeypatch.undo()
        asked += len(chains.fixed)
    assert asked > 50


def test_what_a_list_proves_needs_no_game_while_a_wide_gap_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lists come first then, elsewhere games; once the budget has ended nothing is listed."""
    asked = list[str]()

    def game(self: MixedPaths, limit_s: float, rounds: int) -> tuple[float, MeanOfRows]:
        asked.append("game")
        return 0.0, self.mean

    def cuts_s(self: MixedPaths, limit_s: float, *_: object) -> float:
        asked.append("list")
        return limit_s

    monkeypatch.setattr(MixedPaths, "game", game)
    monkeypatch.setattr(MixedPaths, "cuts_s", cuts_s)
    for _, _, program, limit_s in islice(mixing(32), 6):
        for is_wide, ends, expected in (
            (True, False, {"list"}),
            (False, False, {"game", "list"}),
            (True, True, {"game"}),
        ):
            asked.clear()
            whole = WholeLayers(program, limit_s, lambda _, ends=ends: ends, is_wide=is_wide)
            folded_bound_s(whole)
            assert not asked or set(asked) == expected
    assert asked


def test_words_and_their_mixes() -> None:
    """Of the model a a b with two modes: 4 kinds of runs, of one and two layers, and none; a run of
    two layers recomputes none, its first, or both.
    """
    words = Words(np.array([0, 0, 1]), (2, 2), 2)
    assert words.of.tolist() == [[0, 0, 0, 0], [1, 1, 2, 0], [3, 4, 0, 0]]
    listed = words.listed()
    ab = listed.mixes[listed.word == words.of[2, 1]].tolist()
    assert sorted(ab) == sorted(
        [[[1, 0], [1, 0]], [[0, 1], [1, 0]], [[0, 1], [0, 1]]]  # [kind, mode]
    )
    assert (listed.mixes.sum(axis=(1, 2)) == np.array([0, 1, 1, 2, 2])[listed.word]).all()


def test_of_mixes_that_keep_no_more_the_one_that_takes_least() -> None:
    """A mix that keeps more may take longer, so the last that fits is not the fastest."""
    assert _least_so_far(np.array([3.0, 1.0, 2.0, 1.0, 0.5])).tolist() == [0, 1, 1, 1, 4]


def test_mixes_that_others_beat_on_both_chunks_are_left_out() -> None:
    """In each group what takes less than all before it stays, the first of equal ones."""
    group, values = np.array([0, 0, 0, 0, 2, 2, 2]), np.array([3.0, 3.0, 1.0, 2.0, 9.0, 4.0, 4.0])
    kept = [True, False, True, False, True, True, False]
    assert _falling(group, values).tolist() == kept


def test_more_mixes_are_counted_where_they_are_allowed() -> None:
    """As many as a layout's words have, and not one less."""
    _, each, program, limit_s = next(mixing(32))
    folds = MixedFolds.of(each.cuts, program.most, limit_s)
    assert folds
    many = folds.words.many
    assert MixedFolds.of(each.cuts, program.most, limit_s, many)
    assert not MixedFolds.of(each.cuts, program.most, limit_s, many - 1)


def test_work_counts_the_mixes_that_are_looked_at() -> None:
    """Of a limit that no layer can be below, of each rank the empty word for each transient; of a
    higher limit all other words too.
    """
    cuts, *_ = next(each for _, each, _, _ in mixing(32))
    words = Words(np.zeros(len(cuts.same.pattern), np.int64), (1, len(cuts.same.modes)), 2)
    listed = words.listed()
    none, every = (mixes.FoldedMixes(cuts, 0, listed, limit_s) for limit_s in (1e-12, 1e9))
    ranks, levels = cuts.same.pp, len(every._levels)
    assert none.work >= ranks * mixes.RANK
    assert none.work <= ranks * (mixes.RANK + levels * (mixes.WORD + mixes.BESIDE))
    assert every.work > none.work + ranks * mixes.WORD * (listed.words - 1)
