"""Pieces of work on two processors: the same answers in the same order, wherever they are done."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import pytest

from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.processes import second_core

PROGRAM = """
import json, os, sys, time
from meshplan.planner.processes.second_core import done_of_each

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
told, tell = os.pipe()
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


ENDS_LATE = """
import atexit, os, time

@atexit.register
def say_what_is_left():  # what was registered last is called first
    try:
        os.waitpid(-1, os.WNOHANG)
        print("some")
    except ChildProcessError:
        print("none")

from meshplan.planner.processes.second_core import done_of_each

end, (told, tell) = os._exit, os.pipe()
os._exit = lambda code: (os.read(told, 1), end(code))
done = done_of_each(lambda piece: time.sleep(piece) or os.getpid(), [0.02] * 6)
os.write(tell, b".")
print(len(set(done)), len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_a_process_that_has_answered_is_waited_for_at_the_end() -> None:
    """It ends when told to, after its answer is used; none is left when this one has ended."""
    found = subprocess.run(
        [sys.executable, "-c", ENDS_LATE],
        capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip
    processes, cores, left = found.stdout.split()
    assert int(processes) == min(2, int(cores))
    assert left == "none"


MEANWHILE = """
import json, os, sys, time
from meshplan.planner.processes.second_core import done_meanwhile, done_of_each, is_idle

def other():
    if os.getpid() != own:
        os.read(told, 1)  # the other process is not done before it was seen at work
    if os.getpid() != own and len(sys.argv) > 2:
        raise MemoryError  # only where it is forked
    return os.getpid(), [pid for pid in done_of_each(lambda _: os.getpid(), [1, 2])]

def work():
    busy = not is_idle()
    alone = done_of_each(lambda _: os.getpid(), [1, 2])
    os.write(tell, b".")
    deadline = time.monotonic() + 20
    while not is_idle() and len(os.sched_getaffinity(0)) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)  # until the other process is done
    shared = done_of_each(lambda piece: time.sleep(piece) or os.getpid(), [0.05, 0.05])
    return busy, alone, shared

