"""The tables of `meshplan execute`: predicted against measured, ranks, and a tournament."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from meshplan.costmodels.units import format_bytes, format_seconds
from meshplan.executor.launch.results import ComparedPart, RunResult
from meshplan.executor.launch.tournament import Contender

MOST_RANKS = 16  # more lines than this are not read


def print_result(result: RunResult, console: Console) -> None:
    """The comparison, the ranks and the verdict."""
    console.print(comparison(result))
    if result.ranks:
        console.print(ranks_table(result))
    console.print(verdict(result))


def comparison(result: RunResult) -> Table:
    """One line per part."""
    return parts_table(f"{result.layout}, {result.engine} on {result.device}", result.parts, _shown)


def parts_table(
    title: str, parts: Sequence[ComparedPart], shown: Callable[[ComparedPart, float | None], str]
) -> Table:
    """Predicted and measured parts with their errors, as `shown` writes a value."""
    table = Table(title=title, box=None)
    table.add_column("")
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    for part in parts:
        error = "n/a" if part.error is None else f"{part.error:+.1%}"
        table.add_row(part.name, shown(part, part.predicted), shown(part, part.measured), error)
    return table


def _shown(part: ComparedPart, value: float | None) -> str:
    if value is None:
        return "n/a"
    return format_seconds(value) if part.unit == "s" else format_bytes(value)


def ranks_table(result: RunResult) -> Table:
    """Phases of each rank in the step of median time, and its memory."""
    table = Table(title="ranks, in the step of median time", box=None, padding=(0, 1, 0, 0))
    names = ("rank", "stage", "forward", "backward", "waiting", "reduce", "optimizer", "processor",
             "memory")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for rank in result.ranks[:MOST_RANKS]:
        seconds = (
            rank.forward_s, rank.backward_s, rank.waiting_s, rank.exposed_comm_s,
            rank.optimizer_s, rank.processor_s,
        )  # fmt: skip
        table.add_row(
            str(rank.rank), str(rank.pipeline_rank), *map(format_seconds, seconds),
            format_bytes(rank.reserved_peak_bytes),
        )  # fmt: skip
    return table


def verdict(result: RunResult) -> str:
    """One line: the step time, its spread, and whether the prediction held."""
    if result.step_time_s is None:
        return "no timed step was finished"
    said = (
        f"step {format_seconds(result.step_time_s)}, spread {result.step_time_spread or 0:.1%}, "
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s per rank"
    )
    if result.inside_band is None or result.band is None:
        return f"{said}; the plan predicts nothing to compare with"
    held = "inside" if result.inside_band else "OUTSIDE"
    return f"{said}; error {result.step_error:+.1%}, {held} the band of +-{result.band:.0%}"


def print_tournament(ranking: Sequence[tuple[Contender, RunResult]], console: Console) -> None:
    """The contenders, measured fastest first."""
    table = Table(title="tournament, measured fastest first", box=None)
    for name in ("layout", "predicted", "measured", "error"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    for contender, result in ranking:
        predicted, measured = contender.predicted_s, result.step_time_s
        known = predicted is not None and measured is not None
        table.add_row(
            result.layout,
            "n/a" if predicted is None else format_seconds(predicted),
            "n/a" if measured is None else format_seconds(measured),
            f"{predicted / measured - 1:+.1%}" if known and predicted and measured else "n/a",
        )
    console.print(table)
