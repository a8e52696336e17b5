"""Pictures of `--plot`: what kind a file's name asks for, whether it can be drawn, and its bytes.

matplotlib is an extra: it is imported where something is drawn, and asked for before anything is
computed.
"""

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshplan.planner.text_files import write_text

KINDS = (".png", ".svg")


class NoPlot(ValueError):
    """The picture cannot be drawn; one line that says what to do."""


def check_plot(path: Path, *more: str) -> None:
    """Refuse what cannot be drawn: other endings than `KINDS` and `more`; raises `NoPlot`."""
    if path.suffix.lower() not in (*KINDS, *more):
        raise NoPlot(f"--plot {path}: write a name that ends in {' or '.join((*KINDS, *more))}")
    if find_spec("matplotlib") is None:
        raise NoPlot("--plot needs matplotlib: install meshplan[plot]")


def plain_ticks(axis: Any, text: Callable[[float], str]) -> None:
    """Label a logarithmic axis by `text` of each value, where matplotlib has room for a label."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Labels what its parent labels, but not by powers of ten."""

        def __call__(self, value: float, position: int | None = None) -> str:
            return text(float(value)) if super().__call__(value, position) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))


def drawn(figure: Any, kind: str) -> bytes:
    """A finished figure as a file of this kind: `png`, `svg`, `pdf`."""
    from matplotlib import rc_context

    picture = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    # text stays text, to be searched and copied; the same figures give the same bytes
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "meshplan"}):
        figure.savefig(picture, format=kind, dpi=130, metadata=undated)
    return picture.getvalue()


def save(figure: Any, path: Path) -> None:
    """Write a finished figure to `path`; raises `CannotWrite`."""
    write_text(path, drawn(figure, path.suffix.lower()[1:]))
