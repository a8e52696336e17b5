"""How often the printed intervals hold for runs that they have not seen.

    python -m benchmarks.accuracy.coverage    prints the tables, and writes them into the docs

Every left-out prediction of `hardware_profiles/fits/intervals.csv` is judged, in two ways:

a run like known ones   constants have not seen its layout (or nothing of its source, where they
                        were never fitted to it), the interval has seen the other four fifths of the
                        runs
a run of a new source   neither constants nor interval have seen anything of its source; where the
                        engine has no other, they are those of an engine that nobody measured. As it
                        was first predicted where that is known (`first_predictions.csv`), before
                        what its error showed could be mended; the interval is today's.

The second table counts new sources by what is known of their engine and GPU and by what was run.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple

from benchmarks.accuracy.tables import new_sources
from benchmarks.pages import ROOT, TABLES, put
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.asked import asked_like
from meshplan.hardware_profiles.errors.intervals import (
    STATE,
    Evidence,
    Interval,
    Quantity,
    evidence_of,
    interval,
)
from meshplan.hardware_profiles.errors.left_out_errors import is_narrow
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, first_step_times, ratios

PARTS, FEW = 5, 10
QUANTITIES: dict[Quantity, str] = {"step_time": "step time", "reserved": "reserved memory"}
SCALES = (1, 8, 64, 512)


class Judged(NamedTuple):
    """A left-out run, what of its engine and GPU the `evidence` covers, and whether it was inside;
    `now`: by its ratio of today, which may have been mended since it was first predicted.
    """

    ratio: Ratio
    evidence: Evidence
    known: bool
    around: Interval
    inside: bool
    now: bool


@dataclass(slots=True)
class Held:
    """Whether intervals held of runs like known ones and of new sources, and both their ends."""

    known: list[bool] = field(default_factory=list)
    new: list[bool] = field(default_factory=list)
    now: list[bool] = field(default_factory=list)
    sources: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    ends: list[tuple[float, float]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of all of them."""
        return mean([*self.known, *self.new])

    @property
    def by_source(self) -> float:
        """Of new sources, each alike."""
        return mean(mean(some) for some in self.sources.values())

    @property
    def width(self) -> str:
        """Medians of both ends."""
        low, high = (median(ends) - 1 for ends in zip(*self.ends, strict=True))
        return f"{low:+.0%} to {high:+.0%}"

    def add(self, judged: Judged) -> None:
        """One run more."""
        self.ends.append((judged.around.low, judged.around.high))
        if judged.known:
            self.known.append(judged.inside)
            return
        self.new.append(judged.inside)
        self.now.append(judged.now)
        self.sources[judged.ratio.suite].append(judged.inside)

    def cells(self) -> str:
        """As cells of a table."""
        known, new = (f"{len(x):,} | {mean(x):.0%}" if x else " | " for x in (self.known, self.new))
        alike = f"{self.by_source:.0%} of {len(self.sources)}" if self.sources else ""
        return f"{known} | {new} | {alike} | {self.share:.0%} | {self.width}"


def held(left_out: Iterable[Ratio], what: Quantity) -> dict[tuple[str, str], Held]:
    """By engine and GPU family; ("", "") is all."""
    return held_of(judgements(left_out, what))


def held_of(runs: Iterable[Judged]) -> dict[tuple[str, str], Held]:
    """The same of runs that are already judged."""
    found: dict[tuple[str, str], Held] = defaultdict(Held)
    for judged in runs:
        for key in (("", ""), (judged.ratio.engine, judged.ratio.gpu)):
            found[key].add(judged)
    return found


def judgements(left_out: Iterable[Ratio], what: Quantity) -> Iterator[Judged]:
    """Every run in both ways; models with a state and others by their own kind alone, as plans."""
    every = list(left_out)
    for of_states in (True, False):
        some = [ratio for ratio in every if (ratio.model == STATE) == of_states]
        stated = [ratio for ratio in some if getattr(ratio, what) is not None]
        yield from _like_known(stated, some, what)
        yield from _of_new_sources(stated, some, what)


def _like_known(stated: list[Ratio], every: list[Ratio], what: Quantity) -> Iterator[Judged]:
    fitted = {ratio.suite for ratio in stated if ratio.left_out == "layout"}
    for part in range(PARTS):
        rest = _evidence((r for r in every if _part(r) != part), what)
        for ratio in stated:
            if _part(ratio) == part and (ratio.left_out == "layout" or ratio.suite not in fitted):
                yield _judged(ratio, rest, what, known=True)


