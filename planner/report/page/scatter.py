"""Alternatives as points: step time against memory, a colour for each family of layouts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from meshplan.costmodels.units import GIB, format_bytes, format_seconds
from meshplan.planner.answer.alternatives import Alternative
from meshplan.planner.report.page.markup import Scale, element, legend, plot, ruled

MOST_FAMILIES = 7
FARTHEST = 3.0  # times the step of the plan; slower ones are left out of the picture


def scatter(found: Sequence[Alternative], gpu_memory_bytes: float) -> str:
    """The picture and its legend; the first of `found` is the plan."""
    chosen = found[0].step_time_s
    near = [each for each in found if each.step_time_s <= FARTHEST * chosen]
    slowest = max(each.step_time_s for each in near)
    unit, factor = ("s", 1.0) if chosen >= 1 else ("ms", 1e3)
    fastest = min(each.step_time_s for each in near)
    room = max(slowest - fastest, 0.05 * chosen) * 0.08
    x = Scale((fastest - room) * factor, (slowest + room) * factor)
    most = max([gpu_memory_bytes, *(each.needed_bytes for each in near)])
    y = Scale(0.0, most / GIB * 1.08)
    colours = _families(near)
    holds = f"GPU memory {format_bytes(gpu_memory_bytes)}"
    limit = ruled(y, gpu_memory_bytes / GIB, holds, "limit")
    points = "".join(_point(each, x, y, factor, colours) for each in reversed(near[1:]))
    own = _point(near[0], x, y, factor, colours, chosen=True)
    titles = (f"step time, {unit}", "GiB of the fullest rank")
    picture = plot(x, y, titles, limit, points, own, kind="scatter")
    return picture + legend(_entries(near, colours))


def _families(near: Sequence[Alternative]) -> dict[str, str]:
    """A colour class for each family: the plan's, the most frequent; the others share one."""
    counts, own = Counter(each.family for each in near), near[0].family
    order = [own, *(name for name, _ in counts.most_common() if name != own)]
    return {name: f"f{min(index, MOST_FAMILIES)}" for index, name in enumerate(order)}


def _entries(near: Sequence[Alternative], colours: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, colour in colours.items():
        if colour != f"f{MOST_FAMILIES}":
            yield colour, name
    if len(colours) > MOST_FAMILIES:
        yield f"f{MOST_FAMILIES}", "other degrees"
    if not all(each.fits for each in near):
        yield "hollow", "does not fit"


def _point(
    each: Alternative,
    x: Scale,
    y: Scale,
    factor: float,
    colours: dict[str, str],
    *,
    chosen: bool = False,
) -> str:
    size = format_bytes(each.needed_bytes)
    told = f"{each.layout.full_label}: {format_seconds(each.step_time_s)}, {size}"
    told += "" if each.fits else ", does not fit"
    kind = f"dot {colours[each.family]}{'' if each.fits else ' hollow'}{' chosen' * chosen}"
    left, up = x.percent(each.step_time_s * factor), y.percent(each.needed_bytes / GIB)
    place = f"left:{left:.2f}%;bottom:{up:.2f}%"
    text = element("b", escape("this plan")) if chosen else ""
    return element(
        "span", text, class_=kind, style=place, title=told, tabindex=0, role="img", aria_label=told
    )
