"""Pieces of the page: elements, numbers that name where they come from, plots in per cent.

Plots are boxes whose places are per cent of their frame, so that they fit a telephone and a poster
with text of one size. Every text is escaped here, once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from meshplan.hardware_profiles.dataclass import dataclass


def element(name: str, *inside: str, **attributes: object) -> str:
    """One element around markup; `class_` is `class`, `_` in other names is `-`; None: left out."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(shown(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{''.join(pairs)}>{''.join(inside)}</{name}>"


def shown(value: object) -> str:
    """A number rounded to what is visible, or the text."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def number(path: str, value: float, text: str) -> str:
    """A figure as `text`; `path` is where `explain --json` has it, `value` what it says there."""
    return element("data", escape(text), data_from=path, value=repr(value))


def section(heading: str, *parts: str, name: str) -> str:
    """A section of the page that a link may lead to."""
    return element("section", element("h2", escape(heading)), *parts, id=name)


def note(text: str) -> str:
    """A remark below a picture."""
    return element("p", escape(text), class_="note")


def listed(lines: Iterable[str]) -> str:
    """Plain texts as a list."""
    return element("ul", *(element("li", escape(line)) for line in lines))


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Colour (by class) and meaning of each entry."""
    items = (element("li", element("i", class_=name), escape(text)) for name, text in entries)
    return element("ul", *items, class_="legend")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int]) -> str:
    """Rows of markup under plain headings; the columns `right` are numbers.

    Each cell knows its heading: on a narrow screen a row is a block of named cells.
    """

    def cells(name: str, row: Sequence[str], labels: Sequence[str | None]) -> str:
        return "".join(
            element(name, cell, class_="number" if at in right else None, data_label=label)
            for at, (cell, label) in enumerate(zip(row, labels, strict=True))
        )

    named = [escape(text) for text in headings]
    head = element("tr", cells("th", named, [None] * len(named)))
    body = (element("tr", cells("td", row, headings)) for row in rows)
    inside = element("table", element("thead", head), element("tbody", *body))
    return element("div", inside, class_="scroll")


def round_step(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power = float(10 ** math.floor(math.log10(least)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float

    def percent(self, value: float) -> float:
        """Where on the axis `value` is."""
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> Iterator[tuple[float, str]]:
        """Round values and their texts."""
        step = round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        for count in range(first, last + 1):
            yield count * step, f"{count * step:.10g}"


def plot(x: Scale, y: Scale, titles: tuple[str, str], *inside: str, kind: str) -> str:
    """A frame with both axes around what is `inside`, placed by per cent."""
    across = (
        element("span", text, class_="x", style=f"left:{x.percent(at):.2f}%")
        for at, text in x.ticks()
    )
    up = (
        element("span", text, class_="y", style=f"bottom:{y.percent(at):.2f}%")
        for at, text in y.ticks(5)
    )
    named = (
        element("span", escape(titles[0]), class_="x-title"),
        element("span", escape(titles[1]), class_="y-title"),
    )
    return element("div", *named, *across, *up, *inside, class_=f"plot {kind}")


def outline(points: Iterable[tuple[float, float]], name: str) -> str:
    """A filled shape over a plot's frame; points in per cent, upwards."""
    path = " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in points)
    return element("polygon", points=path, class_=name)


def canvas_of(shapes: Iterable[str]) -> str:
    """Shapes that fill a plot's frame."""
    return element(
        "svg", *shapes, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true"
    )


def ruled(y: Scale, at: float, text: str, name: str) -> str:
    """A level across a plot with its text."""
    level = f"bottom:{y.percent(at):.2f}%"
    return element("span", element("b", escape(text)), class_=f"level {name}", style=level)