def _part(ratio: Ratio) -> int:
    return zlib.crc32(ratio.run.encode()) % PARTS


def _of_new_sources(stated: list[Ratio], every: list[Ratio], what: Quantity) -> Iterator[Judged]:
    alone, with_engine = new_sources(stated)
    for suite in sorted({ratio.suite for ratio in stated}):
        rest = _evidence((r for r in every if r.suite != suite), what)
        for ratio in (*alone, *with_engine):
            if ratio.suite == suite:
                yield _judged(ratio, rest, what, known=False)


def _evidence(runs: Iterable[Ratio], what: Quantity) -> Evidence:
    return evidence_of(runs, what, first_step_times())


def _judged(ratio: Ratio, evidence: Evidence, what: Quantity, *, known: bool) -> Judged:
    around, now = interval(evidence, asked_like(ratio)), getattr(ratio, what)
    first = first_step_times().get(ratio.run, now) if what == "step_time" and not known else now
    inside, is_now = (around.low <= value <= around.high for value in (first, now))
    return Judged(ratio, evidence, known, around, inside, is_now)


def table() -> str:
    """Both quantities; of the step time each engine and GPU family with at least `FEW` runs."""
    lines = [
        "| engine, GPUs | runs like known ones | inside | runs of new sources | inside "
        "| each source alike | both | half of the intervals within |",
        "|---|---|---|---|---|---|---|---|",
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


def kinds_table() -> str:
    """Step times of new sources, by what the rest knows and by what was run."""
    new = [judged for judged in judgements(ratios(), "step_time") if not judged.known]
    lines = [
        "| new sources | runs | sources | inside | each source alike | by today's predictions "
        "| each alike | half of the intervals within |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        cells: dict[str, Held] = defaultdict(Held)
        for judged in new:
            cells[kind(judged)].add(judged)
        lines += [_kinds_line(name, cells[name], new, kind) for name in sorted(cells)]
    return "\n".join(lines)


Kind = Callable[[Judged], str]


def _kinds_line(name: str, cell: Held, new: Iterable[Judged], kind: Kind) -> str:
    by_source: dict[str, list[bool]] = defaultdict(list)
    for judged in new:
        if kind(judged) == name:
            by_source[judged.ratio.suite].append(judged.now)
    today = mean(mean(some) for some in by_source.values())
    return (
        f"| {name} | {len(cell.new):,} | {len(cell.sources)} | {mean(cell.new):.0%} "
        f"| {cell.by_source:.0%} | {mean(cell.now):.0%} | {today:.0%} | {cell.width} |"
    )


def _all(_: Judged) -> str:
    return "**all**"


def _first_known(judged: Judged) -> str:
    known = judged.ratio.run in first_step_times()
    return "first prediction kept" if known else "first prediction not kept"


def _engine_known(judged: Judged) -> str:
    runs = [*judged.evidence.known, *judged.evidence.between_nodes]
    on_gpu = [run for run in runs if run.gpu == judged.ratio.gpu]
    engine = any(run.engine == judged.ratio.engine for run in runs)
    both = any(run.engine == judged.ratio.engine for run in on_gpu)
    if both:
        return "engine known on these GPUs"
    gpus = "known" if on_gpu else "unknown"
    return f"engine {'known' if engine else 'unknown'}, GPUs {gpus}"


def _model(judged: Judged) -> str:
    return f"{judged.ratio.model} models"


def _precision(judged: Judged) -> str:
    return "8 bits or fewer" if is_narrow(judged.ratio.precision) else "16 bits"


def _scale(judged: Judged) -> str:
    above = [least for least in SCALES if judged.ratio.gpus > least]
    return f"more than {max(above):,} GPUs" if above else "1 GPU"


KINDS: tuple[Kind, ...] = (_all, _first_known, _engine_known, _model, _precision, _scale)


def main() -> None:
    """Print the tables, and write them and the summary."""
    text, kinds = table(), kinds_table()
    print(f"{text}\n\n{kinds}")
    put(TABLES, "intervals", text)
    put(TABLES, "intervals of new sources", kinds)
    whole = [line for line in text.split("\n") if not line.startswith("| ") or "**" in line]
    short = [text.split("\n", 1)[0], *whole]
    put(ROOT / "docs/accuracy.md", "intervals summary", "\n".join(short))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
