"""What two runs teach of a framework that nobody measured: error on left-out layouts of its source.

    python -m benchmarks.accuracy.learn --choose   writes hardware_profiles/learning.toml, and the
                                                   table of all sources (docs/accuracy_tables.md)
    python -m benchmarks.accuracy.learn            the table of `SHOWN` and of sources that begin
                                                   beyond `FAR`, into docs/learn.md
    python -m benchmarks.accuracy.learn SUITE...   of that table the lines of these suites
    python -m benchmarks.accuracy.learn --habits   all sources by what ships, if the habits of their
                                                   framework were stated; printed
    python -m benchmarks.accuracy.learn --numbers  what one run, two and more are worth, of sources
                                                   with `MANY` layouts; printed

Each prices all runs first (two to four minutes of a core, with a bar), and learns the prior of each
source from these prices (`benchmarks.accuracy.priors`).

A source is treated as an unknown framework (`benchmarks.accuracy.learn_sources`). Two runs of
different layouts are learnt from (`planner.learn.shrink`) and its other layouts predicted; the
error is the median over these. The two are drawn, or those that `meshplan learn --which` asks for.

`--choose` takes the shrinkage that does this best over the sources that are not in `SHOWN`, each
alike, in the mean of both ways, what is worse than before counted twice, and counts how far off 8
of 10 left-out runs are then, of both ways alike. There steps add up what constants scale
(`benchmarks.accuracy.learn_sources.Scaled`), and no run is priced again; in docs/learn.md all are.
In the table of all sources each is
predicted by a shrinkage that was chosen without its suite.
"""

import datetime
import itertools
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import mean, median

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.accuracy.learn_sources import (
    Draw,
    Row,
    Source,
    asked_for,
    drawn,
    own_rows,
    rows,
    sources,
    without_prices,
)
from benchmarks.accuracy.learn_summary import FAR, lines_of, summary
from benchmarks.pages import ROOT, TABLES, put
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.files.toml_io import write_toml
from meshplan.hardware_profiles.learned import reached
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.case.run_facts import differing
from meshplan.planner.learn.learn import FEWEST_TO_LEAVE_OUT, factor_of
from meshplan.planner.learn.shrink import (
    FILE,
    Shrinkage,
    Vector,
    predicted_s,
    read_shrinkage,
    shrunk,
)
from meshplan.planner.runs.learning import layout_of
from meshplan.planner.runs.runs import Run

PAGE = ROOT / "docs" / "learn.md"
SHOWN = ("playbook", "dgxc", "vtrain", "mosaic")
"""The largest suites, each of another framework."""

LEARNT_FROM, DRAWS, MOST_PREDICTED = 2, 4, 40
GRID = {
    "matmul_deviation": (0.1, 0.3), "scale_deviation": (0.1, 0.6),
    "communication_deviation": (0.1, 0.3),
    "host_deviation": (0.5, 1.0), "noise": (0.05, 0.1), "freedom": (4.0,),
}  # fmt: skip
"""Kernels' deviation of 0.9 and collectives' of 0.5 are as good to first order, but not exactly
(docs/accuracy_history.md, "Ranges and `learn`").
"""
GRID_DRAWS, NUMBERS, GOAL = 10, (1, 2, 3, 4, 6, 8), 0.08
MANY = 8
"""As many layouts have the sources of `--numbers`; all but two of them are learnt from at most."""
APART = (1, 2, 3, 4)
"""Differing facts: no more, and four and more alike."""
COMMAND = "python -m benchmarks.accuracy.learn --choose"
DISTANCE = 0.5
"""Of 0.1 to 1 the one that holds as many runs of sources that begin beyond `FAR` as of others,
left-out suites alike; the interval score of 0.2 and 0.3 is the same within two in a hundred.
"""
NO_WIDTHS = {
    "distance": DISTANCE, "widths": {}, "apart": {}, "date": "", "rows": 0, "sources": 0,
    "command": COMMAND,
}  # fmt: skip
Errors = tuple[float, float, float]
"""Of one source: the median error of left-out runs, mean over draws of both ways, and again what of
it is beyond the error before; the median of two drawn and of two asked for."""