own = os.getpid()
told, tell = os.pipe()
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: int(sys.argv[1])])
(busy, alone, shared), (process, its) = done_meanwhile(work, other)
try:
    done_meanwhile(lambda: 1 // 0, lambda: time.sleep(60))
except ZeroDivisionError:
    print(json.dumps([len(os.sched_getaffinity(0)), own, busy, alone, shared, process, its]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("cores", "fails"), [(1, False), (2, False), (2, True)])
def test_one_thing_is_found_while_another_runs(cores: int, fails: bool) -> None:
    """The second processor is the other process's until that is done, and neither it nor what fails
    in it is divided again; where the first fails, nobody waits for the other.
    """
    found = subprocess.run(
        [sys.executable, "-c", MEANWHILE, str(cores), *["fails"] * fails],
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    has, own, busy, alone, shared, process, its = json.loads(found.stdout)
    assert (process == own) == (has == 1 or fails)
    assert len(set(shared)) == has
    if has > 1:
        assert busy
        assert alone == [own] * 2
        assert fails or its == [process] * 2


LATE = """
import json, os, sys, time
from meshplan.planner.processes.second_core import done_meanwhile

def other():
    begun.append(os.getpid())
    time.sleep(float(sys.argv[2]))
    return "found"

def late():
    time.sleep(0.3)

begun = []
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: int(sys.argv[1])])
started = time.perf_counter()
_, found = done_meanwhile(late, other, started + 0.2)
print(json.dumps([found, len(begun), time.perf_counter() - started]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("cores", "takes_s"), [(1, 0.0), (2, 0.0), (2, 30.0)])
def test_after_a_deadline_little_is_waited_for_and_nothing_begun(
    cores: int, takes_s: float
) -> None:
    """The work has 0.2 s and takes 0.3; the other thing has 0.2 s more, where it was begun."""
    found = subprocess.run(
        [sys.executable, "-c", LATE, str(cores), str(takes_s)],
        capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip
    other, begun_here, took_s = json.loads(found.stdout)
    two = cores == 2 and len(os.sched_getaffinity(0)) > 1
    assert begun_here == 0
    assert other == ("found" if two and not takes_s else None)
    assert 0.3 <= took_s < 5


BEGUN = """
import json, os, sys, time
from meshplan.planner.processes.second_core import Begun, Later, is_idle

def needed():
    if has > 1:
        os.read(told_last, 1)  # until the last piece was begun
    return os.getpid()

def piece(number):
    def find():
        if number == 0 and os.getpid() != own:
            os.write(tell, b".")
            os.read(told_on, 1)  # until idleness was asked here
            os.read(told_on, 1)  # until the others were begun here
        if number == 1 and has > 1:
            os.read(told, 1)  # until the first piece was begun
            os.write(tell_on, b".")
        if number == 2:
            os.write(tell_last, b".")
        if number == 0 and os.getpid() != own and len(sys.argv) > 2:
            raise MemoryError  # only where it is forked
        return number, os.getpid()
    return find

own, cores = os.getpid(), int(sys.argv[1])
told, tell = os.pipe()
told_on, tell_on = os.pipe()
told_last, tell_last = os.pipe()
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:cores])
has = len(os.sched_getaffinity(0))
Begun()
idle_still = is_idle()
later, other = Later(needed), Later(os.getpid)
begun = Begun(*map(piece, range(3)), first=later)
first = later.done(), other.done()
idle = is_idle()
os.write(tell_on, b".")
done = begun.done()
begun.end()  # there is nothing to end
started = time.monotonic()
Begun(lambda: time.sleep(60)).end()
ended_s = time.monotonic() - started
print(json.dumps([has, own, idle_still, idle, first, done, is_idle(), ended_s]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("cores", "fails"), [(1, False), (2, False), (2, True)])
def test_pieces_that_another_process_has_begun(cores: int, fails: bool) -> None:
    """It does the first, those that it has not begun are done here, and so is what fails there. It
    answers what is needed later before the first has ended, and not what it was not given; while
    that is waited for the last is begun here. What is ended is not waited for. No pieces need no
    process.
    """
    found = subprocess.run(
        [sys.executable, "-c", BEGUN, str(cores), *["fails"] * fails],
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    has, own, idle_still, idle, first, done, idle_then, ended_s = json.loads(found.stdout)
    assert idle_still == (has > 1)
    assert not idle
    assert (first[0] == own) == (has == 1)
    assert first[1] == own
    assert [number for number, _ in done] == [0, 1, 2]
    assert [process == own for _, process in done] == [has == 1 or fails, True, True]
    assert idle_then == (has > 1)
    assert ended_s < 30


LENT = """
import json, os, sys, time
from meshplan.planner.processes.second_core import Begun, Later, done_of_each, is_idle

def shared():
    os.write(tell, b".")
    deadline = time.monotonic() + 5
    while not is_idle() and has > 1 and time.monotonic() < deadline:
        time.sleep(0.001)  # until the other process waits
    return done_of_each(lambda piece: time.sleep(piece) or os.getpid(), [0.05, 0.05])

told, tell = os.pipe()
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: int(sys.argv[1])])
has, own, later = len(os.sched_getaffinity(0)), os.getpid(), Later(shared)
begun = Begun(os.getpid, first=later)
first = later.done()
begun.done()
begun = Begun(shared)
os.read(told, 1) if has > 1 else None  # the first
os.read(told, 1) if has > 1 else None
print(json.dumps([has, own, first, *begun.done(), is_idle()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_waited_for_is_divided(cores: int) -> None:
    """This process only waits, so what the other one has begun is done by that and one more."""
    found = subprocess.run(
        [sys.executable, "-c", LENT, str(cores)],
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    has, own, *shared, idle = json.loads(found.stdout)
    assert [len(set(processes)) for processes in shared] == [has] * 2
    assert any(own in processes for processes in shared) == (has == 1)
    assert idle == (has > 1)


EXPERTS_OF_FOUR_NODES = Arguments(
    model="mixtral-8x7b", gpus=32, cluster="dgx-h100", global_batch=256, engine="nemo"
)
CUTS_BESIDE_A_LIST = Arguments(
    model="llama-3.2-1b", gpus=8, cluster="l40s-8", global_batch=32, engine="native",
    pins={"pipeline_parallel": "4"},
)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("asked", "fewest"), [
    pytest.param(EXPERTS_OF_FOUR_NODES, 8, id="kinds of exchange, rows, crowds of one degree"),
    pytest.param(CUTS_BESIDE_A_LIST, 6, id="cuts beside a list, moved layers"),
])  # fmt: skip
def test_answers_are_the_same_with_a_fork(
    monkeypatch: pytest.MonkeyPatch, asked: Arguments, fewest: int
) -> None:
    """Plans, runners-up, status and bound, where most rooms of the search divide their work."""
    forks, forked = list[object](), second_core._forked

    def counted(work: Callable[[], object]) -> tuple[int, int]:
        forks.append(work)
        return forked(work)

    monkeypatch.setattr(second_core, "_forked", counted)
    monkeypatch.setattr(second_core, "WORTH_S", 0.0)  # however quick this machine is
    alone = solve(ask(asked).question, 5)
    assert not forks
    monkeypatch.setattr(second_core, "_has_second_core", lambda: True)
    shared = solve(ask(asked).question, 5)
    assert len(forks) >= fewest
    assert shared.solutions == alone.solutions
    assert (shared.status, shared.bound_s) == (alone.status, alone.bound_s)


@pytest.mark.parametrize(("seconds", "here"), [
    pytest.param([0.0] * 20, 20, id="short ones"),
    pytest.param([0.01, 0.01, 0.01], 1, id="long ones"),
    pytest.param([0.0, 0.01, 0.015, 0.0], 4, id="what is left is short"),
    pytest.param([1.0], 1, id="one"),
    pytest.param([], 0, id="none"),
])  # fmt: skip
def test_a_second_process_takes_part_where_what_is_left_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], here: int
) -> None:
    """20 ms are, if the others take as long as the mean of what is done: 0.01 x 2, but not
    (0.01 + 0.015) / 3 x 1.
    """
    now, shared = [0.0], list[float]()

    def work(piece: float) -> float:
        now[0] += piece
        return 2 * piece

    def noted(work: Callable[[float], float], pieces: Sequence[float]) -> list[float]:
        shared.extend(pieces)
        return [work(piece) for piece in pieces]

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(second_core, "done_of_each", noted)
    assert second_core.done_of_many(work, seconds) == [2 * each for each in seconds]
    assert shared == seconds[here:]


KILLED = """
import os, signal, time
from meshplan.planner.processes import second_core
from meshplan.planner.processes.second_core import Begun, done_of_each

def work(piece):
    if os.getpid() == own:
        os.read(told, 1)  # the other process is at work
        os.kill(own, signal.SIGKILL)
    os.write(tell, b"x")
    time.sleep(60)

own = os.getpid()
told, tell = os.pipe()
second_core._has_second_core = lambda: True
begun = {BEGUN}
work(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(
    "begun", ["Begun(lambda: work(1))", "done_of_each(work, [0, 1])"], ids=["begun", "shared"]
)
def test_a_fork_ends_with_the_process_that_was_killed(begun: str) -> None:
    """Whoever reads standard output, which both have, sees its end in time."""
    program = KILLED.replace("{BEGUN}", begun)
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, b"")
