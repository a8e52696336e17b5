"""The step that was predicted and the step that ran, in one Chrome trace.

Trace Event Format, as `planner.report.trace` writes it: a process for each predicted pipeline rank,
and below them one for each rank that ran, in the step of median time. What a measured rank waits
for (another stage's message, gradients that the backward pass did not hide) is a thread of its own;
collectives inside an action are part of it and were not timed alone. Each rank's clock starts with
its own step: ranks begin it together only as nearly as the last step's end lets them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.executor.engine.parts.coordinates import Coordinates
from meshplan.executor.engine.watch.clock import Span
from meshplan.executor.engine.watch.span_file import read_spans
from meshplan.executor.launch.results import read_records, typical_step
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.report.streams import Traffic
from meshplan.planner.report.timeline import Event, step_timeline
from meshplan.planner.report.trace import chrome_trace, named, span

FIRST_PROCESS = 1_000_000
"""Of the ranks that ran; predicted pipeline ranks are fewer."""
COMPUTING, WAITING = 0, 1
KINDS = {"reduce": "R", "optimizer": "U"}


def measured_trace(plan: Plan, priced_by: Cluster | None, ranks: Path) -> str:
    """The trace, as JSON, of a finished run whose ranks wrote their spans into `ranks`. Left out:
    the prediction without a profile, and ranks of other hosts, whose files are not here.
    """
    here = sorted(ranks.glob("rank*.spans"), key=_number)
    records = read_records(ranks, plan.layout.world_size)
    step = typical_step([records[_number(path)] for path in here])
    events = _predicted(plan, priced_by) if priced_by else []
    for path in here:
        events += _rank(plan, _number(path), read_spans(path, step))
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    return json.dumps(document, separators=(",", ":"))


def _predicted(plan: Plan, cluster: Cluster) -> list[dict[str, Any]]:
    case = Case(
        model=model_from_config(plan.model.config, plan.model.name), layout=plan.layout,
        training=plan.training, cluster=cluster,
        engine=load_engine(plan.engine).model_copy(update={"learned": plan.learned}),
    )  # fmt: skip
    model = step_model_of(case)
    events: list[dict[str, Any]] = chrome_trace(step_timeline(model), Traffic(model), "predicted")[
        "traceEvents"
    ]
    return events


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("rank"))


def _rank(plan: Plan, rank: int, spans: list[Span]) -> Iterator[dict[str, Any]]:
    process = FIRST_PROCESS + rank
    place = Coordinates(plan.layout, rank).pp_rank
    yield named("process_name", process, COMPUTING, f"measured: rank {rank}, pipeline rank {place}")
    yield named("thread_name", process, COMPUTING, "computing")
    yield named("thread_name", process, WAITING, "waiting")
    for each in spans:
        waits = each.name in ("wait", "reduce")
        where = span(process, int(waits), each.start_s, each.start_s + each.seconds)
        yield {"name": _title(each, place), "cat": each.name, **where}


def _title(each: Span, place: int) -> str:
    stage, kind, micro_batch = each.action or (-1, KINDS.get(each.name), -1)
    if kind is None:
        return "wait for sends"
    did = Event(place, kind, stage, micro_batch, 0.0, 0.0).title
    return f"wait for the input of {did}" if each.name == "wait" else did