def left_out(draws: Iterable[Draw], by: Shrinkage) -> list[Vector]:
    """ln(measured / predicted) of the left-out runs of each draw."""
    return [without_prices(seen, rest, by) for seen, rest in draws]


def size(logs: Vector) -> float:
    """Median |predicted / measured - 1|."""
    return float(np.median(np.abs(np.expm1(-logs))))


def choose() -> None:
    """Write the shrinkages that are best over the other sources, what they leave, and the table."""
    known = sources(rows())
    scored = _scored(known)
    others = {source: some for source, some in known.items() if source[0] not in SHOWN}
    own = sources(own_rows())
    found = {
        "stranger": _complete(_best(scored, list(others))[0], list(others.values())),
        "known": _complete(_best(_scored(own), list(own))[0], list(own.values())),
    }
    write_toml({kind: by.model_dump() for kind, by in found.items()}, FILE)
    text = all_sources(known, scored)
    print(f"{text}\n{FILE}")
    put(TABLES, "learn sources", text)


def _scored(known: Mapping[Source, list[Row]]) -> "Scored":
    return [(by, _errors_of(known, by)) for by in _candidates()]


def _candidates() -> list[Shrinkage]:
    return [
        Shrinkage.model_validate({**dict(zip(GRID, values, strict=True)), **NO_WIDTHS})
        for values in itertools.product(*GRID.values())
    ]


def _errors_of(known: Mapping[Source, list[Row]], by: Shrinkage) -> dict[Source, Errors]:
    found = {}
    for source, some in known.items():
        both = _both_ways(some, by, LEARNT_FROM)
        one, other = ([*map(size, left_out(draws, by))] for draws in both)
        error, before = (mean(one) + mean(other)) / 2, size(np.array([row.error for row in some]))
        found[source] = (error + max(error - before, 0.0), median(one), median(other))
    return found


Scored = Sequence[tuple[Shrinkage, Mapping[Source, Errors]]]


def _best(scored: Scored, among: Sequence[Source]) -> tuple[Shrinkage, Mapping[Source, Errors]]:
    """The shrinkage of least mean error over the sources `among`, each alike, and its errors."""
    return min(scored, key=lambda each: mean(each[1][source][0] for source in among))


def _complete(best: Shrinkage, known: Sequence[list[Row]]) -> Shrinkage:
    """With how far off left-out runs of the sources that chose it are."""
    return best.model_copy(
        update={
            "widths": (widths := {number: _width(known, number, best) for number in NUMBERS}),
            "apart": _apart(known, best.model_copy(update={"widths": widths})),
            "date": datetime.date.today().isoformat(),
            "rows": sum(map(len, known)), "sources": len(known),
        }
    )  # fmt: skip


def _width(known: Sequence[Sequence[Row]], number: int, by: Shrinkage) -> float:
    """80th percentile of |ln(measured / predicted)| over sqrt(sigma^2 + (D m)^2), each source and
    both ways to choose runs alike.
    """
    pooled, weights = [], []
    one = by.model_copy(update={"widths": {1: 1.0}})
    for draws in (draws for some in known for draws in _both_ways(some, by, number) if draws):
        scales = [_range(one, seen) for seen, _ in draws]
        found = [left / at for left, at in zip(left_out(draws, by), scales, strict=True)]
        pooled.append(np.abs(np.concatenate(found)))
        weights.append(np.full(len(pooled[-1]), 1 / len(pooled[-1])))
    return _percentile(np.concatenate(pooled), np.concatenate(weights))


def _apart(known: Sequence[Sequence[Row]], by: Shrinkage) -> dict[int, float]:
    """80th percentile of |ln(measured / predicted)| over the range's logarithm after two runs, by
    how many facts of a left-out run differ from the nearest of the two, each source alike.
    """
    errors: dict[int, list[tuple[float, float]]] = {number: [] for number in APART}
    for some in known:
        draws = [*itertools.chain(*_both_ways(some, by, LEARNT_FROM))]
        left = sum(len(rest) for _, rest in draws)
        for (seen, rest), logs in zip(draws, left_out(draws, by), strict=True):
            shares = np.abs(logs) / _range(by, seen)
            for row, share in zip(rest, shares, strict=True):
                errors[reached(APART, _nearest(row, seen))].append((float(share), 1 / left))
    return {number: _percentile(*zip(*some, strict=True)) for number, some in errors.items()}


