"""A sweep as a picture: best MFU and its layout by size, tokens/s over GPUs, days against cost.

matplotlib is an extra and is imported where something is drawn.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshplan.costmodels.units import format_count
from meshplan.planner.report.picture import check_plot, plain_ticks, save
from meshplan.planner.sweep.economics import RunCost, in_money
from meshplan.planner.sweep.outcome import Sweep, SweepRow, costs_of, on_front

COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#b8860b", "#1a9bb8", "#aa3377", "#777777", "#000000",
)  # fmt: skip
"""Eight that colour-blind readers tell apart, after Paul Tol's bright set; then dashes differ."""
DASHES = ("-", "--", ":", "-.")
LABEL_WIDTH = 13  # characters of a layout in a line of its cell
TICK_RATIO = 1.3  # between two marked sizes of a logarithmic axis
LABEL_GAP = 0.045  # of an axis, between two labels at line ends


def draw(sweep: Sweep, path: Path) -> None:
    """Write the picture to `path`; raises `NoPlot` and `CannotWrite`."""
    check_plot(path)
    from matplotlib.figure import Figure

    lines = sweep.lines
    sizes = sorted({row.gpus for row in sweep.rows})
    width, tall = max(9.0, 2.6 + 1.05 * len(sizes)), 1.2 + 0.95 * len(lines)
    figure = Figure(figsize=(width, tall + 4.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(tall, 4.0))
    common, names = names_of(lines)
    figure.suptitle(common)
    _heatmap(figure.add_subplot(grid[0, :]), lines, sizes, names)
    _scaling(figure.add_subplot(grid[1, 0]), lines, sizes, names)
    _costs(figure.add_subplot(grid[1, 1]), sweep, names)
    save(figure, path)


def names_of(lines: Sequence[Sequence[SweepRow]]) -> tuple[str, list[str]]:
    """What all series have in common, and each by what tells it from the others."""
    facts = [
        {
            "model": line[0].series.model,
            "cluster": line[0].series.cluster,
            "engine": line[0].series.engine or "no engine",
            "batch": f"{_number(line[0].series.global_batch_size)} sequences a step",
            "sequence": f"{_number(line[0].series.seq_len)} tokens a sequence",
        }
        for line in lines
    ]
    telling = [key for key in facts[0] if len({fact[key] for fact in facts}) > 1]
    common = ", ".join(text for key, text in facts[0].items() if key not in telling)
    shown = telling or ["model"]
    return common, ["\n".join(fact[key] for key in shown) for fact in facts]


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def shade_of(lines: Sequence[Sequence[SweepRow]]) -> tuple[str, list[dict[int, float]]]:
    """What the heatmap's colour says, and its value by GPUs for each series.

    MFU, unless a cell's precision is mixed and has none: then all show tokens/s per GPU as a share
    of the best of their series.
    """
    found = [
        {row.gpus: row.answer.plan.prediction for row in line if row.answer and row.answer.plan}
        for line in lines
    ]
    known = [{gpus: p for gpus, p in line.items() if p is not None} for line in found]
    if all(p.mfu is not None for line in known for p in line.values()):
        return "MFU", [{gpus: p.mfu or 0.0 for gpus, p in line.items()} for line in known]
    rates = [{gpus: p.tokens_per_s_per_gpu for gpus, p in line.items()} for line in known]
    best = [max(line.values(), default=1.0) for line in rates]
    return "tokens/s per GPU, share of the best", [
        {gpus: rate / top for gpus, rate in line.items()}
        for line, top in zip(rates, best, strict=True)
    ]


def _heatmap(
    axes: Any, lines: Sequence[Sequence[SweepRow]], sizes: Sequence[int], names: Sequence[str]
) -> None:
    title, values = shade_of(lines)
    shades = np.array([[line.get(gpus, np.nan) for gpus in sizes] for line in values])
    most = max((value for line in values for value in line.values()), default=1.0)
    axes.set_facecolor("#eeeeee")
    axes.imshow(shades, cmap="Blues", vmin=0.0, vmax=most, aspect="auto")
    for y, line in enumerate(lines):
        for row in line:
            value = values[y].get(row.gpus)
            colour = "white" if value is not None and value > 0.65 * most else "black"
            axes.text(
                sizes.index(row.gpus), y, _cell_text(row, value), ha="center", va="center",
                fontsize=6.5, color=colour,
            )  # fmt: skip
    axes.set_xticks(range(len(sizes)), [f"{gpus:,}" for gpus in sizes])
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="GPUs", title=f"{title} of the best layout")


