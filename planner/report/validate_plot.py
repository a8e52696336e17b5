"""Predicted against measured step time, one point per run; at most eight colours, each named where
its points are.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from meshplan.planner.report.picture import drawn, plain_ticks, save
from meshplan.planner.runs.validate import Predicted
from meshplan.planner.text_files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a39500", "#56b4e9", "#7f4f24", "#808080")
"""The last is of all suites that are not among the largest. After Okabe and Ito."""
OTHERS = "others"


def groups(suites: Sequence[str]) -> dict[str, str]:
    """The name under which each suite is drawn: its own for the largest, else `OTHERS`."""
    counts = Counter(suites)
    largest = {name for name, _ in counts.most_common(len(COLOURS) - 1)}
    if len(counts) == len(COLOURS):
        largest = set(counts)
    return {name: name if name in largest else OTHERS for name in counts}


def draw(rows: Sequence[Predicted], path: Path) -> None:
    """Write the scatter to `path`; its suffix chooses the format, .html embeds an SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7))
    axes = figure.subplots()
    named = list(zip(_points(rows).items(), COLOURS, strict=False))
    for (_, points), colour in named:
        measured, predicted = zip(*points, strict=True)
        axes.scatter(measured, predicted, s=8, alpha=0.5, color=colour, linewidths=0)
    named.sort(key=lambda each: median(measured for measured, _ in each[0][1]))
    for index, ((name, points), colour) in enumerate(named):
        _label(axes, f"{name} ({len(points)})", points, colour, 0.08 + 0.055 * index)
    limits = axes.get_xlim()
    for factor in (0.8, 1.0, 1.25):
        axes.plot(limits, [factor * x for x in limits], color="grey", linewidth=0.7)
    axes.set(
        xscale="log", yscale="log", xlabel="measured step time, s", ylabel="predicted step time, s"
    )
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis, "{:g}".format)
    axes.set_title("A point per run, coloured by suite (its runs); grey: exact, 25 % either way",
                   fontsize=10)  # fmt: skip
    if path.suffix.lower() == ".html":
        svg = drawn(figure, "svg").decode()
        write_text(path, f"<!doctype html><title>meshplan validate</title>{svg}")
    else:
        save(figure, path)


def _label(
    axes: "Axes", text: str, points: Sequence[tuple[float, float]], colour: str, height: float
) -> None:
    """Write `text` at the right, at this height, with a line to the middle of its points."""
    measured, predicted = zip(*points, strict=True)
    axes.annotate(
        text, (median(measured), median(predicted)), xytext=(0.68, height),
        textcoords="axes fraction", color=colour, fontsize=9, fontweight="bold", va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "relpos": (0, 0.5)},
    )  # fmt: skip


def _points(rows: Sequence[Predicted]) -> dict[str, list[tuple[float, float]]]:
    """Measured and predicted seconds by the name that they are drawn under, the most first."""
    known = [(row, row.run.measured.step_time_s) for row in rows]
    timed = [(row, measured) for row, measured in known if measured]
    names = groups([row.run.suite for row, _ in timed])
    found: dict[str, list[tuple[float, float]]] = {}
    for row, measured in timed:
        point = measured, row.time.step_time_s
        found.setdefault(names[row.run.suite], []).append(point)
    order = sorted(found, key=lambda name: (name == OTHERS, -len(found[name])))
    return {name: found[name] for name in order}