def _nearest(row: Row, seen: Sequence[Row]) -> int:
    """How many of its facts differ from the nearest run's."""
    return min(differing(row.facts, run.facts) for run in seen)


def _percentile(values: ArrayLike, weights: ArrayLike) -> float:
    """The 80th of weighted values."""
    found, share = np.asarray(values), np.asarray(weights)
    order = np.argsort(found)
    reached = np.cumsum(share[order]) / share.sum()
    return round(float(found[order][np.searchsorted(reached, 0.8)]), 3)


def _both_ways(some: Sequence[Row], by: Shrinkage, number: int) -> tuple[list[Draw], list[Draw]]:
    """`number` runs drawn, and asked for."""
    asked = asked_for(some, by, GRID_DRAWS, number)
    return list(drawn(some, number, GRID_DRAWS)), list(asked)


def _range(by: Shrinkage, seen: Sequence[Row]) -> float:
    """ln of the factor between which 8 of 10 further runs lie, by other sources."""
    return math.log(by.factor(np.array([row.error for row in seen])))


def _range_of_own(by: Shrinkage, seen: Sequence[Row]) -> float:
    """The same by the runs themselves too, as `meshplan learn` says it."""
    others: list[Draw] = [([*seen[:at], *seen[at + 1 :]], [run]) for at, run in enumerate(seen)]
    enough = len(seen) >= FEWEST_TO_LEAVE_OUT
    own = [float(left[0]) for left in left_out(others, by)] if enough else []
    return math.log(factor_of(own, math.exp(_range(by, seen))))


def numbers(known: Mapping[Source, list[Row]], by: Shrinkage) -> str:
    """What 1 run, 2 and more are worth, by what ships: mean and median of the sources of `MANY`
    layouts, how many end below 8 %, and the share of left-out runs inside the range.
    """
    many = [some for some in known.values() if len({layout_of(row.run) for row in some}) >= MANY]
    lines = [
        f"| runs, {len(many)} sources | drawn | below {GOAL:.0%} | inside | asked for "
        f"| below {GOAL:.0%} | inside |",
        "|---|---|---|---|---|---|---|",
    ]
    before = np.array([size(np.array([row.error for row in some])) for some in many])
    lines.append(f"| 0 | {_summary(before)} | | {_summary(before)} | |")
    for number in (each for each in NUMBERS if each <= MANY - 2):
        ways = zip(*(_both_ways(some, by, number) for some in many), strict=True)
        cells = [_summary(*_left_by(way, by)) for way in ways]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _left_by(way: Sequence[list[Draw]], by: Shrinkage) -> tuple[Vector, float]:
    """The error of each source, and the share of left-out runs inside the range."""
    errors, inside = [], []
    for draws in way:
        left = left_out(draws, by)
        errors.append(mean(map(size, left)))
        inside += [
            mean(float(np.mean(np.abs(logs) <= _range_of_own(by, seen))) for logs, (seen, _) in
                 zip(left, draws, strict=True))
        ]  # fmt: skip
    return np.array(errors), mean(inside)


def _summary(errors: Vector, inside: float | None = None) -> str:
    below = int((errors < GOAL).sum())
    held = "" if inside is None else f" | {inside:.0%}"
    return f"{errors.mean():.1%}, {np.median(errors):.1%} | {below}{held}"


