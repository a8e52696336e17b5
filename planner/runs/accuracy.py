"""The errors of many predictions, by suite: time, memory, out of memory, and the choice between
layouts.

median, p90     of |predicted / measured - 1|; bias is the median with its sign
regret          measured time of the layout that is ranked first over the best measured one, minus
                1, over groups of at least four layouts that differ in nothing else; what is said
                not to fit comes last, as no plan would name it
rules of thumb  the layout that the Ultra-Scale Playbook's rules prefer among the same ones
balanced        accuracy of "it fits": the mean of the share of fitting rows called fitting and
                of rows out of memory called so
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

import numpy as np

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.runs.compared import compared
from meshplan.planner.runs.runs import Run, measured_step_s
from meshplan.planner.runs.validate import Predicted

SMALLEST_GROUP = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """How far off so many predictions are.

    rows    how many
    median  of the errors without their sign
    p90     their 90th percentile
    bias    the median error with its sign
    """

    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well layouts are ranked, over groups.

    groups                  of runs that differ in their layout alone
    median_regret, mean_regret
                            measured time of the layout that is ranked first over the best measured
                            one, minus 1; over groups
    spearman                rank correlation of predicted and measured, mean of the groups
    rules_median_regret, rules_mean_regret
                            the same where the Playbook's order of preference ranks first
                            (`rule_of_thumb`)
    """

    groups: int
    median_regret: float
    mean_regret: float
    spearman: float
    rules_median_regret: float
    rules_mean_regret: float


@dataclass(frozen=True, slots=True)
class Fitting:
    """Rows by whether they ran out of memory and whether they were predicted to.

    out_of_memory  rows that ran out of memory
    fitting        rows that ran
    missed         ran out of memory, but were said to fit: plans that crash
    careful        ran, but were said not to fit: plans that were given away
    """

    out_of_memory: int
    fitting: int
    missed: int
    careful: int

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of both shares, None unless there are rows of both kinds."""
        if not (self.out_of_memory and self.fitting):
            return None
        found = 1 - self.missed / self.out_of_memory
        return (found + 1 - self.careful / self.fitting) / 2


def spread(errors: Sequence[float]) -> Spread | None:
    """The spread of predicted / measured - 1, None without any."""
    if not errors:
        return None
    sizes = np.abs(errors)
    return Spread(
        len(errors), float(np.median(sizes)), float(np.percentile(sizes, 90)), median(errors)
    )


def step_errors(rows: Sequence[Predicted], *, simple: bool = False) -> list[float]:
    """Of the rows that state a step time; `simple`: of the one-MFU model instead of ours."""
    found = []
    for row in rows:
        measured = row.run.measured.step_time_s
        if measured and not row.run.measured.oom:
            predicted = row.simple_step_time_s if simple else row.time.step_time_s
            found.append(predicted / measured - 1)
    return found


def memory_errors(rows: Sequence[Predicted], kind: str) -> list[float]:
    """Of the rows that state a peak of `kind` ("allocated" or "reserved")."""
    pairs = [
        (getattr(row, f"{kind}_gib"), getattr(row.run.measured, f"{kind}_gib")) for row in rows
    ]
    return [predicted / measured - 1 for predicted, measured in pairs if measured]


def fitting(rows: Sequence[Predicted]) -> Fitting:
    """Whether what ran out of memory was said to, and what ran was not: it states a time or a
    peak of memory.
    """
    out = [row for row in rows if row.run.measured.oom]
    ran = [row for row in rows if row.run.measured.ran]
    return Fitting(
        len(out), len(ran), sum(row.fits for row in out), sum(not row.fits for row in ran)
    )


def choice(rows: Sequence[Predicted]) -> Ranking | None:
    """How well each group's layouts are ranked, None without a group large enough."""
    groups: dict[tuple[Any, ...], dict[str, Predicted]] = defaultdict(dict)
    for row in rows:
        if row.run.measured.step_time_s and not row.run.measured.oom:
            groups[row.run.group].setdefault(row.run.layout.label, row)
    members = [list(group.values()) for group in groups.values() if len(group) >= SMALLEST_GROUP]
    if not members:
        return None
    ours = [_regret(group, min(group, key=_rank)) for group in members]
    rules = [
        _regret(group, min(group, key=lambda row: rule_of_thumb(row.run))) for group in members
    ]
    return Ranking(
        len(members), median(ours), mean(ours), mean(_spearman(group) for group in members),
        median(rules), mean(rules),
    )  # fmt: skip


