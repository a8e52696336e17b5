"""Memory on the page: of each pipeline rank by category, and over the phases of a step."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate, pairwise

from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.units import GIB, format_bytes
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.case.plan_file import StageMemory
from meshplan.planner.report.page.markup import (
    Scale,
    canvas_of,
    element,
    note,
    number,
    outline,
    plot,
    ruled,
)
from meshplan.planner.report.tables import CATEGORIES, folded
from meshplan.planner.report.timeline import Event, StepTimeline

FLAT = ("context", "slack", "weights", "gradients", "optimizer")
"""What a rank holds all the time, from the bottom up."""


def ranks_picture(memory: Sequence[StageMemory], gpu_memory_bytes: float) -> str:
    """A stacked bar per pipeline rank (neighbours alike share one) against the GPU's memory."""
    scale = Scale(0.0, max(gpu_memory_bytes, needed_bytes(memory)) * 1.02)
    limit = element("i", class_="limit", style=f"left:{scale.percent(gpu_memory_bytes):.2f}%")
    bars = [_bar(title, stage, scale, limit) for title, stage in folded(memory)]
    return element("div", *bars, class_="bars memory")


def _bar(title: str, stage: StageMemory, scale: Scale, limit: str) -> str:
    boxes = "".join(
        element(
            "i", class_=name, style=f"width:{scale.percent(size):.3f}%",
            title=f"{title}: {name} {size / GIB:.2f} GiB",
        )
        for name in CATEGORIES
        if (size := getattr(stage, name)) > 0
    )  # fmt: skip
    track = element("span", boxes, limit, class_="track stacked")
    value = element("span", escape(format_bytes(stage.needed)), class_="value")
    return element("div", element("span", escape(title), class_="name"), track, value, class_="bar")


def fullest_rank(memory: Sequence[StageMemory]) -> int:
    """The rank that needs most."""
    return max(range(len(memory)), key=lambda rank: memory[rank].needed)


def phases_picture(
    model: StepModel, memory: Sequence[StageMemory], timeline: StepTimeline, gpu_bytes: float
) -> str:
    """What the fullest rank holds over the step."""
    rank = fullest_rank(memory)
    stage = memory[rank]
    events = timeline.of_rank(rank)
    unit, factor = ("s", 1.0) if timeline.end_s >= 1 else ("ms", 1e3)
    x = Scale(0.0, timeline.end_s * factor)
    y = Scale(0.0, max(gpu_bytes, stage.needed) / GIB * 1.06)
    levels = list(accumulate((getattr(stage, name) for name in FLAT), initial=0.0))
    *_, top = heights = [y.percent(level / GIB) for level in levels]
    bands = [
        outline([(0, low), (100, low), (100, high), (0, high)], name)
        for name, (low, high) in zip(FLAT, pairwise(heights), strict=True)
    ]
    curve = [
        (x.percent(at * factor), y.percent((levels[-1] + held) / GIB))
        for at, held in saved_over_time(events, model.stage_saved_bytes)
    ]
    saved = outline([(0, top), *curve, (100, top)], "activations")
    peak = f"peak inside a pass {format_bytes(stage.needed)}"
    marks = (
        ruled(y, gpu_bytes / GIB, f"GPU memory {format_bytes(gpu_bytes)}", "limit"),
        ruled(y, stage.needed / GIB, peak, "peak"),
        *_phases(events, x, factor),
    )
    titles = (f"time in the step, {unit}", f"GiB of rank {rank}")
    return plot(x, y, titles, canvas_of([*bands, saved]), *marks, kind="phases")


def saved_over_time(
    events: Sequence[Event], saved_bytes: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """Seconds and bytes of one rank: a forward adds what its stage saves while it lasts, the
    backward that completes its weights' gradients gives it back.
    """
    held = 0.0
    yield 0.0, held
    for event in events:
        if event.kind in "FBW" and event.stage >= 0:
            yield event.start_s, held
            held += saved_bytes[event.stage] * (1 if event.kind == "F" else -1)
            yield event.end_s, held


def _phases(events: Sequence[Event], x: Scale, factor: float) -> Iterator[str]:
    """Where the pipeline fills, works, drains; then the gradients, then the update."""
    forwards = [e for e in events if e.kind == "F"]
    backwards = [e for e in events if e.kind in "BI"]
    starts = [("fills", 0.0), ("steady", backwards[0].start_s), ("drains", forwards[-1].end_s)]
    starts += [
        ("reduces" if e.kind == "R" else "updates", e.start_s) for e in events if e.kind in "RU"
    ]
    ends = [start for _, start in starts[1:]] + [max(e.end_s for e in events)]
    for (name, start), end in zip(starts, ends, strict=True):
        left, width = x.percent(start * factor), x.percent((end - start) * factor)
        if width >= 1:
            text = element("b", name) if width >= 7 else ""
            place = f"left:{left:.2f}%;width:{width:.2f}%"
            yield element("span", text, class_="phase", style=place, title=name)


def phases_note(memory: Sequence[StageMemory]) -> str:
    """What the picture over time says and what it does not."""
    stage = memory[fullest_rank(memory)]
    text = (
        "Weights, gradients and optimizer states stay all the time; a forward pass adds the "
        "activations that its backward pass frees. Between the curve and the line of the peak lies "
        f"what a pass holds for a moment, {format_bytes(stage.transient)} at the peak."
    )
    return note(text)


def fullest_number(memory: Sequence[StageMemory]) -> str:
    """What the fullest rank needs."""
    needed = needed_bytes(memory)
    return number("needed_bytes", needed, format_bytes(needed))
