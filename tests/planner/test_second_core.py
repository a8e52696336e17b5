"""Pieces of work on two processors: the same answers in the same order, wherever they are done."""

import json
import subprocess
import sys

import pytest

from meshplan.planner.search.second_core import blocks

PROGRAM = """
import json, os, sys, time
from meshplan.planner.search.second_core import done_of_each

def work(piece):
    if isinstance(piece, list):
        return done_of_each(work, piece)
    time.sleep(piece and 0.02)  # so that both processes take part
    if piece == 3 and os.getpid() != own:
        raise MemoryError  # only where it is forked
    return 12 // piece, os.getpid()

def answers(pieces):
    try:
        return done_of_each(work, pieces)
    except ZeroDivisionError:
        return "divided by nothing"

own = os.getpid()
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: int(sys.argv[1])])
print(json.dumps([len(os.sched_getaffinity(0)), own, *map(answers, json.loads(sys.argv[2]))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("cores", [1, 2])
def test_a_fork_takes_pieces_and_what_fails_there_is_done_here(cores: int) -> None:
    """In a process of its own, since this one may have threads; an error is the caller's, whichever
    process meets it.
    """
    asked = [[1, 2, 4, 6], [3, 3, 3], [12], [[1, 2], [4, 6]], [0, 1], [1, 0]]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cores), json.dumps(asked)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    has, own, shared, failed, alone, nested, *errors = json.loads(found.stdout)
    assert [answer for answer, _ in shared] == [12, 6, 3, 2]
    assert len({process for _, process in shared}) == has  # each did a part
    assert failed == [[4, own]] * 3
    assert alone == [[1, own]]
    assert [[answer for answer, _ in piece] for piece in nested] == [[12, 6], [3, 2]]
    assert all(one == other for (_, one), (_, other) in nested)  # a piece is not divided again
    assert errors == ["divided by nothing"] * 2


@pytest.mark.parametrize(("rows", "most", "expected"), [
    pytest.param(0, 100, [0], id="none: one empty block"),
    pytest.param(4096, 9000, [0], id="4096 are few"),
    pytest.param(4097, 9000, [0, 2049], id="4097 / 2, rounded up"),
    pytest.param(20_000, 9000, [0, 5000, 10_000, 15_000], id="3 of 9000 at most: 4 equal ones"),
])  # fmt: skip
def test_blocks_of_rows(rows: int, most: int, expected: list[int]) -> None:
    """An even number of equal ones, so that two processors end together."""
    assert list(blocks(rows, most)) == expected
