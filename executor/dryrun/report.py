"""What a dry run found, for people: memory beside the plan's prediction, work and messages."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from meshplan.costmodels.units import GIB
from meshplan.executor.dryrun.result import DryRun
from meshplan.executor.dryrun.tracker import CATEGORIES
from meshplan.planner.case.plan_file import Plan, StageMemory


def tables(plan: Plan, results: Sequence[DryRun]) -> Iterator[Table]:
    """Peaks by category with what the plan predicted, peaks by phase, FLOPs and bytes by axis."""
    yield _memory(plan, results)
    yield _by_name("peak by phase", results, [r.peak_by_phase for r in results], bytes_of=True)
    yield _by_name("FLOP of the step", results, [_summed(r.flops, 1) for r in results])
    sent = [_summed(r.comm_bytes, 0) for r in results]
    if any(sent):
        yield _by_name("communicated, by axis", results, sent, bytes_of=True)


def _memory(plan: Plan, results: Sequence[DryRun]) -> Table:
    """Each rank twice: what the program held at its peak, and the cost model's figure."""
    table = _table("peak memory", (*CATEGORIES, "peak", "error"))
    stages = plan.prediction.memory if plan.prediction else ()
    for result in results:
        parts = [_gib(result.peak_by_category.get(name, 0)) for name in CATEGORIES]
        table.add_row(f"{result.rank} dry run", *parts, _gib(result.peak_bytes), "")
        if result.pp_rank < len(stages):
            table.add_row("  predicted", *_predicted(stages[result.pp_rank], result.peak_bytes))
    return table


def _predicted(stage: StageMemory, peak_bytes: int) -> list[str]:
    parts = [_gib(getattr(stage, name)) for name in CATEGORIES]
    error = stage.allocated / peak_bytes - 1
    return [*parts, _gib(stage.allocated), f"{error:+.1%}"]


def _by_name(
    title: str,
    results: Sequence[DryRun],
    figures: Sequence[Mapping[str, float]],
    *,
    bytes_of: bool = False,
) -> Table:
    """One line per rank, one column per name that any rank has."""
    names = tuple(dict.fromkeys(name for found in figures for name in found))
    table = _table(title, names)
    for result, found in zip(results, figures, strict=True):
        values = [found.get(name, 0) for name in names]
        shown = [_gib(x) if bytes_of else f"{x:.4g}" for x in values]
        table.add_row(str(result.rank), *shown)
    return table


def _summed(figures: Mapping[str, float], part: int) -> dict[str, float]:
    """Figures of "a.b" names added up by one part of the name."""
    sums: dict[str, float] = defaultdict(float)
    for name, value in figures.items():
        sums[name.split(".")[part]] += value
    return dict(sums)


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("rank", justify="left")
    for name in names:
        table.add_column(name, justify="right")
    return table


def _gib(size_bytes: float) -> str:
    if size_bytes < GIB / 1000:
        return f"{size_bytes:,.0f} bytes"
    return f"{size_bytes / GIB:.3g} GiB"
