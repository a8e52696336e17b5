"""Pictures of a plan as SVG text: memory by pipeline rank, timeline of a step, parts of its time.

Drawn without a library, so that the page that holds them needs nothing else. Colours are classes:
the page's style sheet says what they are, for light and dark screens. Every shape says what it is
when the pointer rests on it (<title>).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from meshplan.costmodels.units import GIB, format_seconds
from meshplan.planner.answer.explain import PART_NAMES, TimeParts, needed_bytes, needed_of
from meshplan.planner.case.plan_file import StageMemory
from meshplan.planner.report.tables import CATEGORIES, folded
from meshplan.planner.report.timeline import NAMES, Event, StepTimeline

WIDTH, LABEL, ROW, GAP, AXIS = 960, 96, 24, 8, 26
RIGHT = 90
MOST_TITLED = 4000
"""Events that each get a shape of their own; above it, those of one kind and stage share one."""


def element(name: str, text: str = "", /, **attributes: object) -> str:
    """One SVG element; `class_` is `class`, and `_` in other names is `-`."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shown(value))}"'
        for key, value in attributes.items()
    )
    opened = f"<{name}{''.join(pairs)}"
    return f"{opened}>{text}</{name}>" if text else f"{opened}/>"


def _shown(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def titled(shape: str, title: str, **attributes: object) -> str:
    """A shape with its tooltip."""
    return element(shape, element("title", escape(title)), **attributes)


def picture(height: float, shapes: Iterable[str], label: str) -> str:
    """The shapes in a box as wide as the page."""
    return element(
        "svg",
        "".join(shapes),
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def memory_picture(memory: Sequence[StageMemory], gpu_memory_bytes: float) -> str:
    """A stacked bar per pipeline rank (neighbours alike share one) against the GPU's memory."""
    rows = folded(memory)
    most = max([gpu_memory_bytes, needed_bytes(memory)])
    scale = (WIDTH - LABEL - RIGHT) / most
    shapes: list[str] = []
    for index, (title, stage) in enumerate(rows):
        shapes += _memory_row(index * (ROW + GAP), title, stage, scale)
    bottom = len(rows) * (ROW + GAP)
    limit = LABEL + gpu_memory_bytes * scale
    shapes.append(
        titled(
            "line", f"memory of the GPU: {gpu_memory_bytes / GIB:.1f} GiB",
            class_="limit", x1=limit, x2=limit, y1=0, y2=bottom,
        )
    )  # fmt: skip
    shapes += _axis(most / GIB, scale * GIB, bottom, "GiB")
    return picture(bottom + AXIS, shapes, "Memory of each pipeline rank by category")


def _memory_row(y: float, title: str, stage: StageMemory, scale: float) -> Iterator[str]:
    yield _label(y, title)
    x = float(LABEL)
    for name in CATEGORIES:
        size_bytes = getattr(stage, name)
        told = f"{title}: {name} {size_bytes / GIB:.2f} GiB"
        yield titled("rect", told, class_=name, x=x, y=y, width=size_bytes * scale, height=ROW)
        x += size_bytes * scale
    used = needed_of(stage) / GIB
    yield element(
        "text", f"{used:.1f} GiB", class_="value", x=float(WIDTH - RIGHT + 8), y=y + ROW * 0.7
    )


def _label(y: float, text: str) -> str:
    return element("text", escape(text), class_="label", x=LABEL - 8, y=y + ROW * 0.7)


def _axis(most: float, scale: float, y: float, unit: str) -> Iterator[str]:
    """Ticks at round numbers; `scale` is pixels per unit."""
    tick = round_step(most / 8)
    for count in range(int(most / tick) + 1):
        x = LABEL + count * tick * scale
        yield element("line", class_="tick", x1=x, x2=x, y1=y, y2=y + 5)
        text = f"{count * tick:g}" + (f" {unit}" if count == 0 else "")
        yield element("text", text, class_="axis", x=x, y=y + 18)


def round_step(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power = float(10 ** math.floor(math.log10(least)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def timeline_picture(timeline: StepTimeline, virtual_stages: int) -> str:
    """A Gantt chart: a row per pipeline rank, a box per action."""
    scale = (WIDTH - LABEL - RIGHT) / timeline.end_s
    shapes = [_label(rank * (ROW + GAP), f"rank {rank}") for rank in range(timeline.ranks)]
    if len(timeline.events) <= MOST_TITLED:
        shapes += [_box(event, scale, timeline.ranks) for event in timeline.events]
    else:
        shapes += _merged(timeline, scale)
    bottom = timeline.ranks * (ROW + GAP)
    factor, unit = (1.0, "s") if timeline.end_s >= 1 else (1e3, "ms")
    shapes += _axis(timeline.end_s * factor, scale / factor, bottom, unit)
    label = f"Timeline of one step, {virtual_stages} virtual stages per rank"
    return picture(bottom + AXIS, shapes, label)


def event_class(event: Event, ranks: int) -> str:
    """Its kind, and whether its chunk is an odd one, so that neighbours differ in shade."""
    return f"{event.kind}{' odd' if event.stage >= 0 and event.stage // ranks % 2 else ''}"


def _box(event: Event, scale: float, ranks: int) -> str:
    told = f"{event.title} on rank {event.rank}, {NAMES[event.kind]}: "
    told += f"{format_seconds(event.end_s - event.start_s)} from {format_seconds(event.start_s)}"
    return titled(
        "rect", told, class_=event_class(event, ranks),
        x=LABEL + event.start_s * scale, y=event.rank * (ROW + GAP),
        width=(event.end_s - event.start_s) * scale, height=ROW,
    )  # fmt: skip


def _merged(timeline: StepTimeline, scale: float) -> Iterator[str]:
    paths: dict[str, list[str]] = {}
    for event in timeline.events:
        x, width = LABEL + event.start_s * scale, (event.end_s - event.start_s) * scale
        outline = f"M{x:.2f} {event.rank * (ROW + GAP)}h{width:.2f}v{ROW}h-{width:.2f}z"
        paths.setdefault(event_class(event, timeline.ranks), []).append(outline)
    for name, outlines in paths.items():
        yield element("path", class_=name, d="".join(outlines))


def parts_picture(parts: TimeParts) -> str:
    """The step time as one stacked bar."""
    scale = (WIDTH - LABEL - RIGHT) / parts.total_s
    shapes, x = [_label(0, "one step")], float(LABEL)
    for name, seconds in parts.items():
        share = seconds / parts.total_s
        told = f"{PART_NAMES[name]}: {format_seconds(seconds)}, {share:.1%}"
        shapes.append(
            titled("rect", told, class_=name, x=x, y=0, width=max(0.0, seconds * scale), height=ROW)
        )
        x += seconds * scale
    factor, unit = (1.0, "s") if parts.total_s >= 1 else (1e3, "ms")
    shapes += _axis(parts.total_s * factor, scale / factor, ROW + GAP, unit)
    return picture(ROW + GAP + AXIS, shapes, "Parts of the step time")
