"""Pieces of work: how rows are cut into them, and which are done before they are asked for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import pytest

from meshplan.planner.cuts.recompute_chains import MixAnswer
from meshplan.planner.processes import second_core
from meshplan.planner.processes.second_core import AHEAD, blocks
from meshplan.planner.search.simulation import cut_mixes
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.space.legal_layouts import Variant


@pytest.mark.parametrize(("rows", "most", "expected"), [
    pytest.param(0, 100, [0], id="none: one empty block"),
    pytest.param(4096, 9000, [0], id="4096 are few"),
    pytest.param(4097, 9000, [0, 2049], id="4097 / 2, rounded up"),
    pytest.param(20_000, 9000, [0, 5000, 10_000, 15_000], id="3 of 9000 at most: 4 equal ones"),
])  # fmt: skip
def test_blocks_of_rows(rows: int, most: int, expected: list[int]) -> None:
    """An even number of equal ones, so that two processors end together."""
    assert list(blocks(rows, most)) == expected


def test_what_was_found_ahead_of_its_turn_is_told_at_the_same_limit_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With cut 1 its followers 2 and 3 are asked at the limit of 10 s. In its turn 2 is known, and
    after the limit fell to 9 s 3 is asked anew.
    """
    asked, limit_s = list[tuple[int, float]](), 10.0

    @dataclass
    class Mixes:
        entry: Open
        limit_s: float
        shape = ("interleaved_1f1b", 2, 2, 8)

        def by_chains(self) -> MixAnswer:
            asked.append((self.entry.row, self.limit_s))
            return MixAnswer(self.entry.row * self.limit_s, math.inf, None)

    monkeypatch.setattr(cut_mixes, "is_idle", lambda: True)
    monkeypatch.setattr(cut_mixes, "done_of_each", lambda work, pieces: [work(p) for p in pieces])
    variant = Variant("interleaved_1f1b", 2, (0, 2))
    cuts = [Open(1.0, (row, 0, row), row, variant, None, 0) for row in range(4)]
    turns = cut_mixes.AheadOfTurn(Mixes)  # type: ignore[arg-type]

    def bound_s(row: int) -> float:
        return turns.by_chains(cuts[row], lambda _: limit_s, lambda: cuts[row + 1 :]).bound_s

    assert bound_s(1) == 1 * 10
    assert asked == [(1, 10), (2, 10), (3, 10)]
    assert bound_s(2) == 2 * 10
    assert len(asked) == 3
    limit_s = 9.0
    assert bound_s(3) == 3 * 9
    assert asked[3:] == [(3, 9)]


@pytest.mark.parametrize(("two", "done"), [
    pytest.param(False, 3, id="one processor: what is asked for"),
    pytest.param(True, AHEAD, id="two: so many ahead"),
])  # fmt: skip
def test_what_is_done_ahead(monkeypatch: pytest.MonkeyPatch, two: bool, done: int) -> None:
    """Three of twenty pieces asked for; the answers are the same."""
    monkeypatch.setattr(second_core, "is_idle", lambda: two)
    asked = list[list[int]]()

    def noted(work: Callable[[int], int], pieces: Sequence[int]) -> list[int]:
        asked.append(list(pieces))
        return [work(piece) for piece in pieces]

    monkeypatch.setattr(second_core, "done_of_many", noted)
    found = second_core.done_ahead(lambda piece: piece * piece, range(20))
    assert list(islice(found, 3)) == [(0, 0), (1, 1), (2, 4)]
    assert [piece for pieces in asked for piece in pieces] == list(range(done))
    assert list(found) == [(piece, piece * piece) for piece in range(3, 20)]
