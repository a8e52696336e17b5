"""One measurement as it is kept while profiling: a line of the partial file beside the output.

The first line says what machine and options the measurements belong to; a run that finds a partial
file of the same machine and options goes on where it stopped.
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from meshplan.executor.profile.statistics import Timing
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import AttentionPoint, MatmulPoint


class ForeignPartial(ValueError):
    """A partial file that this run cannot continue; one line with the reason and the fix."""


class Quantity(Frozen):
    """One measured number that is not a point of a curve."""

    name: str
    value: float
    unit: Literal["bytes", "bytes/s", "flops/s", "s", "ratio"]
    spread: float | None = None


Result = MatmulPoint | AttentionPoint | CurvePoint | Quantity


class Record(Frozen):
    """One finished measurement.

    rank_seconds  the median of every rank, empty where nothing was timed
    slowdown      median repeat over what is kept, None where the device was ours alone
    """

    key: str
    result: Result
    repeats: int = 1
    outliers: int = 0
    rank_seconds: tuple[float, ...] = ()
    slowdown: float | None = None

    @classmethod
    def timed(cls, key: str, result: Result, timing: Timing) -> "Record":
        """The record of `result`, which `timing` gave."""
        return cls(
            key=key,
            result=result,
            repeats=timing.summary.repeats,
            outliers=timing.summary.outliers,
            rank_seconds=timing.rank_seconds,
            slowdown=timing.slowdown,
        )


class Header(Frozen):
    """What the records of a partial file belong to."""

    device: str
    hosts: tuple[str, ...]
    world_size: int
    backend: str
    torch: str
    quick: bool


def partial_path(out: Path) -> Path:
    """Where the measurements of an unfinished profile `out` are kept."""
    return out.with_name(out.name + ".partial.jsonl")


def read_partial(path: Path, header: Header) -> dict[str, Record]:
    """The finished measurements in `path` by key, none if there is no such file.

    A last line cut off by a kill is dropped. Raises `ForeignPartial` if the file belongs to another
    machine or to other options.
    """
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    complete = lines[:-1]  # a line counts once its newline is written
    if not complete:
        return {}
    try:
        found = Header.model_validate_json(complete[0])
        records = [Record.model_validate_json(line) for line in complete[1:]]
    except ValidationError as error:
        raise ForeignPartial(
            f"{path}: not readable ({error.errors()[0]['msg']}); delete it"
        ) from None
    for name, value in header:
        if getattr(found, name) != value:
            raise ForeignPartial(
                f"{path}: measured with {name} {getattr(found, name)}, this run has {value}; "
                "use --restart to measure anew"
            )
    return {record.key: record for record in records}


def start_partial(path: Path, header: Header, done: dict[str, Record]) -> None:
    """Write the header and the measurements kept so far, atomically."""
    text = "\n".join([header.model_dump_json(), *(r.model_dump_json() for r in done.values())])
    write_whole(path, text + "\n")


def append_partial(path: Path, record: Record) -> None:
    """Add one measurement; it survives a kill from here on."""
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")
