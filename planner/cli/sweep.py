"""`meshplan sweep`: the proved plan of every combination, and what each costs in days and money."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meshplan.costmodels.units import SECONDS_PER_HOUR, counted
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.answer.sizes import BadQuestion, check_one_batch, parse_length
from meshplan.planner.cli.options import panel
from meshplan.planner.report.output import console, print_json
from meshplan.planner.sweep.cache import Cache
from meshplan.planner.sweep.cells import Answer, Axes, Cell, cells_of, series_of
from meshplan.planner.sweep.economics import Failures, Terms
from meshplan.planner.sweep.outcome import Sweep, document, outcome
from meshplan.planner.sweep.ranges import count, numbers, run_tokens, words
from meshplan.planner.sweep.report import csv_text, print_sweep
from meshplan.planner.sweep.solve import answers
from meshplan.planner.text_files import check_apart, check_writable, write_text

axis = panel("The axes: 8,16,64, 8..4096 (doubling) or 8..64+8")
of_run, output = panel("The run"), panel("The answer")


def sweep(
    gpus: Annotated[str, axis("Numbers of GPUs.", metavar="RANGE")],
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="As `plan` takes it; or --model.")
    ] = None,
    model: Annotated[str | None, axis("Models.", metavar="LIST")] = None,
    cluster: Annotated[
        str | None, axis("Profiles, GPUs, or GPU:PER_NODE:NETWORK.", metavar="LIST")
    ] = None,
    seq_len: Annotated[str | None, axis("Tokens per sequence: 4k..32k.", metavar="RANGE")] = None,
    global_batch: Annotated[
        str | None, axis("Sequences per optimizer step.", metavar="RANGE")
    ] = None,
    global_batch_tokens: Annotated[
        str | None, axis("Or tokens per step: 4M,16M.", metavar="LIST")
    ] = None,
    engine: Annotated[str | None, axis("Frameworks, as in `plan`.", metavar="LIST")] = None,
    precision: Annotated[str, of_run("As in `plan`, for all.")] = "bf16",
    optimizer: Annotated[str, of_run("As in `plan`, for all.")] = "adamw",
    tokens: Annotated[
        str | None, of_run("Tokens of the whole run, such as 15T: adds days and GPU-hours.")
    ] = None,
    price_per_gpu_hour: Annotated[
        str | None, of_run("Adds the cost: one price, or one per cluster.", metavar="LIST")
    ] = None,
    mtbf_hours: Annotated[
        float | None, of_run("Mean hours between failures of one GPU: adds goodput.")
    ] = None,
    checkpoint_seconds: Annotated[
        float | None, of_run("Seconds that a checkpoint stops the job.")
    ] = None,
    restart_seconds: Annotated[
        float | None, of_run("Seconds from a failure until work goes on; default: not counted.")
    ] = None,
    cache: Annotated[
        Path | None, output("File that keeps the answers, so that a sweep can resume.")
    ] = None,
    jobs: Annotated[int | None, output("Processes; default: one per core.", min=1, max=256)] = None,
    time_limit: Annotated[float | None, output("Seconds of search per plan.", min=0.0)] = None,
    csv: Annotated[Path | None, output("CSV file to write, a line per plan.")] = None,
    as_json: Annotated[bool, output("One JSON document on stdout.", "--json")] = False,
    plot: Annotated[
        Path | None, output("Picture to write: heatmap and curves (.png, .svg).")
    ] = None,
) -> None:
    """Plan each combination of models, clusters and sizes; name the cheapest, the knee, the front.

    Example:
      meshplan sweep llama-3.1-8b --gpus 8..512 --cluster dgx-h100 \\
        --global-batch 1024
    """
    axes = _axes(locals())
    terms = _terms(tokens, mtbf_hours, checkpoint_seconds, restart_seconds)
    prices = _prices(price_per_gpu_hour, len(axes.clusters))
    check_outputs(csv, plot)
    check_apart(cache, csv, plot)
    cells = cells_of(axes, precision, optimizer)
    kept = Cache(cache)
    found = answered(cells, kept, jobs or num_cores(), time_limit)
    done = outcome(cells, found, terms, prices)
    _write(done, _notes(cells), csv, plot, as_json=as_json)
    kept.check_kept()
    _end(found, cache)


def _axes(given: Mapping[str, Any]) -> Axes:
    """The axes of the options `given` by name; raises `BadQuestion`."""
    cluster, seq_len, engine = given["cluster"], given["seq_len"], given["engine"]
    batch, batch_tokens = given["global_batch"], given["global_batch_tokens"]
    named = words("--model", given["model"]) if given["model"] is not None else ()
    models = [*(given["models"] or ()), *named]
    if not models:
        raise BadQuestion("say what to train: meshplan sweep llama-3.1-8b, or --model a,b")
    if cluster is None:
        raise BadQuestion(
            "say what to train on: --cluster dgx-h100, or --cluster dgx-h100,dgx-h200"
        )
    check_one_batch(batch, batch_tokens)
    batches: tuple[int | str, ...] = (
        words("--global-batch-tokens", batch_tokens)
        if batch is None
        else numbers("--global-batch", batch, count("--global-batch"))
    )
    return Axes(
        models=tuple(dict.fromkeys(models)),
        gpus=numbers("--gpus", given["gpus"], count("--gpus")),
        clusters=words("--cluster", cluster),
        seq_lens=(None,) if seq_len is None else numbers("--seq-len", seq_len, parse_length),
        batches=batches,
        engines=(None,) if engine is None else words("--engine", engine),
    )


def _terms(
    tokens: str | None,
    mtbf_hours: float | None,
    checkpoint_seconds: float | None,
    restart_seconds: float | None,
) -> Terms:
    """What the whole run is to be; raises `BadQuestion`."""
    if (mtbf_hours is None) != (checkpoint_seconds is None):
        raise BadQuestion(
            "failures need both --mtbf-hours (of one GPU) and --checkpoint-seconds: say the other"
        )
    if restart_seconds is not None and mtbf_hours is None:
        raise BadQuestion("--restart-seconds needs --mtbf-hours and --checkpoint-seconds")
    failures = None
    if mtbf_hours is not None and checkpoint_seconds is not None:
        restart_s = restart_seconds
        failures = Failures(
            gpu_mtbf_s=_positive("--mtbf-hours", mtbf_hours) * SECONDS_PER_HOUR,
            checkpoint_s=_positive("--checkpoint-seconds", checkpoint_seconds),
            restart_s=None if restart_s is None else _positive("--restart-seconds", restart_s),
        )
    return Terms(tokens=None if tokens is None else run_tokens(tokens), failures=failures)


def _positive(option: str, value: float) -> float:
    if not LEAST_TERM <= value <= MOST_TERM:
        raise BadQuestion(f"{option} {value:g} is not between {LEAST_TERM:g} and {MOST_TERM:g}")
    return value


LEAST_TERM, MOST_TERM = 1e-3, 1e9


def _prices(text: str | None, num_clusters: int) -> tuple[float | None, ...]:
    """A price for each cluster; raises `BadQuestion`."""
    if text is None:
        return (None,) * num_clusters
    option = "--price-per-gpu-hour"
    items = [item.strip() for item in text.split(",")]
    if len(items) not in (1, num_clusters):
        raise BadQuestion(
            f"{option} {text!r} has {len(items)} prices for {counted(num_clusters, 'cluster')}; "
            "give one for all, or one each in the order of --cluster"
        )
    try:
        prices = [float(item) for item in items]
    except ValueError:
        raise BadQuestion(f"{option} {text!r} is not a number; write 2.5, or 2.5,4") from None
    for price in prices:
        _positive(option, price)
    return tuple(prices * num_clusters if len(prices) == 1 else prices)


def check_outputs(csv: Path | None, plot: Path | None) -> None:
    """Refuse before the work what could not be written after it; raises `CannotWrite`."""
    if plot is not None:
        from meshplan.planner.report.picture import check_plot

        check_plot(plot)
    check_writable(csv, plot)


def _notes(cells: Sequence[Cell]) -> list[str]:
    """How the questions were understood, each line once; of which, where it is not of all."""
    known = [cell for cell in cells if cell.asked]
    every = dict.fromkeys(note for cell in known for note in _notes_of(cell))
    return [_of_which(note, known) for note in every]


def _notes_of(cell: Cell) -> tuple[str, ...]:
    return cell.asked.notes if cell.asked else ()


def _of_which(note: str, cells: Sequence[Cell]) -> str:
    """The note, behind the models, clusters or engines that it is of, if others have it not."""
    having = [cell for cell in cells if note in _notes_of(cell)]
    others = [cell for cell in cells if note not in _notes_of(cell)]
    for names in (("cluster",), ("engine",), ("model",), ("cluster", "engine")):
        of = dict.fromkeys(_named(cell, names) for cell in having)
        if others and not of.keys() & {_named(cell, names) for cell in others}:
            return f"{'; '.join(of)}: {note}"
    return note


def _named(cell: Cell, names: Sequence[str]) -> str:
    """What of the cell's series has these names."""
    series = series_of([cell])
    return ", ".join(str(getattr(series, name)) for name in names)


