"""The timeline of a step as a Chrome trace, with its communication.

Trace Event Format: complete events ("ph": "X"), microseconds; a process for each pipeline rank, in
it a thread that computes and one for each stream of communication. ui.perfetto.dev and
chrome://tracing open it, several files side by side.
"""

from collections.abc import Iterator
from typing import Any

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.report.streams import STREAMS, Sent, Traffic
from meshplan.planner.report.timeline import NAMES, Event, StepTimeline


@dataclass(frozen=True, slots=True)
class Transfer:
    """One piece of communication of a rank; `exposed_s` of it nothing hides."""

    rank: int
    stream: str
    start_s: float
    end_s: float
    exposed_s: float
    beside: Event


def transfers(timeline: StepTimeline, traffic: Traffic) -> Iterator[Transfer]:
    """What goes over the links during the step (`planner.report.streams` says where it is put)."""
    for event in timeline.events:
        if event.kind == "R":
            sent = traffic.reduction(event.rank)
            yield _ending(event, "weights", sent, event.end_s)
        elif event.kind == "U":
            yield _ending(event, "weights", traffic.gathering(event.rank), event.end_s, shown=True)
        else:
            yield from _of_action(event, traffic)


def _of_action(event: Event, traffic: Traffic) -> Iterator[Transfer]:
    for stream, sent in traffic.by_action[event.stage, event.kind].items():
        end_s = event.start_s + sent.whole_s
        yield Transfer(event.rank, stream, event.start_s, end_s, sent.exposed_s, event)
    if traffic.neighbour(event.stage, event.kind) is not None:
        message = traffic.message
        arrives_s = event.end_s + message.whole_s - message.exposed_s
        yield _ending(event, "pipeline", message, arrives_s)


def _ending(
    event: Event, stream: str, sent: Sent, end_s: float, *, shown: bool = False
) -> Transfer:
    """What ends at `end_s`; `shown`: only the part that nothing hides."""
    lasts_s = sent.exposed_s if shown else sent.whole_s
    return Transfer(event.rank, stream, end_s - lasts_s, end_s, sent.exposed_s, event)


def chrome_trace(timeline: StepTimeline, traffic: Traffic, title: str) -> dict[str, Any]:
    """The timeline and its transfers as a Chrome trace."""
    sent = [each for each in transfers(timeline, traffic) if each.end_s > each.start_s]
    threads = ["computing", *(STREAMS[name] for name in STREAMS)]
    names = [
        named("process_name", rank, 0, f"{title}: pipeline rank {rank}")
        for rank in range(timeline.ranks)
    ]
    used = {(each.rank, _thread(each.stream)) for each in sent}
    used |= {(rank, 0) for rank in range(timeline.ranks)}
    names += [named("thread_name", rank, tid, threads[tid]) for rank, tid in sorted(used)]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*names, *map(_computing, timeline.events), *map(_transfer, sent)],
    }


def named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    """The event that names a process or a thread."""
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": {"name": name}}


def _thread(stream: str) -> int:
    return 1 + list(STREAMS).index(stream)


def _computing(event: Event) -> dict[str, Any]:
    args = {"stage": event.stage, "micro_batch": event.micro_batch} if event.stage >= 0 else {}
    where = span(event.rank, 0, event.start_s, event.end_s)
    return {"name": event.title, "cat": NAMES[event.kind], "args": args, **where}


def _transfer(sent: Transfer) -> dict[str, Any]:
    where = span(sent.rank, _thread(sent.stream), sent.start_s, sent.end_s)
    args = {"beside": sent.beside.title, "exposed_us": round(sent.exposed_s * 1e6, 3)}
    return {"name": STREAMS[sent.stream], "cat": sent.stream, "args": args, **where}


def span(pid: int, tid: int, start_s: float, end_s: float) -> dict[str, Any]:
    """Where and when a complete event is, in microseconds."""
    lasts_us = round((end_s - start_s) * 1e6, 3)
    return {"ph": "X", "pid": pid, "tid": tid, "ts": round(start_s * 1e6, 3), "dur": lasts_us}