def rule_of_thumb(run: Run) -> tuple[float, ...]:
    """The Playbook's order of preference, smallest first ("finding the best configuration"): tensor
    parallel inside a node; as little model parallelism as fits, of which tensor before
    pipeline; then the largest micro-batch.
    """
    la = run.layout
    return (
        la.tensor_parallel > run.cluster.gpus_per_node,
        la.tensor_parallel * la.pipeline_parallel * la.context_parallel,
        la.pipeline_parallel,
        -la.micro_batch_size,
    )


def _rank(row: Predicted) -> tuple[bool, float]:
    return not row.fits, row.time.step_time_s


def _regret(group: Sequence[Predicted], chosen: Predicted) -> float:
    return measured_step_s(chosen.run) / min(measured_step_s(row.run) for row in group) - 1


def _spearman(group: Sequence[Predicted]) -> float:
    """Rank correlation of predicted and measured times; ties keep their order."""
    predicted = np.argsort(np.argsort([row.time.step_time_s for row in group]))
    measured = np.argsort(np.argsort([measured_step_s(row.run) for row in group]))
    return float(np.corrcoef(predicted, measured)[0, 1])


def summary(rows: Sequence[Predicted], skipped: int) -> dict[str, Any]:
    """All rows in numbers: overall, and by suite and grade.

    rows     that were priced
    skipped  rows that were not
    step_time.*             predicted / measured - 1, by suite and grade
    by_grade.*              the same by grade, A and B
    mean_of_suite_medians   of grades A and B; None without any
    inside_8_of_10.step_time, inside_8_of_10.reserved
                            fraction of the rows of grades A and B that lie in their range
    allocated, reserved     errors of the memory; None where no row states it
    fits                    rows by whether they ran out of memory
    fits.balanced_accuracy  mean of the shares of both kinds that were told right, None unless there
                            are rows of both
    choice                  how well layouts are ranked; None without a group large enough
    """
    cells: dict[tuple[str, str], list[Predicted]] = defaultdict(list)
    for row in rows:
        cells[row.run.suite, row.run.grade].append(row)
    suites: dict[str, list[Predicted]] = defaultdict(list)
    for row in rows:
        if row.run.grade in ("A", "B"):
            suites[row.run.suite].append(row)
    medians = [found.median for group in suites.values() if (found := spread(step_errors(group)))]
    fits = fitting(rows)
    return {
        "rows": len(rows),
        "skipped": skipped,
        "step_time": {
            f"{suite} {grade}".strip(): step_cell(group)
            for (suite, grade), group in sorted(cells.items())
            if step_errors(group)
        },
        "by_grade": {
            grade: step_cell(group)
            for grade in ("A", "B")
            if step_errors(group := [row for row in rows if row.run.grade == grade])
        },
        "mean_of_suite_medians": mean(medians) if medians else None,
        "inside_8_of_10": {
            "step_time": _share_inside(rows, "step time"),
            "reserved": _share_inside(rows, "reserved"),
        },
        "allocated": _plain(spread(memory_errors(rows, "allocated"))),
        "reserved": _plain(spread(memory_errors(rows, "reserved"))),
        "fits": asdict(fits) | {"balanced_accuracy": fits.balanced_accuracy},
        "choice": _plain(choice(rows)),
    }


def _share_inside(rows: Sequence[Predicted], what: str) -> float | None:
    """Of the rows of grades A and B that state it, how many lie in the range of 8 of 10 runs."""
    found = [
        bool(each.inside)
        for row in rows
        if row.run.grade in ("", "A", "B")
        for each in compared(row)
        if each.what == what
    ]
    return mean(found) if found else None


def step_cell(rows: Sequence[Predicted]) -> dict[str, Any]:
    """Errors of some rows, and of a rule of thumb.

    simple_median  median error of 6 x parameters x tokens at an MFU of 0.42
    """
    simple = spread(step_errors(rows, simple=True))
    cell = _plain(spread(step_errors(rows))) or {}
    return cell | {"simple_median": simple.median if simple else None}


def _plain(value: Spread | Ranking | None) -> dict[str, Any] | None:
    return asdict(value) if value else None
