"""Which rank failed first, and with what error.

A rank that raises leaves its exception in `error.json` (torch elastic); one that a signal ends, or
that exits with a message, leaves no such file, but torchrun reports its exit code. Ranks that fail
because another is gone ("Connection closed by peer") do so later, so the cause is

    a rank killed from outside, else the earliest exception, else the rank that torchrun calls the
    root cause, with the end of its stderr
"""

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TORCHRUN_LOG = "torchrun.log"
REPORTED = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s+exitcode\s*: (?P<code>-?\d+) \(pid"
)
RELAYED = {-signal.SIGTERM, -signal.SIGINT}  # sent by torchrun itself once a rank is dead
TAIL_LINES = 15


class RankFailed(RuntimeError):
    """A rank died; the text is its own error, then where the logs are."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed rank: its place in the order of causes, and what it said."""

    order: tuple[int, float]
    rank: int
    message: str


def first_failure(log_dir: Path, exit_code: int) -> RankFailed:
    """What to tell the user about a job whose logs are under `log_dir`, one folder per host."""
    failures = [failure for log in sorted(log_dir.rglob(TORCHRUN_LOG)) for failure in _of_host(log)]
    if failures:
        cause = min(failures, key=lambda failure: failure.order)
        return RankFailed(f"rank {cause.rank}: {cause.message}\nlogs: {log_dir}")
    said = "\n".join(read_tail(log) for log in sorted(log_dir.rglob(TORCHRUN_LOG)))
    return RankFailed(f"exit code {exit_code}: {said}\nlogs: {log_dir}")


def _of_host(log: Path) -> Iterator[Failure]:
    """The failed ranks of the host whose torchrun wrote `log`, as far as it reported them."""
    reported = {int(m["local"]): m for m in REPORTED.finditer(read_tail(log, lines=1000))}
    excepted = {int(path.parent.name): path for path in log.parent.rglob("error.json")}
    for local, match in reported.items():
        code, rank = int(match["code"]), int(match["rank"])
        if code < 0 and code not in RELAYED:
            name = signal.Signals(-code).name
            why = " (out of memory?)" if code == -signal.SIGKILL else ""
            yield Failure((0, 0.0), rank, f"was killed by {name}{why}")
        elif local not in excepted and code > 0:
            earlier_too = log.parent.rglob(f"{local}/stderr.log")  # of earlier runs in this folder
            stderr = max(earlier_too, key=lambda path: path.stat().st_mtime, default=log)
            yield Failure((2, stderr.stat().st_mtime), rank, read_tail(stderr))
    for local, path in excepted.items():
        rank = int(reported[local]["rank"]) if local in reported else local
        yield Failure((1, path.stat().st_mtime), rank, _message(path))


def _message(path: Path) -> str:
    """The exception in an `error.json`; torch writes a bare string where it has no traceback. Of a
    file that is cut off, as on a full disk, the end of the rank's stderr.
    """
    try:
        message = json.loads(path.read_text(encoding="utf-8"))["message"]
        return message if isinstance(message, str) else str(message["message"])
    except (ValueError, KeyError, TypeError):
        said = read_tail(path.with_name("stderr.log"))
        return f"its error file is cut off (is the disk full?): {said}".rstrip(": ")


def read_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of the text in `path`, nothing if it is not there."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
