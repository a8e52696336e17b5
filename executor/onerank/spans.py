"""Seconds of each action of a schedule, from the phases of a step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from meshplan.costmodels.schedule.actions import Action
from meshplan.executor.engine.clock import Span


def by_action(
    spans: Sequence[Span], order: Sequence[Action]
) -> Mapping[tuple[int, str], tuple[float, float]]:
    """Mean and median seconds of a stage's actions of one kind: `order` is what ran, one phase for
    each.
    """
    working = [seconds for name, seconds in spans if name in ("forward", "backward")]
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for action, seconds in zip(order, working, strict=True):
        found[action.stage, action.kind].append(seconds)
    return {key: (fmean(each), median(each)) for key, each in found.items()}
