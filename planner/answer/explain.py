"""Why a layout takes the time it takes, what a runner-up loses by, and what one change would do.

parts      the seconds of a step by cause; they add up to the step time
lost by    parts of the other layout - parts of the chosen one
changes    one axis moved by one notch, all else kept, priced the same way: slower, does not fit,
           or the rule that forbids it. The search has proved more than these: they are shown
           because they are what people try first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import reduce
from itertools import chain
from operator import add

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.seconds.cost import Cost, Pass
from meshplan.costmodels.step.step import StepModel, StepTime
from meshplan.costmodels.units import format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.memory_limit import lacking_words
from meshplan.planner.case.plan_file import Prediction, StageMemory
from meshplan.planner.case.predict import prediction_of, stage_memory, step_model_of
from meshplan.planner.case.resolve import Case, check_case
from meshplan.planner.check.fixes import Fix, changes
from meshplan.planner.space.engine_rules import unpriced


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Seconds of one step by cause, of the busiest pipeline rank; `total_s` is the step time.

    matmul_s     matrix products, forward and backward
    attention_s  attention, likewise
    pointwise_s  kernels bound by memory, likewise
    recompute_s  running forwards again
    host_s       waiting for the host to issue kernels
    tensor_s     tensor-parallel communication that nothing hides
    context_s    context-parallel, likewise
    expert_s     expert-parallel, likewise
    data_s       gradients and weights of data parallelism, likewise
    send_s       between pipeline ranks, likewise
    offload_s    copies to and from the host, likewise
    bubble_s     waiting for other pipeline ranks
    update_s     weight update
    fixed_s      once per step
    """

    matmul_s: float
    attention_s: float
    pointwise_s: float
    recompute_s: float
    host_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    data_s: float
    send_s: float
    offload_s: float
    bubble_s: float
    update_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(seconds for _, seconds in self.items())

    def items(self) -> tuple[tuple[str, float], ...]:
        """Name and seconds of each part, in order."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


PART_NAMES = {
    "matmul_s": "matrix products",
    "attention_s": "attention",
    "pointwise_s": "memory-bound kernels",
    "recompute_s": "recompute",
    "host_s": "host overhead",
    "tensor_s": "exposed tensor-parallel communication",
    "context_s": "exposed context-parallel communication",
    "expert_s": "exposed expert-parallel communication",
    "data_s": "exposed gradient and weight communication",
    "send_s": "exposed pipeline communication",
    "offload_s": "exposed copies to and from the host",
    "bubble_s": "pipeline bubble",
    "update_s": "weight update",
    "fixed_s": "once per step",
}


AS_FAST = 0.0005
"""What one digit of a per cent does not show."""
LEAST_SHARE = 0.001
"""Of a step, or of a GPU's memory: smaller parts are not shown."""


def time_parts(step_model: StepModel, time: StepTime | None = None) -> TimeParts:
    """Where the step time of a layout goes; `time` if it is already known."""
    time, m, la = time or step_model.time(), step_model.m, step_model.layout
    ranks: dict[int, list[Cost]] = {}
    for index, cost in enumerate(step_model.stage_costs):
        rank = rank_of_chunk(la.schedule, la.pipeline_parallel, index)
        ranks.setdefault(rank, []).append(cost)
    busiest = reduce(add, max(ranks.values(), key=lambda costs: sum(c.total_s for c in costs)))
    kernels: Pass = busiest.forward + busiest.input_grad + busiest.weight_grad
    parts = {
        "matmul_s": m * float(kernels.matmul_s),
        "attention_s": m * float(kernels.attention_s),
        "pointwise_s": m * float(kernels.pointwise_s),
        "recompute_s": m * float(busiest.replay.compute_s),
    }
    return TimeParts(
        **parts,
        **{name: float(getattr(time, name)) for name in PART_NAMES if hasattr(time, name)},
        host_s=float(time.compute_s) - sum(parts.values()),
        update_s=float(time.optimizer_s),
    )


def ideal_s(prediction: Prediction) -> float | None:
    """The step if every GPU multiplied at its peak all the time; None where no MFU is defined."""
    return None if prediction.mfu is None else prediction.mfu * prediction.step_time_s


