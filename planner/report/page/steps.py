"""The timeline of a step as numbers for the page's script: microseconds, by pipeline rank."""

from typing import Any

from meshplan.costmodels.layout import Layout
from meshplan.planner.report.streams import STREAMS, Sent, Traffic
from meshplan.planner.report.timeline import NAMES, Event, StepTimeline

FIRST_ACTIONS = 24  # of the first rank that the page opens with: as many as can be told apart


def step_data(timeline: StepTimeline, traffic: Traffic, layout: Layout) -> dict[str, Any]:
    """All that is drawn: actions, what each sends, and the stretches that the buttons lead to."""
    period = steady_period(timeline, layout)
    return {
        "ranks": [_rank(timeline, rank) for rank in range(timeline.ranks)],
        "end": _us(timeline.end_s),
        "pp": timeline.ranks,
        "names": NAMES,
        "streams": STREAMS,
        "sends": _sends(timeline, traffic),
        "message": _pair(traffic.message),
        "once": [
            [_pair(traffic.reduction(rank)), _pair(traffic.gathering(rank))]
            for rank in range(timeline.ranks)
        ],
        "period": None if period is None else [_us(period[0]), _us(period[1])],
        "first": list(map(_us, first_stretch(timeline, period))),
    }


def _rank(timeline: StepTimeline, rank: int) -> dict[str, Any]:
    events = timeline.of_rank(rank)
    return {
        "k": "".join(e.kind for e in events),
        "s": [e.stage for e in events],
        "m": [e.micro_batch for e in events],
        "t": [_us(e.start_s) for e in events],
        "d": [_us(e.end_s - e.start_s) for e in events],
    }


def _sends(timeline: StepTimeline, traffic: Traffic) -> dict[str, dict[str, Any]]:
    """Of each stage and kind of action the microseconds of each stream, and whether it sends its
    output to another rank ("pipeline").
    """
    found: dict[str, dict[str, Any]] = {}
    for stage, kind in sorted({(e.stage, e.kind) for e in timeline.events if e.stage >= 0}):
        sent: dict[str, Any] = {
            name: _pair(each) for name, each in traffic.by_action[stage, kind].items()
        }
        if traffic.neighbour(stage, kind) is not None:
            sent["pipeline"] = _pair(traffic.message)
        found[f"{stage}{kind}"] = sent
    return found


def _pair(sent: Sent) -> list[float]:
    return [_us(sent.whole_s), _us(sent.exposed_s)]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def steady_period(timeline: StepTimeline, layout: Layout) -> tuple[float, float] | None:
    """Start and end of one period amid the step, of the first rank: from a backward of its last
    chunk to the same of the next micro-batch (interleaved: of as many as there are ranks). None
    where the pipeline never works steadily.
    """
    own = timeline.of_rank(0)
    forwards = [e for e in own if e.kind == "F"]
    backwards = _last_chunk(own)
    apart = layout.pipeline_parallel if layout.schedule == "interleaved_1f1b" else 1
    pairs = [
        (one.start_s, other.start_s)
        for one, other in zip(backwards, backwards[apart:], strict=False)
        if one.micro_batch % apart == 0 and other.start_s <= forwards[-1].end_s
    ]
    return pairs[len(pairs) // 2] if pairs else None


def _last_chunk(own: list[Event]) -> list[Event]:
    backwards = [e for e in own if e.kind in "BI"]
    last = max(e.stage for e in backwards)
    return [e for e in backwards if e.stage == last]


def first_stretch(
    timeline: StepTimeline, period: tuple[float, float] | None
) -> tuple[float, float]:
    """What the page opens with: of a period, or from the first backward of the first rank on, as
    much as can be read.
    """
    own = timeline.of_rank(0)
    begins = period[0] if period else next(e.start_s for e in own if e.kind in "BI")
    starts = [e.start_s for e in own if e.start_s >= begins]
    few = len(starts) <= FIRST_ACTIONS
    if not period and few:
        return 0.0, timeline.end_s
    ends = (period[1] if period else timeline.end_s) if few else starts[FIRST_ACTIONS]
    return begins, min(ends, period[1]) if period else ends
