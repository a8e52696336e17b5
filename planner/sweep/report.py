"""What `sweep` prints and writes: a table for each series, what stands out, and a CSV."""

import csv
import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.units import (
    SECONDS_PER_HOUR,
    counted,
    format_bytes,
    format_count,
    format_seconds,
)
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.report.output import listing
from meshplan.planner.report.tables import bullets, indented
from meshplan.planner.sweep.cells import Answer, Series
from meshplan.planner.sweep.economics import RunCost, front, in_money
from meshplan.planner.sweep.outcome import Sweep, SweepRow, costs_of, on_front, record

LEAST_WIDTH = 90  # characters of a terminal for the layouts to stand beside the figures
LEAST_LABEL = 24  # characters of a layout before its column wraps


def print_sweep(out: Console, sweep: Sweep, notes: Sequence[str]) -> None:
    """Every series with its table, then what stands out in it, and the front of each job."""
    for note in notes:
        out.print(Text(note, style="dim"))
    for number, line in enumerate(sweep.lines):
        out.print(Text("\n" * (number > 0 or bool(notes)) + title_of(line[0].series), style="bold"))
        for table in _tables(line, sweep, wide=out.width >= LEAST_WIDTH):
            out.print(indented(table))
        out.print(indented(bullets(list(_standing_out(line, sweep)))))
    for job in sweep.jobs:
        if sweep.terms.tokens is not None and len({row.line for row in job if row.cost}) > 1:
            title = f"\n{_front_title(job)}, all of {job[0].series.model}"
            out.print(Text(title, style="bold"))
            out.print(indented(_front_table(job)))
    if sweep.planned:
        out.print("\n" + _proof(sweep))


def _proof(sweep: Sweep) -> str:
    """What is proved of the plans, as `plan` says it of one."""
    proved = sum(row.answer is not None and row.answer.status == "OPTIMAL" for row in sweep.rows)
    rest = sweep.planned - proved
    gaps = [each.gap for row in sweep.rows if (each := _search(row)) and each.status == "FEASIBLE"]
    open_gap = f"{rest} not proved: steps up to {max(gaps):.1%} shorter may exist" if gaps else ""
    if not proved:
        return open_gap
    plans = f"{proved} plan{'s' * (proved > 1)} OPTIMAL"
    claim = f"{plans}: under the event simulation none is beaten in its space by more than a "
    claim += "millionth (`plan` prints the space)"
    return claim + f"; {open_gap}" * bool(rest)


def _search(row: SweepRow) -> SearchReport | None:
    return row.answer.plan.search if row.answer and row.answer.plan else None


def title_of(series: Series) -> str:
    """The line of a series above its table."""
    said = [f"{series.model} on {series.cluster}"]
    if series.engine:
        said.append(series.engine)
    if series.global_batch_size and series.seq_len:
        said.append(f"{series.global_batch_size:,} sequences of {series.seq_len:,} tokens a step")
    return ", ".join(said)


def _tables(line: Sequence[SweepRow], sweep: Sweep, *, wide: bool) -> Iterator[Table]:
    """The figures of a series and the layouts, beside each other where there is room."""
    columns = list(_columns(line, sweep))
    if wide:
        yield _table(line, columns, layouts=True, padding=2)
        return
    if "cost" in columns:
        columns.remove("GPU-hours")  # which are the cost by another name
    planned = [row for row in line if row.cost is not None]
    if planned:
        yield _table(planned, columns, layouts=False, padding=1)
    yield _table(line, (), layouts=True, padding=1)


def _table(
    line: Sequence[SweepRow], columns: Sequence[str], *, layouts: bool, padding: int
) -> Table:
    table = Table(box=None, padding=(0, padding, 0, 0), pad_edge=False)
    table.add_column("GPUs", justify="right", no_wrap=True)
    if layouts:
        table.add_column("layout", min_width=LEAST_LABEL)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in line:
        words = [Text(_layout(row, several=len(line) > 1))] * layouts
        table.add_row(f"{row.gpus:,}", *words, *_values(row, columns))
    return table


def _columns(line: Sequence[SweepRow], sweep: Sweep) -> Iterator[str]:
    yield from ("step", "MFU", "tokens/s")
    if sweep.terms.failures:
        yield "goodput"
    if sweep.terms.tokens is not None:
        yield from ("days", "GPU-hours")
        if any(cost.cost is not None for cost in costs_of(line)):
            yield "cost"


def _layout(row: SweepRow, *, several: bool) -> str:
    """The layout, or in words why there is none; of `several` sizes, what it is best at."""
    found = row.answer
    if found is None:
        return "not planned: the sweep was ended"
    if found.plan is None:
        return f"{found.verdict}: {_why(found)}"
    marks = [name for name in ("cheapest", "knee") if getattr(row, name)] * several
    marks += ["not proved"] * (not found.proved)
    return found.plan.layout.label + f" ({', '.join(marks)})" * bool(marks)


def _why(found: Answer) -> str:
    """What the nearest layout lacks, or else the whole reason."""
    if found.lacking_bytes is not None:
        return f"a GPU lacks {format_bytes(found.lacking_bytes)}"
    if found.lacking_host_bytes is not None:
        return f"a GPU's share of the host lacks {format_bytes(found.lacking_host_bytes)}"
    return found.reason