def lost_by(chosen: TimeParts, other: TimeParts) -> dict[str, float]:
    """Seconds that `other` takes more (or less, negative) than `chosen`, by part, largest first."""
    before = dict(chosen.items())
    changes = {name: seconds - before[name] for name, seconds in other.items()}
    moved = {name: change for name, change in changes.items() if abs(change) > 1e-9}
    return dict(sorted(moved.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class MovedAxis:
    """The chosen layout with one axis moved.

    verdict      slower by so much and by what, or the bytes it lacks
    slower       fraction of the step time, None where it does not fit
    lacks_bytes  beyond the memory of the GPU, None where it fits
    """

    fix: Fix
    verdict: str
    slower: float | None = None
    lacks_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class TimedLayout:
    """A layout with its step time, and the parts of that."""

    case: Case
    step_s: float
    parts: TimeParts


def timed(case: Case) -> TimedLayout:
    """Simulate one step of `case`."""
    step_model = step_model_of(case)
    time = step_model.time()
    return TimedLayout(case, float(time.step_time_s), time_parts(step_model, time))


@dataclass(frozen=True, slots=True)
class PricedLayout:
    """A layout with its prediction and the parts of its step time."""

    case: Case
    prediction: Prediction
    parts: TimeParts

    @property
    def timed(self) -> TimedLayout:
        """Its time alone."""
        return TimedLayout(self.case, self.prediction.step_time_s, self.parts)


def priced(case: Case) -> PricedLayout:
    """Simulate one step of `case`: its prediction, and the parts of its time."""
    step_model = step_model_of(case)
    time = step_model.time()
    return PricedLayout(case, prediction_of(step_model, time), time_parts(step_model, time))


def alternatives(chosen: TimedLayout) -> Iterator[MovedAxis]:
    """Each axis moved by one notch, those that need more memory first."""
    case = chosen.case
    for fix in notches(case):
        moved = replace(case, layout=fix.layout)
        if not runs(moved):
            continue
        model = step_model_of(moved)
        lacks = needed_bytes(stage_memory(model)) - case.cluster.fillable_bytes
        if lacks > 0:
            yield MovedAxis(fix, lacking_words(lacks, case.cluster), lacks_bytes=lacks)
        else:
            time = model.time()
            slower = time.step_time_s / chosen.step_s - 1
            lost = lost_by(chosen.parts, time_parts(model, time))
            yield MovedAxis(fix, _verdict(slower, lost), slower=slower)


def notches(case: Case) -> Iterator[Fix]:
    """One axis moved by one notch, each layout once, those that need more memory first; not all of
    them run.
    """
    seen = set[Layout]()
    for fix in chain(_spending(case.layout), changes(case)):
        if fix.layout not in seen:
            seen.add(fix.layout)
            yield fix


def runs(case: Case) -> bool:
    """Whether the engine runs the layout, and its profile says how."""
    try:
        check_case(case)
    except InvalidLayout:
        return False
    return not unpriced(case.layout, case.engine)


def without_adapters(chosen: TimedLayout) -> str:
    """What training all weights would change in the same layout, "" where it is no faster.

    Adapters are many kernels, bound by the host and by memory; what their frozen weights spare is a
    third of the linear layers' products, which is less where layers or micro-batches are small.
    """
    case = chosen.case
    if case.training.lora is None:
        return ""
    whole = replace(case, training=replace(case.training, lora=None))
    if not runs(whole):
        return ""
    model = step_model_of(whole)
    time = model.time()
    slower = time.step_time_s / chosen.step_s - 1
    if slower > -AS_FAST:
        return ""
    lost = lost_by(chosen.parts, time_parts(model, time))
    return (
        f"all weights trained instead of adapters, whether it fits or not: {_verdict(slower, lost)}"
    )


def _verdict(slower: float, lost: dict[str, float]) -> str:
    """Slower or faster, with the two parts that moved most that way."""
    if abs(slower) < AS_FAST:
        return "as fast"
    order = list(lost.items()) if slower >= 0 else list(reversed(lost.items()))
    told = [(name, s) for name, s in order[:2] if s * slower > 0]
    causes = ", ".join(
        f"{PART_NAMES[name]} {'+' if s > 0 else '-'}{format_seconds(abs(s))}" for name, s in told
    )
    return f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}: {causes}"


def needed_bytes(memory: Sequence[StageMemory]) -> float:
    """Bytes of a GPU that the fullest rank needs."""
    return max(stage.needed for stage in memory)


def lacking_bytes(prediction: Prediction) -> float:
    """Bytes that the fullest rank needs beyond what it may use; negative where it fits."""
    usable = prediction.usable_memory_bytes or prediction.gpu_memory_bytes
    return needed_bytes(prediction.memory) - usable


def _spending(layout: Layout) -> Iterator[Fix]:
    """Changes that use more memory: the reverse of those in `planner.check.fixes`."""
    la = layout
    yield Fix(
        f"micro_batch_size {la.micro_batch_size * 2}",
        replace(la, micro_batch_size=la.micro_batch_size * 2),
    )
    if la.recompute != "none":
        stages = tuple(Stage(stage.layers) for stage in la.stages)
        yield Fix("recompute none", replace(la, stages=stages))
    for stage in range(la.zero_stage):
        yield Fix(f"zero_stage {stage}", replace(la, zero_stage=stage, shard_group=0))
    if la.optimizer_offload:
        yield Fix("optimizer_offload 0", replace(la, optimizer_offload=0.0))
    if la.activation_offload:
        yield Fix("activation_offload 0", replace(la, activation_offload=0.0))
