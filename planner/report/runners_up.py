"""The runners-up of a plan: how surely it is faster, what each lost by, and what may be missing."""

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from meshplan.costmodels.units import format_bytes, format_seconds
from meshplan.hardware_profiles.errors.layout_ratios import in_of_100
from meshplan.planner.answer.explain import AS_FAST, PART_NAMES
from meshplan.planner.case.plan_file import Plan, RunnerUp
from meshplan.planner.case.search_report import OpenKind
from meshplan.planner.report.output import listing
from meshplan.planner.report.tables import bullets
from meshplan.planner.search.found import KIND_AXES

ONE_CHANGE = "One change, all else as planned"
"""Of a plan's reasons; a runner-up of the same degrees has other settings too."""
OTHERS = "Runners-up, and what they lose by"
CLOSED = 1e-5  # a step no more than this fraction above the bound: no kind is missing
NARROW = 80
"""Below this many columns a runner-up is a sentence: its five cells would be words each."""


def runners_table(plan: Plan, width: int) -> Table:
    """The runners-up, how much slower and how surely each is, and what it lost by."""
    assert plan.prediction is not None
    if width < NARROW:
        return bullets(map(runner_sentence, runners_rows(plan)))
    headings = ("runner-up", "step", "slower than plan", "reserved", "lost by")
    table = listing(*headings, left=("runner-up", "lost by"))
    for row in runners_rows(plan):
        table.add_row(*row)
    return table


def runners_parts(plan: Plan, width: int) -> list[RenderableType]:
    """The runners-up, what their columns mean, and what may be missing among them."""
    return [runners_table(plan, width), *runners_notes(plan)]


def runners_notes(plan: Plan) -> list[str]:
    """What the columns mean, and what may be missing among the runners-up."""
    told = SLOWER if any(other.expected_slower is not None for other in plan.runners_up) else ""
    return [*filter(None, (told, *missing_lines(plan)))]


def missing_lines(plan: Plan) -> list[str]:
    """What of the same degrees as a runner-up, or of degrees that are not shown, may be faster."""
    if any(other.kind_bound_s is None for other in plan.runners_up):
        return [*filter(None, (at_most_line(plan), open_runners_line(plan)))]
    return [*filter(None, (kinds_line(plan), open_kinds_line(plan)))]


SLOWER = (
    "expected: corrected for picking the fastest of many; in N of 100: how often the plan is "
    "really the faster one, learnt from pairs of measured runs; a tie: 31 to 69 of 100"
)
"""What `slower_text` says of a runner-up."""
AT_MOST = (
    "steps are at most what is shown where a pipeline rank has several stages: runners-up get the "
    "splits of a list, those of the other layouts here and moves of layers; another may be faster"
)


PROVED = (
    "no layout of the space with the tp, cp, pp and ep of a runner-up is faster than that one, "
    "however its layers are split"
)
AT_LEAST = (
    "at least: no layout of the space with the same tp, cp, pp and ep takes less, however its "
    "layers are split; a runner-up without it is the fastest of these"
)
MOST_NAMED = 3  # kinds that are not shown


def kinds_line(plan: Plan) -> str:
    """What the runners-up are among layouts of their own degrees."""
    return AT_LEAST if any(map(may_be_faster, plan.runners_up)) else PROVED


def may_be_faster(other: RunnerUp) -> bool:
    """Whether another layout of a runner-up's degrees may be."""
    bound_s = other.kind_bound_s
    return bound_s is not None and bound_s < other.step_time_s * (1 - CLOSED)


