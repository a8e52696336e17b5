"""`meshplan validate`: the cost model against measured runs."""

import datetime
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from meshplan.costmodels.units import counted
from meshplan.planner.cli.options import AsJson
from meshplan.planner.processes.worker_processes import in_processes
from meshplan.planner.report.output import print_json, print_tables
from meshplan.planner.report.picture import check_plot
from meshplan.planner.report.terminal import as_written
from meshplan.planner.report.validated import runs_table
from meshplan.planner.runs.accuracy import summary
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, read_runs, run_of
from meshplan.planner.runs.validate import Predicted, Skipped, json_row, predict_chunk

Rows = list[dict[str, str]]
CHUNK = 100
SHOWN_ROWS = 20
NAMED = 3  # skipped rows, of each reason
MANY_ROWS = 400  # below this, starting a second process costs more than it saves


class UnreadableRuns(ValueError):
    """A file of measured runs that cannot be read; one line."""


def validate(
    runs: Annotated[
        Path | None,
        typer.Argument(help="CSV of measured runs (docs/runs.md); default: the published runs."),
    ] = None,
    as_json: AsJson = False,
    suite: Annotated[str, typer.Option(help="Only these suites, comma-separated.")] = "",
    grade: Annotated[str, typer.Option(help="Only these grades, such as A,B.")] = "",
    rows: Annotated[
        int, typer.Option(min=0, help="List at most so many runs, farthest off first.")
    ] = SHOWN_ROWS,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted against measured (.png, .svg or .html).")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(help="Instead: fit the constants and write them to this folder.")
    ] = None,
) -> None:
    """Score the cost model against measured runs, by suite and by run.

    Example: meshplan validate --grade A,B --json
    """
    if plot is not None:
        check_plot(plot, ".html")
    wanted = _rows(runs or BUILT_IN, {"suite": _words(suite), "grade": _words(grade)})
    if fit is not None:
        _fit(wanted, fit, runs)
        return
    results = _predict(wanted)
    predicted = [row for row in results if isinstance(row, Predicted)]
    document: dict[str, Any] = {
        "rows": [json_row(row) for row in results],
        "summary": summary(predicted, len(results) - len(predicted)),
    }
    if as_json:
        print_json(document)
    else:
        if rows and predicted:
            print_tables(runs_table(predicted, rows), "")
        _print(document["summary"], results)
    if not predicted:
        raise UnreadableRuns(f"{runs or BUILT_IN}: no run could be priced; each reason is above")
    if plot is not None:
        from meshplan.planner.report.validate_plot import draw  # matplotlib is an extra

        draw(predicted, plot)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _rows(path: Path, wanted: dict[str, frozenset[str]]) -> list[dict[str, str]]:
    """The rows that have the words wanted of their columns; raises `UnreadableRuns`."""
    try:
        rows = list(read_runs(path))
    except OSError as error:
        raise UnreadableRuns(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableRuns(
            f"{path}: cannot be read as measured runs: it is not UTF-8 text"
        ) from None
    except ValueError as error:
        raise UnreadableRuns(f"{path}: cannot be read as measured runs: {error}") from None
    if not rows:
        raise UnreadableRuns(f"{path}: no run below the line of columns (docs/runs.md)")
    for column, words in wanted.items():
        known = {row.get(column) or "" for row in rows}
        if other := sorted(words - known):
            raise UnreadableRuns(
                f"--{column} {other[0]!r}: no run of it in {path.name}; it has "
                f"{', '.join(sorted(known - {''})) or f'no {column} stated'}"
            )
    return [
        row
        for row in rows
        if all(not words or row.get(column) in words for column, words in wanted.items())
    ]


def _predict(rows: Rows) -> list[Predicted | Skipped]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    chunks = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
    workers = min(os.cpu_count() or 1, len(chunks)) if len(rows) >= MANY_ROWS else 1
    results: list[Predicted | Skipped] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("predicting", total=len(rows))
        for found in _by_chunk(chunks, workers):
            results += found
            progress.advance(bar, len(found))
    return results


def _by_chunk(chunks: list[Rows], workers: int) -> Iterator[list[Predicted | Skipped]]:
    """What each chunk gives, in their order."""
    if workers == 1:
        yield from map(predict_chunk, chunks)
        return
    with in_processes(workers, predict_chunk, chunks) as futures:
        for future in futures:
            yield future.result()


def _fit(rows: list[dict[str, str]], folder: Path, path: Path | None) -> None:
    """Write one file per engine; a user's own runs correct the constants that ship."""
    from meshplan.hardware_profiles.files.toml_io import write_toml
    from meshplan.hardware_profiles.tunings import load_fit
    from meshplan.planner.runs.fit import fit_all

    runs = []
    for row in rows:
        try:
            runs.append(run_of(row))
        except SkippedRow:
            continue  # said by a validation without --fit
    console = Console(stderr=True)
    today = datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    source = "hardware_profiles/published/runs.csv" if path is None else str(path)
    known = None if path is None else (lambda engine, gpu: load_fit(engine, gpu).tuning)
    for engine, families in fit_all(runs, source, today, console.print, known).items():
        document = {name: fit.table() for name, fit in families.items()}
        write_toml(document, folder / f"{engine}.toml")
        print(f"{folder / engine}.toml: {', '.join(sorted(families))}")


def _percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "n/a"
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def _print(report: dict[str, Any], results: list[Predicted | Skipped]) -> None:
    console = as_written()
    table = Table(
        "suite",
        "rows",
        "median",
        "p90",
        "bias",
        "6ND at MFU 0.42",
        title="Error of the predicted step time",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    grades = {f"all of grade {grade}": cell for grade, cell in report["by_grade"].items()}
    for name, cell in (report["step_time"] | grades).items():
        table.add_row(
            name or "none named", str(cell["rows"]),
            _percent(cell["median"]), _percent(cell["p90"]),
            _percent(cell["bias"], signed=True), _percent(cell["simple_median"]),
        )  # fmt: skip
    console.print(table)
    if (over_suites := report["mean_of_suite_medians"]) is not None:
        console.print(f"mean of the suites' medians (grades A and B): {_percent(over_suites)}")
    for kind in ("allocated", "reserved"):
        if cell := report[kind]:
            console.print(
                f"{kind} memory, {counted(cell['rows'], 'row')}: "
                f"median {_percent(cell['median'])}, "
                f"p90 {_percent(cell['p90'])}, bias {_percent(cell['bias'], signed=True)}"
            )
    for what, share in report["inside_8_of_10"].items():
        if share is not None:
            name = what.replace("_", " ").replace("reserved", "reserved memory")
            console.print(f"{name} inside the range of 8 of 10 runs: {_percent(share)} of the rows")
    _print_choice(console, report)
    _print_skipped(console, [row for row in results if isinstance(row, Skipped)])


def _print_skipped(console: Console, rows: list[Skipped]) -> None:
    """The commonest reasons, each with the first rows that it is of."""
    for reason, count in Counter(row.reason for row in rows).most_common(8):
        named = [row.id for row in rows if row.reason == reason][:NAMED]
        more = ", ..." if count > NAMED else ""
        console.print(f"skipped {count} ({', '.join(named)}{more}): {reason}")


def _print_choice(console: Console, report: dict[str, Any]) -> None:
    fits = report["fits"]
    if fits["balanced_accuracy"] is not None:
        console.print(
            f"does it fit: balanced accuracy {_percent(fits['balanced_accuracy'])}; "
            f"{fits['missed']} of {fits['out_of_memory']} out-of-memory rows predicted to fit, "
            f"{fits['careful']} of {fits['fitting']} rows that fit predicted not to"
        )
    if found := report["choice"]:
        console.print(
            f"choice among measured layouts, {counted(found['groups'], 'group')}: the predicted "
            f"best is slower than the measured best by {_percent(found['median_regret'])} "
            f"(median), {_percent(found['mean_regret'])} (mean); rank correlation "
            f"{found['spearman']:.2f}. By rules of thumb: "
            f"{_percent(found['rules_median_regret'])}, {_percent(found['rules_mean_regret'])}"
        )
