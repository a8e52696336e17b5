"""From the ideal step to the predicted one: what each cause adds, and the range of 8 of 10 runs."""

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from meshplan.costmodels.units import format_seconds
from meshplan.planner.answer.explain import LEAST_SHARE, PART_NAMES, TimeParts, ideal_s
from meshplan.planner.case.plan_file import Prediction
from meshplan.planner.report.page.markup import Scale, element, number

KERNELS = ("matmul_s", "attention_s")


class WaterfallBar(NamedTuple):
    """One bar: a name, seconds with where `explain --json` has them, and where it lies."""

    name: str
    path: str
    seconds: float
    start_s: float
    end_s: float
    kind: str


def waterfall(parts: TimeParts, prediction: Prediction) -> str:
    """The bars, one below the other."""
    most = max(prediction.step_time_high_s or 0.0, parts.total_s)
    scale = Scale(0.0, most * 1.02)
    bars = "".join(_bar(row, scale) for row in rows(parts, prediction))
    return element("div", bars, class_="bars waterfall")


def rows(parts: TimeParts, prediction: Prediction) -> Iterator[WaterfallBar]:
    """The ideal step, then what each cause adds, then the predicted step."""
    seconds, ideal, at = dict(parts.items()), ideal_s(prediction), 0.0
    if ideal is not None:
        yield WaterfallBar(
            "ideal: all GPUs at their peak", "ideal_step_time_s", ideal, 0.0, ideal, "ideal"
        )
        at = ideal
        lost = sum(seconds.pop(name) for name in KERNELS) - ideal
        name = "matrix products and attention below peak, uneven layers"
        yield WaterfallBar(name, "below_peak_s", lost, at, at + lost, "below")
        at += lost
    for name, taken in seconds.items():
        if taken / parts.total_s >= LEAST_SHARE:
            yield WaterfallBar(PART_NAMES[name], f"time_parts.{name}", taken, at, at + taken, name)
        at += taken
    step = prediction.step_time_s
    yield WaterfallBar("predicted step", "prediction.step_time_s", step, 0.0, step, "predicted")
    low, high = prediction.step_time_low_s, prediction.step_time_high_s
    if low is not None and high is not None:
        yield WaterfallBar("8 of 10 runs", "prediction.step_time_low_s", low, low, high, "range")


def _bar(row: WaterfallBar, scale: Scale) -> str:
    left, right = sorted((scale.percent(row.start_s), scale.percent(row.end_s)))
    place = f"left:{left:.2f}%;width:{max(right - left, 0.15):.2f}%"
    bar = element("span", element("i", class_=row.kind, style=place), class_="track")
    named = element("span", escape(row.name), class_="name")
    return element("div", named, bar, element("span", _said(row), class_="value"), class_="bar")


def _said(row: WaterfallBar) -> str:
    if row.kind == "range":
        high = number("prediction.step_time_high_s", row.end_s, format_seconds(row.end_s))
        return f"{number(row.path, row.seconds, format_seconds(row.seconds))} to {high}"
    plus = "+" if row.start_s and row.seconds > 0 else ""
    return number(row.path, row.seconds, plus + format_seconds(row.seconds))
