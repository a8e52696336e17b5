"""How much following a script may cost, with all scripts that it calls: counted, not timed, so that
the same file gets the same verdict on every machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from meshplan.planner.case.reading import UnreadableConfig

MAX_WORK = 20_000_000  # characters expanded
COMMAND_WORK = 500  # of following one command
_SEARCHED = 4096  # characters that are compared in the time of expanding one


@dataclass(slots=True)
class Work:
    """What following scripts has cost, in characters expanded."""

    done: int = 0

    def spend(self, characters: int, line: int) -> None:
        """Count `characters`; raises `UnreadableConfig` beyond `MAX_WORK`."""
        self.done += characters
        if self.done > MAX_WORK:
            raise UnreadableConfig(f"over {MAX_WORK} steps; no launch script takes as many", line)

    def spend_change(self, length: int, line: int) -> None:
        """Count what `${X%.sh}` and its like cost, which compare each end of a text."""
        self.spend(length + length * length // _SEARCHED, line)


_SHARED: ContextVar[Work | None] = ContextVar("work", default=None)


def work_here() -> Work:
    """The work of the scripts that are followed now."""
    return _SHARED.get() or Work()


@contextmanager
def shared_work() -> Iterator[None]:
    """Within it all scripts that are followed spend of the same work."""
    token = _SHARED.set(work_here())
    try:
        yield
    finally:
        _SHARED.reset(token)
