"""Predicted against measured step time, one point per run, coloured by suite."""

from collections.abc import Sequence
from pathlib import Path

from meshplan.planner.runs.validate import Predicted
from meshplan.planner.text_files import write_text


def draw(rows: Sequence[Predicted], path: Path) -> None:
    """Write the scatter to `path`; its suffix chooses the format, .html embeds an SVG."""
    import matplotlib as mpl

    mpl.use("svg" if path.suffix in (".html", ".svg") else "agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 7))
    for suite in sorted({row.run.suite for row in rows}):
        points = [
            (row.run.measured.step_time_s, row.time.step_time_s)
            for row in rows
            if row.run.suite == suite and row.run.measured.step_time_s
        ]
        if points:
            measured, predicted = zip(*points, strict=True)
            axes.scatter(measured, predicted, s=8, alpha=0.6, label=suite)
    limits = axes.get_xlim()
    for factor in (0.8, 1.0, 1.25):
        axes.plot(limits, [factor * x for x in limits], color="grey", linewidth=0.7)
    axes.set(
        xscale="log", yscale="log", xlabel="measured step time, s", ylabel="predicted step time, s"
    )
    axes.set_title("grey: exact, and 25 % either way")
    axes.legend(fontsize=7)
    if path.suffix == ".html":
        figure.savefig(path.with_suffix(".svg"))
        svg = path.with_suffix(".svg").read_text(encoding="utf-8")
        write_text(path, f"<!doctype html><title>meshplan validate</title>{svg}")
        path.with_suffix(".svg").unlink()
    else:
        figure.savefig(path, dpi=150)
    plt.close(figure)
