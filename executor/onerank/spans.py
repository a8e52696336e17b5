"""Seconds of each action of a schedule, from the phases of a step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from meshplan.executor.engine.watch.clock import Span


def by_action(spans: Sequence[Span]) -> Mapping[tuple[int, str], tuple[float, float]]:
    """Mean and median seconds of a stage's actions of one kind."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for span in spans:
        if span.action is not None and span.name != "wait":
            found[span.action.stage, span.action.kind].append(span.seconds)
    return {key: (fmean(each), median(each)) for key, each in found.items()}
