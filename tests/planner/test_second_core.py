"""Pieces of work on two processors: the same answers in the same order, wherever they are done."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys
from meshplan.planner.search.second_core import done_of_each

def work(piece):
    if piece == 3 and os.getpid() != own:
        raise MemoryError  # only where it is forked
    return 12 // piece, os.getpid() == own

def answers(pieces):
    try:
        return done_of_each(work, pieces)
    except ZeroDivisionError:
        return "divided by nothing"

own = os.getpid()
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: int(sys.argv[1])])
print(json.dumps([len(os.sched_getaffinity(0)), *map(answers, json.loads(sys.argv[2]))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("cores", [1, 2])
def test_every_second_piece_is_forked_and_what_fails_there_is_done_here(cores: int) -> None:
    """In a process of its own, since this one may have threads; an error is the caller's, whichever
    process meets it.
    """
    asked = [[1, 2, 6], [4, 3], [12], [0, 1], [1, 0]]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cores), json.dumps(asked)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    has, shared, failed, alone, *errors = json.loads(found.stdout)
    assert shared == [[12, True], [6, has == 1], [2, True]]
    assert failed == [[3, True], [4, True]]
    assert alone == [[1, True]]
    assert errors == ["divided by nothing"] * 2
