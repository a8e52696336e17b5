"""How often the printed intervals hold for runs that they have not seen.

    python -m benchmarks.accuracy.coverage    prints the table, and writes it into the docs

Every left-out prediction of `hardware_profiles/fits/intervals.csv` is judged, in two ways:

a run like known ones   constants have not seen its layout (or nothing of its source, where they
                        were never fitted to it), the interval has seen the other four fifths of the
                        runs
a run of a new source   neither constants nor interval have seen anything of its source; where the
                        engine has no other, they are those of an engine that nobody measured
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks.accuracy.tables import ROOT, new_sources, put
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.intervals import (
    Asked,
    Evidence,
    Quantity,
    evidence_of,
    interval,
)
from meshplan.hardware_profiles.left_out_runs import Ratio, ratios

PARTS, FEW = 5, 10
QUANTITIES: dict[Quantity, str] = {"step_time": "step time", "reserved": "reserved memory"}


@dataclass(slots=True)
class Held:
    """Whether intervals held, and their factors, of runs like known ones and of new sources."""

    known: list[bool] = field(default_factory=list)
    new: list[bool] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of all of them."""
        return mean([*self.known, *self.new])

    def cells(self) -> str:
        """As cells of a table."""
        known, new = (f"{len(x):,} | {mean(x):.0%}" if x else " | " for x in (self.known, self.new))
        return f"{known} | {new} | {self.share:.0%} | {median(self.factors) - 1:.0%}"


def held(left_out: Iterable[Ratio], what: Quantity) -> dict[tuple[str, str], Held]:
    """By engine and GPU family; ("", "") is all."""
    every = list(left_out)
    stated = [ratio for ratio in every if getattr(ratio, what) is not None]
    found: dict[tuple[str, str], Held] = defaultdict(Held)
    ways = (*_like_known(stated, every, what), *_of_new_sources(stated, every, what))
    for ratio, evidence, known in ways:
        asked = Asked(
            ratio.engine, ratio.gpu, ratio.gpus, ratio.precision, ratio.model, ratio.between_nodes
        )
        around = interval(evidence, asked)
        inside = around.low <= getattr(ratio, what) <= around.high
        for key in (("", ""), (ratio.engine, ratio.gpu)):
            (found[key].known if known else found[key].new).append(inside)
            found[key].factors.append(around.high)
    return found


Judged = Iterator[tuple[Ratio, Evidence, bool]]


def _like_known(stated: list[Ratio], every: list[Ratio], what: Quantity) -> Judged:
    fitted = {ratio.suite for ratio in stated if ratio.left_out == "layout"}
    for part in range(PARTS):
        rest = evidence_of((r for r in every if _part(r) != part), what)
        for ratio in stated:
            if _part(ratio) == part and (ratio.left_out == "layout" or ratio.suite not in fitted):
                yield ratio, rest, True


def _part(ratio: Ratio) -> int:
    return zlib.crc32(ratio.run.encode()) % PARTS


def _of_new_sources(stated: list[Ratio], every: list[Ratio], what: Quantity) -> Judged:
    alone, with_engine = new_sources(stated)
    for suite in sorted({ratio.suite for ratio in stated}):
        rest = evidence_of((r for r in every if r.suite != suite), what)
        for ratio in (*alone, *with_engine):
            if ratio.suite == suite:
                yield ratio, rest, False


def table() -> str:
    """Both quantities; of the step time each engine and GPU family with at least `FEW` runs."""
    lines = [
        "| engine, GPUs | runs like known ones | inside | runs of new sources | inside "
        "| both | half of the intervals within ± |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, name in QUANTITIES.items():
        found = held(ratios(), what)
        lines.append(f"| **{name}, all** | {found['', ''].cells()} |")
        for (engine, gpu), cell in sorted(found.items()):
            if engine and what == "step_time" and runs_of(cell) >= FEW:
                lines.append(f"| {engine}, {gpu} | {cell.cells()} |")
    return "\n".join(lines)


def runs_of(cell: Held) -> int:
    """How many runs were judged, in the way in which there were more."""
    return max(len(cell.known), len(cell.new))


def main() -> None:
    """Print the table, and write it and its summary."""
    text = table()
    print(text)
    put(ROOT / "docs/accuracy_tables.md", "intervals", text)
    whole = [line for line in text.split("\n") if not line.startswith("| ") or "**" in line]
    short = [text.split("\n", 1)[0], *whole]
    put(ROOT / "docs/accuracy.md", "intervals summary", "\n".join(short))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
