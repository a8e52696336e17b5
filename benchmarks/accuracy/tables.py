"""Write the tables of docs/accuracy_tables.md and the short ones of accuracy.md and README.md.

    python -m benchmarks.accuracy.tables

The table of what each effect is worth is written by `benchmarks.accuracy.ablation`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, TABLES, put
from benchmarks.usage import check_usage
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.errors.intervals import STATE
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, ratios
from meshplan.hardware_profiles.tunings import SHIPPED, fits_of
from meshplan.planner.runs.accuracy import fitting, memory_errors, spread, step_errors, summary
from meshplan.planner.runs.runs import BUILT_IN, read_runs
from meshplan.planner.runs.validate import Predicted, predict_rows

INTERNLM = BUILT_IN.parent / "internlm.csv"
ELSEWHERE = BUILT_IN.parent / "elsewhere.csv"
ALEPH = BUILT_IN.parent / "aleph.csv"
LORA = BUILT_IN.parent / "lora.csv"
HYBRIDS = BUILT_IN.parent / "hybrids.csv"


def table() -> str:
    """The errors by suite and grade, then memory, fitting and choice."""
    results = list(predict_rows(read_runs(BUILT_IN)))
    rows = [row for row in results if isinstance(row, Predicted)]
    report = summary(rows, len(results) - len(rows))
    return "\n".join([*_by_suite(report), "", *_summed_up(report)])


def _by_suite(report: dict[str, Any]) -> Iterator[str]:
    """A line for each suite of each grade, and for all of it."""
    yield "| suite | rows | median | p90 | bias | one constant MFU |"
    yield "|---|---|---|---|---|---|"
    suites = {name: cell for name, cell in report["step_time"].items() if name[-2:] in (" A", " B")}
    every = {f"**all of grade {grade}**": cell for grade, cell in report["by_grade"].items()}
    for name, cell in (suites | every).items():
        yield (
            f"| {name} | {cell['rows']} | {cell['median']:.1%} | {cell['p90']:.1%} | "
            f"{cell['bias']:+.1%} | {cell['simple_median']:.1%} |"
        )


def _summed_up(report: dict[str, Any]) -> Iterator[str]:
    """What the suites come to; memory, fitting and choice."""
    fits, found = report["fits"], report["choice"]
    yield f"Mean of the suites' medians (A and B together): {report['mean_of_suite_medians']:.1%}."
    for kind in ("allocated", "reserved"):
        if cell := report[kind]:
            yield (
                f"{kind.capitalize()} memory, {cell['rows']} rows: median {cell['median']:.1%}, "
                f"bias {cell['bias']:+.1%}."
            )
    yield (
        f"Does it fit: {fits['balanced_accuracy']:.1%} balanced accuracy; {fits['missed']} of "
        f"{fits['out_of_memory']} runs out of memory were said to fit, {fits['careful']} of "
        f"{fits['fitting']} that ran were said not to."
    )
    yield (
        f"Choice, {found['groups']} groups of at least four layouts: the one ranked first is "
        f"{found['median_regret']:.1%} (median) and {found['mean_regret']:.1%} (mean) slower than "
        f"the measured best, Spearman {found['spearman']:.2f}; by rules of thumb "
        f"{found['rules_median_regret']:.1%} and {found['rules_mean_regret']:.1%}."
    )
    yield f"{report['rows']} rows predicted, {report['skipped']} skipped with a reason."


def unseen() -> str:
    """Lines on the runs of frameworks that no constant was fitted to."""
    found = _complete(INTERNLM, "AB")
    lines = [f"Runs that nothing was fitted to, InternLM on 8 to 1,024 A100: {_told(found)}."]
    sweep = _told(_complete(ALEPH, "AB"))
    lines.append(f"Runs that nothing was fitted to, Aleph Alpha on 32 to 256 A100: {sweep}.")
    lines += [
        f"Runs that nothing was fitted to, other frameworks and releases, grade {grade}: "
        f"{_told(_complete(ELSEWHERE, grade))}."
        for grade in ("A", "B")
    ]
    return "\n".join(lines)


def _complete(path: Path, grades: str) -> list[Predicted]:
    """The runs of a file that have one of these grades and a step time."""
    rows = [row for row in predict_rows(read_runs(path)) if isinstance(row, Predicted)]
    return [row for row in rows if row.run.grade in grades and row.step_error is not None]


def _told(rows: list[Predicted]) -> str:
    count, median, p90, bias = _errors(rows).split(" | ")
    return f"{count} rows, median {median}, p90 {p90}, bias {bias}"


def elsewhere() -> str:
    """The errors on runs of other frameworks and releases, by suite and grade, then all of each."""
    rows = _complete(ELSEWHERE, "AB")
    lines = ["| suite | engine | rows | median | p90 | bias |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[Predicted]] = defaultdict(list)
    for row in rows:
        groups[f"{row.run.suite} {row.run.grade}", row.run.engine.name].append(row)
    lines += [f"| {name} | {by} | {_errors(groups[name, by])} |" for name, by in sorted(groups)]
    for grade in ("A", "B"):
        same = [row for row in rows if row.run.grade == grade]
        lines.append(f"| **all of grade {grade}** | | {_errors(same)} |")
    return "\n".join(lines)


def lora() -> str:
    """The errors on runs with frozen weights, by suite, engine and GPU, then all of each file."""
    lines = [
        "| suite | engine | GPU | rows | median | p90 | bias |",
        "|---|---|---|---|---|---|---|",
    ]
    for path, name in ((BUILT_IN, "fitted with the others"), (LORA, "never fitted")):
        rows = [row for row in _complete(path, "AB") if row.run.training.lora]
        groups: dict[str, list[Predicted]] = defaultdict(list)
        for row in rows:
            run = row.run
            groups[f"{run.suite} | {run.engine.name} | {run.cluster.gpu.name}"].append(row)
        lines += [f"| {group} | {_errors(groups[group])} |" for group in sorted(groups)]
        lines.append(f"| **all, {name}** | | | {_errors(rows)} |")
    return "\n".join(lines)


def hybrids() -> str:
    """The errors on runs of models with a state that nothing was fitted to, each, then all."""
    lines = [
        "| run | engine | GPU | precision | predicted / measured - 1 | GiB of the GPU's needed |",
        "|---|---|---|---|---|---|",
    ]
    rows = _complete(HYBRIDS, "AB")
    for row in rows:
        run, gpu = row.run, row.run.cluster.gpu
        needed = f"{row.allocated_gib:.0f} of {gpu.memory_bytes / GIB:.0f}"
        lines.append(
            f"| {run.id} | {run.engine.name} | {gpu.name} | {run.training.precision} "
            f"| {row.step_error:+.1%} | {needed} |"
        )
    return "\n".join([*lines, "", f"All: {_told(rows)}."])


def _errors(rows: list[Predicted]) -> str:
    found = spread(step_errors(rows))
    assert found is not None
    return f"{found.rows} | {found.median:.1%} | {found.p90:.1%} | {found.bias:+.1%}"


def fits() -> str:
    """The shipped fits: rows, groups, and the error on the groups left out."""
    lines = ["| engine | GPUs | rows | groups | error on those left out |", "|---|---|---|---|---|"]
    for path in sorted(SHIPPED.glob("*.toml")):
        for family, fit in fits_of(path.stem).items():
            if fit.source.endswith(BUILT_IN.name):  # those of the native engine were measured
                lines.append(
                    f"| {path.stem} | {family} | {fit.rows} | {fit.groups} "
                    f"| {fit.error_fraction:.1%} |"
                )
    return "\n".join(lines)


IN_SHORT = (
    "their layout left out of the fit, grade A",
    "their whole source left out, the engine has another",
    "their source left out, the engine with it: it has no other",
    "other frameworks and releases, never fitted, grade B",
)
"""Rows of `short` that the README shows: ever less of a run is known."""


def in_short(whole: str) -> Iterator[str]:
    """The lines of `short` without the rows that the README leaves out."""
    kept = ("| step time", *(f"| {name} |" for name in IN_SHORT))
    for line in whole.splitlines():
        if not line.startswith("| ") or line.startswith(kept):
            yield line


def short() -> str:
    """What holds today: errors in-sample, left out and never fitted."""
    published = [row for row in predict_rows(read_runs(BUILT_IN)) if isinstance(row, Predicted)]
    lines = [
        "| step time of runs | rows | median | p90 |",
        "|---|---|---|---|",
    ]
    for grade in ("A", "B"):
        rows = [row for row in published if row.run.grade == grade and row.step_error is not None]
        lines.append(f"| grade {grade}, constants fitted to them | {_errors_of(rows)} |")
    lines += [f"| {name} | {_spread_of(errors)} |" for name, errors in _left_out()]
    lines.append(f"| InternLM's, never fitted | {_errors_of(_complete(INTERNLM, 'AB'))} |")
    lines.append(f"| Aleph Alpha's, never fitted | {_errors_of(_complete(ALEPH, 'AB'))} |")
    lines.append(f"| LoRA of MLPerf's, never fitted | {_errors_of(_complete(LORA, 'AB'))} |")
    hybrids = _errors_of(_complete(HYBRIDS, "AB"))
    lines.append(f"| hybrids and sparse attention, never fitted | {hybrids} |")
    lines += [
        f"| other frameworks and releases, never fitted, grade {grade} "
        f"| {_errors_of(_complete(ELSEWHERE, grade))} |"
        for grade in ("A", "B")
    ]
    memory, fits = spread(memory_errors(published, "reserved")), fitting(published)
    assert memory is not None
    assert fits.balanced_accuracy is not None
    return "\n".join([
        *lines, "",
        f"Reserved memory, {memory.rows} rows, in-sample: median {memory.median:.1%}, p90 "
        f"{memory.p90:.1%}. Does it fit: {fits.missed} of {fits.out_of_memory} runs out of "
        f"memory were said to fit, {fits.careful} of {fits.fitting} that ran were said not to.",
    ])  # fmt: skip


def _left_out() -> Iterator[tuple[str, list[float]]]:
    """The errors of left-out runs, by what was left out."""
    graded = {row["id"]: row["grade"] for row in read_runs(BUILT_IN)}
    for grade in ("A", "B"):
        name = f"their layout left out of the fit, grade {grade}"
        found = [r for r in ratios() if r.left_out == "layout" and graded.get(r.run) == grade]
        yield name, [_error_of(ratio) for ratio in found]
    alone, with_engine = new_sources(ratios())
    yield "their whole source left out, the engine has another", [_error_of(r) for r in alone]
    known = [_error_of(ratio) for ratio in with_engine if ratio.model != STATE]
    yield "their source left out, the engine with it: it has no other", known


def new_sources(left_out: Iterable[Ratio]) -> tuple[list[Ratio], list[Ratio]]:
    """Runs whose source was left out alone, and with its engine. Where a source was left out both
    ways, alone: a plan would have loaded what the engine's other sources taught.
    """
    every = list(left_out)
    alone = [ratio for ratio in every if ratio.left_out == "source"]
    known = {(ratio.suite, ratio.engine) for ratio in alone}
    with_engine = [ratio for ratio in every if ratio.left_out == "framework"]
    return alone, [r for r in with_engine if (r.suite, r.engine) not in known]


def _error_of(ratio: Ratio) -> float:
    """Predicted over measured step time, minus one."""
    return 1 / ratio.step_time - 1


def _errors_of(rows: list[Predicted]) -> str:
    return _spread_of([row.step_error or 0.0 for row in rows])


def _spread_of(errors: list[float]) -> str:
    found = spread(errors)
    assert found is not None
    return f"{found.rows:,} | {found.median:.1%} | {found.p90:.1%}"


def main() -> None:
    """Write all tables."""
    text = f"{table()}\n{unseen()}"
    print(text)
    put(TABLES, "fits", fits())
    put(TABLES, "elsewhere", elsewhere())
    put(TABLES, "lora", lora())
    put(TABLES, "hybrids", hybrids())
    put(TABLES, "accuracy", text)
    whole = short()
    put(ROOT / "docs/accuracy.md", "accuracy summary", whole)
    put(ROOT / "README.md", "accuracy in short", "\n".join(in_short(whole)))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
