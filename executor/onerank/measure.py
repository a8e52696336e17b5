"""Builds one rank of a job on a device and times its steps, whatever process group it is in.

The first step is followed by the tracker of the dry run, which counts what is alive, and is not
timed; `warmup` more are not either. Routed tokens are balanced, as in a dry run.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean, median, median_low

import torch

from meshplan.executor.dryrun.dry_run import tag_state
from meshplan.executor.dryrun.tracker import Tracker
from meshplan.executor.engine.step.data import Sequences
from meshplan.executor.engine.step.engine import INIT_STD, Engine, Job
from meshplan.executor.engine.step.pipeline import Batch
from meshplan.executor.engine.watch.clock import Span, Spans, by_phase
from meshplan.executor.onerank.result import RankMeasured


class NotFinite(RuntimeError):
    """The loss or the gradient norm of a step is no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How many steps, and how weights begin: drawn by name as in a run, or each shard for itself
    where nobody else holds the others.
    """

    warmup: int = 2
    steps: int = 5
    alone: bool = True


def measure(
    job: Job,
    device: torch.device,
    asked: Asked,
    waited: Callable[[], dict[str, float]] = dict,
) -> RankMeasured:
    """Run `job` on this rank of the process group. Raises `InvalidLayout` and `NotFinite`.

    waited  seconds since its last call that this rank waited for messages, by the group's name
    """
    tracker, spans = Tracker(), Spans(device)
    with tracker.watching():
        engine = Engine(job, device, balanced=True, observer=tracker)
        tag_state(tracker, engine)
    start_weights(engine, alone=asked.alone)
    ahead = 1 + job.model.mtp_layers
    batches = engine.batches(0, Sequences(job.training, job.model.vocab, job.seed, ahead=ahead))
    with tracker.watching():
        engine.run(batches)
    engine.observer = engine.pipeline.observer = spans
    timed = [_step(engine, batches, spans, waited) for _ in range(asked.warmup + asked.steps)]
    return _median_step(engine, timed[asked.warmup :], tracker)


def start_weights(engine: Engine, *, alone: bool) -> None:
    """As in a run, or (`alone`) all of them normal: then a gathered whole is, too."""
    if not alone:
        engine.init_weights()
        return
    for unit in engine.units:
        unit.master.normal_(0, INIT_STD)
        unit.refresh()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One timed step."""

    step_s: float
    processor_s: float
    loss: float
    spans: list[Span]
    exposed_s: dict[str, float]
    device_bytes: dict[str, int]


def _step(
    engine: Engine, batches: Sequence[Batch], spans: Spans, waited: Callable[[], dict[str, float]]
) -> _Step:
    on_device = engine.device.type == "cuda"
    settle = torch.cuda.synchronize if on_device else nullcontext
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    settle()
    waited()
    began, used_s = time.perf_counter(), time.process_time()
    norm, loss = (float(x) for x in engine.run(batches))
    settle()
    step_s, used_s = time.perf_counter() - began, time.process_time() - used_s
    if not (math.isfinite(norm) and math.isfinite(loss)):
        raise NotFinite(f"loss {loss}, gradient norm {norm}: no finite numbers")
    peaks = {}
    if on_device:
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        peaks = {"allocated": allocated, "reserved": reserved}
    return _Step(
        step_s=step_s, processor_s=used_s, loss=loss, spans=spans.take(), exposed_s=waited(),
        device_bytes=peaks,
    )  # fmt: skip


def _median_step(engine: Engine, timed: Sequence[_Step], tracker: Tracker) -> RankMeasured:
    typical = median_low(step.step_s for step in timed)
    step = next(step for step in timed if step.step_s == typical)
    phases = by_phase(step.spans)
    actions = _by_action(step.spans)
    axes, exposed = engine.local.groups.axes(), defaultdict[str, float](float)
    for name, seconds in step.exposed_s.items():
        exposed[axes.get(name, "world")] += seconds
    at = engine.local.groups.at
    return RankMeasured(
        rank=at.rank,
        pipeline_rank=at.pp_rank,
        micro_batches=engine.num_micro_batches,
        step_s=step.step_s,
        step_times_s=tuple(each.step_s for each in timed),
        processor_s=tuple(each.processor_s for each in timed),
        seconds={**phases, "rest": step.step_s - sum(phases.values())},
        actions=tuple((*key, *seconds) for key, seconds in actions.items()),
        exposed_s=dict(exposed),
        loss=step.loss,
        held_bytes={**{str(k): v for k, v in tracker.most_bytes.items()}, "total": tracker.peak},
        device_bytes={
            name: max(each.device_bytes[name] for each in timed) for name in step.device_bytes
        },
    )


def _by_action(spans: Sequence[Span]) -> Mapping[tuple[int, str], tuple[float, float]]:
    """Mean and median seconds of a stage's actions of one kind."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for span in spans:
        if span.action is not None and span.name != "wait":
            found[span.action.stage, span.action.kind].append(span.seconds)
    return {key: (fmean(each), median(each)) for key, each in found.items()}