def _cell_text(row: SweepRow, value: float | None) -> str:
    if row.answer is None:
        return "not\nplanned"
    if row.answer.plan is None or value is None:
        return row.answer.verdict.replace(" ", "\n")
    label = textwrap.fill(row.answer.plan.layout.label, LABEL_WIDTH, break_on_hyphens=True)
    mark = "" if row.answer.proved else " (not proved)"
    return f"{value:.1%}{mark}\n{label}"


def _scaling(
    axes: Any, lines: Sequence[Sequence[SweepRow]], sizes: Sequence[int], names: Sequence[str]
) -> None:
    """Tokens/s by size, with the line that each series would follow at its first size's rate."""
    ends = []
    for i, line in enumerate(lines):
        points = [(cost.gpus, cost.tokens_per_s) for cost in costs_of(line) if cost.tokens_per_s]
        if not points:
            continue
        gpus, rates = zip(*points, strict=True)
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(gpus, rates, "o", linestyle=_dash(i), color=colour, markersize=3)
        ideal = [rates[0] / gpus[0] * count for count in gpus]
        axes.plot(gpus, ideal, color=colour, linewidth=0.6, alpha=0.5)
        ends.append((gpus[-1], rates[-1], names[i], colour))
    axes.set(xlabel="GPUs", ylabel="tokens/s", title="Scaling (thin: at the first size's rate)")
    _log(axes, ends)
    _mark_sizes(axes, sizes)


def _costs(axes: Any, sweep: Sweep, names: Sequence[str]) -> None:
    """Days against cost with the front ringed; without a number of tokens, GPU-seconds by size."""
    priced = in_money(costs_of(sweep.rows))
    ends = []
    for i, line in enumerate(sweep.lines):
        points = [point for cost in costs_of(line) if (point := _point(cost, sweep, priced))]
        if not points:
            continue
        across, up = zip(*points, strict=True)
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(across, up, "o", linestyle=_dash(i), color=colour, markersize=3)
        ends.append((*max(points), names[i], colour))
    if sweep.terms.tokens is None:
        axes.set(xlabel="GPUs", ylabel="GPU-seconds for 1M tokens", title="What a token takes")
    else:
        _ring_fronts(axes, sweep, priced)
        unit = "cost" if priced else "GPU-hours"
        axes.set(xlabel="days", ylabel=unit, title=f"Days against {unit} (ringed: the front)")
    _log(axes, ends)
    if sweep.terms.tokens is None:
        _mark_sizes(axes, sorted({row.gpus for row in sweep.rows}))


def _mark_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """Ticks at the sizes that were asked, those left out that would stand too close."""
    shown: list[int] = []
    for gpus in sizes:
        if not shown or gpus >= TICK_RATIO * shown[-1]:
            shown.append(gpus)
    axes.set_xticks(shown, [f"{gpus:,}" for gpus in shown], fontsize=7)
    axes.set_xticks([], minor=True)


def _point(cost: RunCost, sweep: Sweep, priced: bool) -> tuple[float, float] | None:
    """Where a cell stands in the second curve, None where its run has no end."""
    if sweep.terms.tokens is None:
        return (cost.gpus, cost.gpu_s_per_token * 1e6) if cost.tokens_per_s else None
    paid = cost.cost if priced else cost.gpu_hours
    return None if cost.days is None or paid is None else (cost.days, paid)


def _ring_fronts(axes: Any, sweep: Sweep, priced: bool) -> None:
    for job in sweep.jobs:
        costs = costs_of(on_front(job))
        points = [point for cost in costs if (point := _point(cost, sweep, priced))]
        if points:
            axes.scatter(*zip(*points, strict=True), s=60, facecolors="none", edgecolors="black")


def _dash(i: int) -> str:
    return DASHES[i // len(COLOURS) % len(DASHES)]


def _log(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Logarithmic axes, each line labelled at its end in its own colour."""
    if not ends:
        axes.text(0.5, 0.5, "no cell has a plan", ha="center", transform=axes.transAxes)
        return
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.05, y=0.1)
    axes.grid(visible=True, which="major", linewidth=0.3)
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis, format_count)
    axes.tick_params(which="both", labelsize=7)
    low, high = np.log10(axes.get_ylim())
    order = sorted(range(len(ends)), key=lambda i: ends[i][1])
    heights = spread([float((np.log10(ends[i][1]) - low) / (high - low)) for i in order], LABEL_GAP)
    for i, height in zip(order, heights, strict=True):
        across, up, name, colour = ends[i]
        axes.annotate(
            " ".join(name.split()), (across, up), xytext=(1.02, height),
            textcoords="axes fraction", color=colour, fontsize=7, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4},
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending `heights` moved up where they are closer than `gap`."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    return moved