def answered(
    cells: Sequence[Cell], cache: Cache, jobs: int, time_limit_s: float | None
) -> list[Answer | None]:
    """The answers, with a bar on a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    shown = sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not shown
    ) as progress:
        bar = progress.add_task("planning", total=len(cells))
        return answers(
            cells,
            cache,
            jobs=jobs,
            time_limit_s=time_limit_s,
            told=lambda number: progress.advance(bar, number),
        )


def _write(
    done: Sweep, notes: Sequence[str], csv: Path | None, plot: Path | None, *, as_json: bool
) -> None:
    """The answer on stdout first, so that a file which cannot be written loses nothing."""
    if as_json:
        print_json(document(done))
    else:
        print_sweep(console(), done, notes)
    if csv is not None:
        write_text(csv, csv_text(done))
    if plot is not None:
        from meshplan.planner.sweep.plot import draw  # matplotlib is an extra

        draw(done, plot)
    for path in (csv, plot):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def _end(found: Sequence[Answer | None], cache: Path | None) -> None:
    """Exit 1 where Ctrl-C ended the sweep, 3 where no cell has a plan."""
    left = found.count(None)
    if left:
        again = f"--cache {cache} goes on from here" if cache else "--cache FILE would have kept it"
        print(f"error: ended with {left} of {len(found)} cells open; {again}", file=sys.stderr)
        raise typer.Exit(1)
    if not any(each and each.plan for each in found):
        print("error: no cell has a plan", file=sys.stderr)
        raise typer.Exit(3)