def _values(row: SweepRow, columns: Sequence[str]) -> list[str]:
    plan = row.answer.plan if row.answer else None
    if plan is None or plan.prediction is None or row.cost is None:
        return [""] * len(columns)
    mfu, cost = plan.prediction.mfu, row.cost
    shown = {
        "step": format_seconds(plan.prediction.step_time_s),
        "MFU": "n/a" if mfu is None else f"{mfu:.1%}",
        "tokens/s": short_count(cost.tokens_per_s),
        "goodput": "" if cost.goodput is None else f"{cost.goodput:.1%}",
        "days": days_text(cost),
        "GPU-hours": "" if cost.gpu_hours is None else short_count(cost.gpu_hours),
        "cost": "" if cost.cost is None else short_count(cost.cost),
    }
    return [shown[name] for name in columns]


def short_count(value: float) -> str:
    """`value` with three digits."""
    return format_count(float(f"{value:.3g}"))


def days_text(cost: RunCost) -> str:
    """Days with as many digits as three; "never" where failures leave no progress."""
    if cost.days is None:
        return "never"
    return f"{cost.days:,.0f}" if cost.days >= 100 else f"{cost.days:.3g}"


def _standing_out(line: Sequence[SweepRow], sweep: Sweep) -> Iterator[str]:
    """The cheapest size and the knee of a series, in words; of one size, what it costs."""
    costs = costs_of(line)
    if not costs:
        yield "no size has a plan"
        return
    best = next((row.cost for row in line if row.cheapest), None)
    bend = next((row.cost for row in line if row.knee), None)
    if best is None or bend is None:
        yield "no size makes progress: failures come faster than checkpoints"
        return
    if len(line) > 1:
        yield from _best_sizes(line, best, bend)
        if sweep.terms.tokens is not None:
            yield f"{_front_title(line)}: {', '.join(f'{c.gpus:,}' for c in _front(line))} GPUs"
    else:
        yield f"{counted(best.gpus, 'GPU')}: {_paid(best)}"
    if failures := sweep.terms.failures:
        every_s, mtbf_s = failures.interval_s(bend.gpus), failures.job_mtbf_s(bend.gpus)
        restart = "restarts not counted" * (failures.restart_s is None)
        yield (
            "at the knee: "
            * (len(line) > 1)
            + f"a failure every {mtbf_s / SECONDS_PER_HOUR:.3g} h, a checkpoint every "
            f"{every_s / 60:.3g} min of work" + f" ({restart})" * bool(restart)
        )


def _best_sizes(line: Sequence[SweepRow], best: RunCost, bend: RunCost) -> Iterator[str]:
    """The cheapest of several sizes, and the knee beside it."""
    yield f"cheapest: {counted(best.gpus, 'GPU')}, {_paid(best)}"
    dearer = bend.gpu_s_per_token / best.gpu_s_per_token - 1
    quicker = bend.tokens_per_s / best.tokens_per_s
    than = f", {quicker:.3g} x the tokens/s of the cheapest, {dearer:.1%} dearer per token" * (
        bend.gpus != best.gpus
    )
    last = "; it may lie beyond this largest size" * (bend.gpus == max(row.gpus for row in line))
    yield f"knee (least step time x cost): {counted(bend.gpus, 'GPU')}, {_paid(bend)}{than}{last}"


def _paid(cost: RunCost) -> str:
    """What a size costs, by the most telling figure that is known."""
    if cost.cost is not None:
        return f"{days_text(cost)} days, {cost.cost:,.0f}"
    if cost.gpu_hours is not None:
        return f"{days_text(cost)} days, {short_count(cost.gpu_hours)} GPU-hours"
    if cost.cost_per_trillion_tokens is not None:
        return f"{cost.cost_per_trillion_tokens:,.0f} for 1T tokens"
    return f"{short_count(cost.gpu_hours_per_trillion_tokens)} GPU-hours for 1T tokens"


def _front(line: Sequence[SweepRow]) -> list[RunCost]:
    """The sizes of one series that none of its own beats, the fewest GPUs first."""
    costs = costs_of(line)
    return sorted((costs[i] for i in front(costs)), key=lambda cost: cost.gpus)


def _front_title(rows: Sequence[SweepRow]) -> str:
    return f"Pareto front of days against {'money' if in_money(costs_of(rows)) else 'GPU-hours'}"


def _front_table(job: Sequence[SweepRow]) -> Table:
    """The cells that no other one beats in both, the fastest first."""
    table = listing(
        "days", "cost" if in_money(costs_of(job)) else "GPU-hours", "GPUs", "", left=("",)
    )
    for row in on_front(job):
        cost = row.cost
        assert cost is not None
        paid = cost.cost if in_money(costs_of(job)) else cost.gpu_hours
        where = f"{row.series.cluster}, {row.series.engine}"
        shown = "n/a" if paid is None else f"{paid:,.0f}"
        table.add_row(days_text(cost), shown, f"{cost.gpus:,}", where)
    return table


def csv_text(sweep: Sweep) -> str:
    """One line per cell, the columns of `record`; an unknown figure is empty."""
    records = [record(row) for row in sweep.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