def all_sources(known: Mapping[Source, list[Row]], scored: Scored) -> str:
    """A line for each source, by the shrinkage that all suites but its own choose; then how many
    sources of how many end below 8 %.
    """
    lines = [
        "| source | engine left out | GPU | layouts | before | two drawn | two asked for |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {}
    for source, some in known.items():
        _, errors = _best(scored, [other for other in known if other[0] != source[0]])
        before = size(np.array([row.error for row in some]))
        found[source] = (before, *errors[source][1:])
        layouts = len({layout_of(row.run) for row in some})
        cells = " | ".join(f"{each:.1%}" for each in found[source])
        lines.append(f"| {source[0]} | {source[1]} | {source[2]} | {layouts} | {cells} |")
    every = np.array(list(found.values()))
    lines.append(f"| **mean of {len(every)}** | | | | {_cells(every.mean(axis=0))} |")
    lines.append(f"| **median** | | | | {_cells(np.median(every, axis=0))} |")
    below = [f"{int(number)}" for number in (every < GOAL).sum(axis=0)]
    lines.append(f"| **below {GOAL:.0%}** | | | | {' | '.join(below)} |")
    return "\n".join(lines)


def stated(known: Mapping[Source, list[Row]]) -> str:
    """The table of all sources by the shrinkage that ships for stated habits."""
    by = read_shrinkage("known")
    return all_sources(known, [(by, _errors_of(known, by))])


def _cells(values: Vector) -> str:
    return " | ".join(f"{each:.1%}" for each in values)


def exactly(draws: Iterable[Draw], prior: Tuning, by: Shrinkage) -> tuple[list[float], list[float]]:
    """Of each draw: the median error of the left-out runs, and how many are inside the interval of
    8 of 10.
    """
    errors, inside = [], []
    for seen, rest in draws:
        found = shrunk([row.run for row in seen], prior, by)
        every = math.ceil(len(rest) / MOST_PREDICTED)
        some = rest[::every]
        logs = np.array([_log(row.run, found.tuning) for row in some])
        apart = np.array([by.apart[reached(by.apart, _nearest(row, seen))] for row in some])
        errors.append(size(logs))
        inside.append(float(np.mean(np.abs(logs) <= math.log(by.factor(found.errors)) * apart)))
    return errors, inside


def _log(run: Run, tuning: Tuning) -> float:
    assert run.measured.step_time_s is not None
    return math.log(run.measured.step_time_s / predicted_s(run, tuning))


def shown(source: Source, some: Sequence[Row], by: Shrinkage) -> str:
    """A line of the table."""
    engine, prior = some[0].engine, some[0].prior
    before = size(np.array([row.error for row in some]))
    errors, inside = exactly(drawn(some, LEARNT_FROM, DRAWS), prior, by)
    asked, inside_asked = exactly(asked_for(some, by, DRAWS), prior, by)
    return (
        f"| {source[0]} | {engine} | {source[2]} | {len(some)} | {before:.1%} | {mean(errors):.1%} "
        f"| {median(errors):.1%} | {np.percentile(errors, 90):.1%} | {mean(asked):.1%} "
        f"| {median(asked):.1%} | {mean((*inside, *inside_asked)):.0%} |"
    )


def table(suites: Collection[str] = ()) -> str:
    """The sources of `SHOWN` and those that begin beyond `FAR`, before and after two runs: all of
    them, or those of `suites` among the lines that the page has.
    """
    lines = [
        "| source | engine left out | GPU | runs | before | two drawn, mean | median | worst tenth "
        "| two asked for, mean | median | inside 8 of 10 |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    made = []
    for source, some in sources(rows(suites)).items():
        if source[0] in SHOWN or size(np.array([row.error for row in some])) > FAR:
            made.append(shown(source, some, read_shrinkage("stranger")))
            print(made[-1], flush=True)
    own = sorted([*made, *_lines_of_others(suites)])
    return "\n".join([*lines, *own, summary(own)])


def _lines_of_others(suites: Collection[str]) -> list[str]:
    """What the page's table says of other suites; nothing if all are made."""
    found = lines_of(PAGE.read_text(encoding="utf-8"))
    return [line for line in found if suites and line.split("|")[1].strip() not in suites]


def main() -> None:
    """Choose, or show."""
    if "--choose" in sys.argv[1:]:
        choose()
    elif "--habits" in sys.argv[1:]:
        print(stated(sources(rows(habits=True))))
    elif "--numbers" in sys.argv[1:]:
        print(numbers(sources(rows()), read_shrinkage("stranger")))
        print(numbers(sources(rows(habits=True)), read_shrinkage("known")))
    else:
        put(PAGE, "learn table", table(sys.argv[1:]))


if __name__ == "__main__":
    check_usage(str(__doc__), "--choose", "--habits", "--numbers")
    main()
