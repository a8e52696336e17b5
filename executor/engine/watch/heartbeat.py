"""What a rank is doing right now, where its starter can read it: two numbers in a small file.

The file is mapped into memory, so that saying it costs no system call: a rank that hangs in a
collective has said so before.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

PHASES = ("building the model", "data", "forward", "backward", "wait", "reduce", "optimizer",
          "between phases")  # fmt: skip
LAYOUT = struct.Struct("<iq")  # index into PHASES, counter


@dataclass(frozen=True, slots=True)
class Beat:
    """The phase of a rank, and a counter that grows with every phase."""

    phase: str
    counter: int


class Heartbeat:
    """Writes the phases of this rank to `path`."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(LAYOUT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), LAYOUT.size)
        self._counter = 0
        self.say("building the model")

    def say(self, phase: str) -> None:
        """This rank is now in `phase`."""
        self._counter += 1
        self._map[:] = LAYOUT.pack(PHASES.index(phase), self._counter)


def read_beat(path: Path) -> Beat | None:
    """What the rank of `path` said last, None if it has not started."""
    if not path.exists() or path.stat().st_size < LAYOUT.size:
        return None
    index, counter = LAYOUT.unpack(path.read_bytes()[: LAYOUT.size])
    return Beat(PHASES[index], counter)