def open_kinds_line(plan: Plan) -> str:
    """Which degrees that are not shown may be faster than the slowest runner-up; empty where none
    are.
    """
    search, prediction = plan.search, plan.prediction
    if prediction is None or search is None or search.open_kinds is None:
        return ""
    slowest_s = max(other.step_time_s for other in plan.runners_up)

    def least(kind: str, bound_s: float) -> str:
        more = bound_s / prediction.step_time_s - 1  # 0: as long as the plan
        return f"{kind} (at least {more:+.1%})" if abs(more) >= AS_FAST else kind

    named = [least(_degrees(each), each.bound_s) for each in search.open_kinds]
    rest_s = math.inf if search.rest_bound_s is None else search.rest_bound_s
    rest_s = min([rest_s, *(each.bound_s for each in search.open_kinds[MOST_NAMED:])])
    if rest_s < slowest_s * (1 - CLOSED):
        named = [*named[:MOST_NAMED], least("any other", rest_s)]
    return f"not shown, but may be faster than a runner-up: {', '.join(named)}" * bool(named)


def _degrees(kind: OpenKind) -> str:
    """As in a layout's label: degrees of 1 are not said, but for the first if all are."""
    degrees = zip(
        ("tp", "cp", "pp", "ep"), (getattr(kind, axis) for axis in KIND_AXES), strict=True
    )
    return " ".join(f"{axis}{n}" for axis, n in degrees if n > 1) or "tp1"


def at_most_line(plan: Plan) -> str:
    """That steps of runners-up are upper bounds of their kinds, where a list limits their splits;
    empty where it limits none that is shown.
    """
    several = any(other.layout.virtual_stages > 1 for other in plan.runners_up)
    return AT_MOST * (_of_a_list(plan) and several)


def _of_a_list(plan: Plan) -> bool:
    """Whether a list limits how layers are split."""
    return plan.search is not None and plan.search.cuts not in ("all", None)


def open_runners_line(plan: Plan) -> str:
    """What may be missing among the runners-up; empty where it is proved that nothing is."""
    assert plan.prediction is not None
    bound_s = plan.search.kinds_bound_s if plan.search else None
    slowest_s = max((other.step_time_s for other in plan.runners_up), default=0.0)
    if bound_s is None or bound_s >= slowest_s * (1 - CLOSED):
        return ""
    if not bound_s:
        return (
            "not every choice of tp, cp, pp and ep was looked at: a faster one may be missing here"
        )
    slower = bound_s / plan.prediction.step_time_s - 1
    listed = " if its layers are split as a list says" * _of_a_list(plan)
    return (
        "not every choice of tp, cp, pp and ep was searched to the end: one that is missing here, "
        "or a faster variant of one that is shown, takes at least "
        f"{format_seconds(bound_s)} ({slower:+.1%}){listed}"
    )


def runner_sentence(row: tuple[str, ...]) -> str:
    """The cells of a runner-up in one line of text."""
    label, step, slower, reserved, lost = row
    slower = slower.replace("\n", ", ")
    return f"{label}: {step}, slower {slower}, {reserved}{lost and f'; lost by {lost}'}"


def runners_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Layout, step, how much slower, memory, and what it lost by, of each runner-up."""
    assert plan.prediction is not None
    for other in plan.runners_up:
        yield (
            other.layout.full_label,
            format_seconds(other.step_time_s),
            slower_text(other, plan.prediction.step_time_s),
            format_bytes(other.reserved_bytes),
            lost_text(other),
        )


def slower_text(other: RunnerUp, chosen_s: float) -> str:
    """How much slower a runner-up is predicted, how much another layout of its degrees is at least
    where that may be less, how much it is expected to be, and in how many cases it is slower, a
    line each; older plan files have the first only.
    """
    told = [f"{other.step_time_s / chosen_s - 1:+.1%}"]
    if may_be_faster(other) and other.kind_bound_s is not None:
        told.append(f"at least {other.kind_bound_s / chosen_s - 1:+.1%}")
    probability = other.faster_probability
    if other.expected_slower is not None:
        told.append(f"expected {other.expected_slower:+.1%}")
    if probability is not None:
        told.append(in_of_100(probability))
    return "\n".join(told)


def lost_text(other: RunnerUp, most: int = 2) -> str:
    """The parts that cost a runner-up most."""
    found = [(name, s) for name, s in other.lost_by.items() if s > 0][:most]
    return ", ".join(f"{PART_NAMES[name]} +{format_seconds(s)}" for name, s in found)
