"""The tornado as a picture: a bar for each figure, from its end below the plan to the one above.

matplotlib is an extra and is imported where something is drawn.
"""

from pathlib import Path
from typing import Any

from meshplan.costmodels.units import counted, format_seconds
from meshplan.planner.report.picture import check_plot, save
from meshplan.planner.whatif.tornado import Tornado, factor_of

DOWN, UP = "#d55e00", "#0072b2"
"""Told apart by colour-blind readers; each bar's end has its words too. After Okabe and Ito."""
BESIDE = 0.2  # of a row, from its middle to each of two bars below one another


def draw(found: Tornado, path: Path) -> None:
    """Write the picture to `path`; raises `NoPlot` and `CannotWrite`."""
    check_plot(path)
    from matplotlib.figure import Figure

    before, old = found.before, found.before.step_time_s
    assert old is not None
    figure = Figure(figsize=(8, 1.4 + 0.42 * len(found.arms)), layout="constrained")
    axes = figure.add_subplot()
    for row, arm in enumerate(found.arms):
        moves = arm.moved(before.tokens, old)
        rows = places(row, *moves)
        ends = zip((arm.down, arm.up), moves, rows, (DOWN, UP), strict=True)
        for end, moved, place, colour in ends:
            text = f"{factor_of(end.change, before.asked) - 1:+.0%}"
            if moved is None:
                text += f": {end.verdict}"
            _bar(axes, place, moved or 0.0, text, colour)
    axes.set_yticks(range(len(found.arms)), [arm.words for arm in found.arms])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%")
    planned = f"{format_seconds(old)} as planned"
    axes.set_xlabel(f"change of the predicted step for the same tokens, {planned}")
    q = before.asked.question
    axes.set_title(
        f"{q.model.name} on {counted(q.gpus, 'GPU')} of {before.asked.cluster_name}", fontsize=10
    )
    save(figure, path)


def places(row: int, down: float | None, up: float | None) -> tuple[float, float]:
    """Where the bars of both ends stand: one below the other if they point to the same side."""
    same_side = down is not None and up is not None and down * up > 0
    return (row - BESIDE, row + BESIDE) if same_side else (row, row)


def _bar(axes: Any, row: float, moved: float, text: str, colour: str) -> None:
    """The bar of one end, slimmer where it shares its row."""
    width = 100 * moved
    axes.barh(row, width, color=colour, height=0.6 if row == int(row) else 2 * BESIDE)
    right = width > 0 or (width == 0 and colour == DOWN)
    axes.annotate(
        text, (width, row), xytext=(3 if right else -3, 0), textcoords="offset points",
        ha="left" if right else "right", va="center", fontsize=7, color=colour,
    )  # fmt: skip
