"""Starts the processes of a job by torchrun, watches them, and leaves none behind.

torchrun (`python -m torch.distributed.run`) is started in a process of its own, once per host. It
redirects every rank's output into a log folder, where a rank that dies by an exception leaves it as
`error.json`. Whatever ends the job (success, a dead rank, Ctrl-C, a signal), every process that was
started under it is gone when `run_job` returns, and if this process itself is killed torchrun is
told to end its ranks (`parent_death`).
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType

from meshplan.executor.launch.failures import TORCHRUN_LOG, first_failure
from meshplan.planner.processes.parent_death import die_with_parent

POLL_S = 0.2
FAMILY_EVERY = 10  # looks between two lists of the processes under torchrun
GRACE_S = 5.0  # for torchrun to end its ranks by itself
# glibc otherwise gives memory back and faults it in again at every step, which no kernel that is
# measured alone pays: steps of a CPU rank were a tenth to a third longer.
CPU_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


class Interrupted(RuntimeError):
    """The user (or the system, by SIGTERM) ended the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunJob:
    """A module to run on every rank.

    processes_per_node  ranks on each host, one per accelerator
    rendezvous          host:port of the first host, None for a job on one host
    meeting             further options of torchrun about it, each host's own
    environment         further variables of every rank
    """

    module: str
    arguments: tuple[str, ...] = ()
    processes_per_node: int
    nodes: int = 1
    rendezvous: str | None = None
    meeting: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def torchrun_command(
    job: TorchrunJob, log_dir: Path | str, python: str = sys.executable
) -> list[str]:
    """The command that starts the ranks of one host."""
    meeting = ["--standalone"]
    if job.rendezvous is not None:
        meeting = [
            f"--nnodes={job.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={job.rendezvous}",
            "--rdzv-id=meshplan",
            *job.meeting,
        ]
    return [
        python,
        "-m",
        "torch.distributed.run",
        *meeting,
        f"--nproc-per-node={job.processes_per_node}",
        f"--log-dir={log_dir}",
        "--redirects=3",
        "-m",
        job.module,
        *job.arguments,
    ]


def shell_command(
    job: TorchrunJob, logs: str, *, endpoint: str, is_first: str, python: str = sys.executable
) -> str:
    """The command of one host as a line of a script: `logs` (a folder), `endpoint` (HOST:PORT) and
    `is_first` (1 on the host that is met, else 0) are texts that its shell fills in.
    """
    told = replace(job, rendezvous="@endpoint@", meeting=("--rdzv-conf=is_host=@first@",))
    line = shlex.join(torchrun_command(told, "@logs@", python))
    for name, text in (("@endpoint@", endpoint), ("@first@", is_first), ("@logs@", logs)):
        line = line.replace(name, text)
    return line


def run_job(
    command: Sequence[str],
    log_dir: Path,
    *,
    watch: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `command` to its end, calling `watch` a few times a second.

    Raises `RankFailed` with the first failing rank's own error, `Interrupted` on Ctrl-C or SIGTERM.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    for earlier in log_dir.rglob("error.json"):  # of a run before: no cause of this one's end
        earlier.unlink(missing_ok=True)
    with (log_dir / TORCHRUN_LOG).open("w", encoding="utf-8") as log, signals_raise():
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
        try:
            _follow(process, watch)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; logs are in {log_dir}") from None
    if process.returncode:
        raise first_failure(log_dir, process.returncode)


def _follow(process: subprocess.Popen[bytes], watch: Callable[[], None]) -> None:
    """Watch it to its end; whatever ends this ends all that it started."""
    family: dict[int, str] = {}
    try:
        for turn in count():
            if process.poll() is not None:
                break
            if turn % FAMILY_EVERY == 0:
                family |= descendants(process.pid)
            watch()
            time.sleep(POLL_S)
        watch()
    finally:
        end_tree(process, family)


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGTERM becomes `KeyboardInterrupt`, so that the processes are ended on it too."""

    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_tree(process: "subprocess.Popen[bytes]", known: Mapping[int, str]) -> None:
    """End `process` and everything under it: asked first, killed after `GRACE_S`.

    known  what was seen under it before, with start times: were it killed, nothing is found now

    The ranks are in sessions of their own: they are found by parentage, before their parent dies.
    """
    family = {**known, **descendants(process.pid)}
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            family |= descendants(process.pid)
        if process.poll() is None:
            process.kill()
            process.wait()
    for pid, started in family.items():
        if _start_time(pid) == started:
            with suppress(ProcessLookupError):  # it ended in between
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> dict[int, str]:
    """Every live process under `pid`, with its start time: a pid alone may be used anew."""
    listing = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for line in listing.splitlines():
        own, parent, start = line.split(maxsplit=2)
        children.setdefault(int(parent), []).append(int(own))
        started[int(own)] = start
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = started[child]
            waiting.append(child)
    return found


def _start_time(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None
