"""Processes that work on pieces: Ctrl-C is for the one that started them, and they end with it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshplan.planner.processes.worker_processes import CTRL_C, ctrl_c_waits, in_processes


def hears_ctrl_c(_: int) -> bool:
    """Whether Ctrl-C reaches this process."""
    return not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & CTRL_C


def test_ctrl_c_waits_in_the_processes_and_not_here() -> None:
    """From their first instruction on, for a process inherits what waits."""
    with in_processes(1, hears_ctrl_c, [0, 1]) as futures:
        assert [future.result() for future in futures] == [False, False]
    assert hears_ctrl_c(0)


def waits(_: bytes) -> None:
    """Longer than any test."""
    time.sleep(300)


def test_a_block_that_is_interrupted_ends_its_processes() -> None:
    """Not after what they work on, nor for what waits to be handed out, more than pipes hold."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), in_processes(2, waits, [bytes(200_000)] * 8):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("heard")
def test_ctrl_c_that_another_thread_hears_comes_after_the_processes_have_started() -> None:
    """Not between the start of one and its place among those that are ended."""
    asleep = threading.Thread(target=time.sleep, args=(0.3,))
    asleep.start()
    seen = list[str]()

    def start() -> None:
        with ctrl_c_waits():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            seen.append("gone on")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert seen == ["gone on"]
    asleep.join()


KILLED = """
import os, signal, time
from meshplan.planner.processes.worker_processes import in_processes

if __name__ == "__main__":
    with in_processes(1, time.sleep, [0, 60]) as futures:
        futures[0].result()  # the process is at work
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_with_the_one_that_was_killed(tmp_path: Path) -> None:
    """Whoever reads standard output, which both have, sees its end in time."""
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    command = [sys.executable, str(program)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=30, check=False)
    assert ended.returncode == -signal.SIGKILL
