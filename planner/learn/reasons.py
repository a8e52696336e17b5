"""Why a run is slower than expected: hypotheses, each priced by the cost model or read off the log.

    probability  by the step's time and the peak of memory, beside all other hypotheses and that the
               model is off (`planner.learn.likelihood`): they are in its order
    explains   share of the gap that the hypothesis closes, times a weight:
               1 - |ln(measured / step under the hypothesis)| / |ln(measured / expected)|.
               The weight is 1 for a switch; for something f times as slow, where f <= `MOST` is the
               factor that closes the gap, exp(-(ln f / `UNUSUAL`)^2 / 2) [assumed: 1.6 is one
               standard deviation]
    gain       fraction of the step that fixing it would save: 1 - expected / under the hypothesis

A hypothesis is not a finding: several explain a gap equally well; only a trial tells them apart.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.units import format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import KERNEL_SCALES, Tuning
from meshplan.planner.learn.likelihood import MOST, UNUSUAL, Seen
from meshplan.planner.logs.steady import Steady
from meshplan.planner.runs.attention import BEFORE_FLASH
from meshplan.planner.runs.compiling import NOT_COMPILED
from meshplan.planner.runs.habits import NOT_HIDDEN
from meshplan.planner.runs.memory import recomputing

HALVINGS = 20
SMALLEST_EXPLAINED, IMBALANCED = 0.05, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One hypothesis.

    name         what may be
    evidence     what speaks for it
    step_time_s  the step if it holds alone
    explains     share of the gap that it closes, weighed by how usual it is
    try_this     what to do
    gain         fraction of the step that mending it would save
    probability  of all hypotheses, that none holds among them, 1 together
    """

    name: str
    evidence: Literal["priced by the cost model", "seen in the log"]
    step_time_s: float
    explains: float
    try_this: str
    gain: float
    probability: float


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that may differ from what the config says, and the cost model with it changed;
    `stated`: of the layout or the number format, which a plan states.
    """

    name: str
    try_this: str
    model: StepModel
    stated: bool = False


@dataclass(frozen=True, slots=True)
class Slower:
    """Hardware that may be slower than the profile says: the constants to multiply, the network's
    bandwidth where there are none; `unusual`: the deviation of the factor's logarithm.
    """

    name: str
    try_this: str
    scales: tuple[str, ...]
    unusual: float = UNUSUAL


SLOWER = (
    Slower(
        "kernels take {factor:.2f} x as long on the GPUs",
        "check clocks, power caps and temperatures (nvidia-smi -q -d PERFORMANCE)", KERNEL_SCALES,
    ),
    Slower(
        "collectives take {factor:.2f} x as long",
        "measure the links: `meshplan profile`, nccl-tests; look for a card or rail that is down",
        ("collective_scale",),
    ),
    Slower(
        "the host takes {factor:.2f} x as long to launch kernels and micro-batches",
        "check CPU load, data loading in the training process, logging; use larger micro-batches",
        ("launch_s", "micro_batch_s", "step_s", "routing_s"),
    ),
)  # fmt: skip
ON_CORES = Slower(
    "kernels take {factor:.2f} x as long on the cores",
    "check what else runs on them (top), their clocks and power caps", KERNEL_SCALES,
)  # fmt: skip
"""The first of `SLOWER`, of a cluster of CPUs."""
SOCKETS = Slower(
    "NCCL's TCP sockets between nodes have 1/{factor:.0f} of the network's bandwidth",
    "NCCL_DEBUG=INFO: look for its network plugin, NCCL_IB_HCA, /dev/infiniband in the container",
    (), math.log(64),
)  # fmt: skip
"""One port of 25 Gb/s instead of eight of 200 is 1/64 [assumed: one standard deviation]."""


def reasons(model: StepModel, seen: Seen, steady: Steady) -> tuple[Reason, ...]:
    """What would explain a measured step longer than expected, likeliest first; nothing for a
    shorter one.
    """
    measured_s, expected_s = seen.step_time_s, model.time().step_time_s
    if measured_s <= expected_s:
        return ()
    as_is = seen.of_memory(model)
    found = [
        *_switched(model, seen), *_slowed(model, seen, as_is), *_waiting(expected_s, seen, as_is),
        *_shown(steady, expected_s, seen, as_is),
    ]  # fmt: skip
    total = seen.of_step(expected_s) * as_is + sum(reason.probability for reason in found)
    told = (
        replace(reason, probability=reason.probability / total)
        for reason in found if reason.explains >= SMALLEST_EXPLAINED
    )  # fmt: skip
    return tuple(sorted(told, key=lambda reason: -reason.probability))


def explained(measured_s: float, expected_s: float, under_s: float) -> float:
    """The share of the gap that is gone under a hypothesis, 0 where it is none."""
    gap = math.log(measured_s / expected_s)
    return max(0.0, 1 - abs(math.log(measured_s / under_s)) / gap) if gap > 0 else 0.0


def _switched(model: StepModel, seen: Seen) -> Iterator[Reason]:
    measured_s, expected_s = seen.step_time_s, model.time().step_time_s
    for switch in switches(model):
        if switch.stated and seen.by_execute:
            continue
        under_s = switch.model.time().step_time_s
        yield Reason(
            name=switch.name, evidence="priced by the cost model", step_time_s=under_s,
            explains=explained(measured_s, expected_s, under_s), try_this=switch.try_this,
            gain=1 - expected_s / under_s,
            probability=seen.of_step(under_s) * seen.of_memory(switch.model),
        )  # fmt: skip


def switches(model: StepModel) -> Iterator[Switch]:
    """What may be on or off otherwise than the config and the engine's habits say."""
    layout, training, kernels = model.layout, model.setting.training, model.setting.engine.kernels
    if layout.recompute != "full":
        yield Switch(
            "every layer recomputes its activations", "switch activation recompute off",
            StepModel(model.setting, recomputing(layout)), stated=True,
        )  # fmt: skip
    if kernels.attention != "unfused":
        yield Switch(
            "attention runs without a fused kernel", "install FlashAttention, or name the backend",
            _with_engine(model, "kernels", BEFORE_FLASH),
        )  # fmt: skip
    if kernels.fused_norm or kernels.fused_gated or kernels.fused_rope:
        yield Switch(
            "norms, activations and rotary embeddings run unfused", "compile, or use fused kernels",
            _with_engine(model, "kernels", NOT_COMPILED),
        )  # fmt: skip
    if layout.world_size > 1:
        yield Switch(
            "no communication overlaps compute", "switch the overlap of communication on",
            _with_engine(model, "overlap", {**NOT_HIDDEN, "tensor": 0.0, "expert": 0.0}),
        )  # fmt: skip
    if training.precision in ("fp8", "mxfp8", "nvfp4", "mxfp8_experts"):
        yield Switch(
            f"{training.precision} is off: products run in bf16", "check that the recipe is on",
            _with_setting(model, training=replace(training, precision="bf16")), stated=True,
        )  # fmt: skip
    if layout.micro_batch_size > 1:
        yield Switch(
            "micro-batches hold one sequence", "raise the micro-batch to the config's",
            StepModel(model.setting, replace(layout, micro_batch_size=1)), stated=True,
        )  # fmt: skip
    if model.setting.model.is_moe and layout.expert_parallel > 1:
        yield Switch(
            f"the busiest experts get {IMBALANCED} x the mean", "balance the router",
            _with_setting(model, training=replace(training, expert_imbalance=IMBALANCED)),
        )  # fmt: skip


def _with_engine(model: StepModel, part: str, update: Mapping[str, Any]) -> StepModel:
    engine = model.setting.engine
    changed = getattr(engine, part).model_copy(update=dict(update))
    return _with_setting(model, engine=engine.model_copy(update={part: changed}))


def _with_setting(model: StepModel, **update: Any) -> StepModel:
    return StepModel(replace(model.setting, **update), model.layout)


def _slowed(model: StepModel, seen: Seen, as_is: float) -> Iterator[Reason]:
    measured_s, expected_s = seen.step_time_s, model.time().step_time_s
    on_cores = model.setting.cluster.gpu.vendor == "cpu"
    slowed = (ON_CORES, *SLOWER[1:]) if on_cores else SLOWER
    for slower in (*slowed, *(SOCKETS,) * seen.over_sockets):
        seconds_at = partial(slower_s, model, slower)
        most = MOST ** (slower.unusual / UNUSUAL)
        factor, under_s = needed(seconds_at, measured_s, most)
        usual = math.exp(-((math.log(factor) / slower.unusual) ** 2) / 2)
        yield Reason(
            name=slower.name.format(factor=factor), evidence="priced by the cost model",
            step_time_s=under_s, explains=usual * explained(measured_s, expected_s, under_s),
            try_this=slower.try_this, gain=1 - expected_s / under_s,
            probability=seen.of_slower(seconds_at, slower.unusual) * as_is,
        )  # fmt: skip


def _waiting(expected_s: float, seen: Seen, as_is: float) -> Iterator[Reason]:
    """Something outside of what is priced, whatever it is."""
    measured_s = seen.step_time_s
    factor, under_s = needed(lambda factor: expected_s * factor, measured_s)
    usual = math.exp(-((math.log(factor) / UNUSUAL) ** 2) / 2)
    yield Reason(
        name=f"each step waits {format_seconds(under_s - expected_s)} for something not priced",
        evidence="priced by the cost model", step_time_s=under_s,
        explains=usual * explained(measured_s, expected_s, under_s),
        try_this="time the data loader alone; check logging; look for a slow rank",
        gain=1 - expected_s / under_s,
        probability=seen.of_slower(lambda factor: expected_s * factor) * as_is,
    )  # fmt: skip


def needed(
    seconds_at: Callable[[float], float], measured_s: float, most: float = MOST
) -> tuple[float, float]:
    """The factor up to `most` that closes the gap, and the step with it; seconds never fall with
    the factor.
    """
    low, high = 1.0, most
    if seconds_at(high) <= measured_s:
        return high, seconds_at(high)
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if seconds_at(middle) > measured_s else (middle, high)
    return low, seconds_at(low)


def slower_s(model: StepModel, slower: Slower, factor: float) -> float:
    if not slower.scales:
        return _with_setting(model, cluster=_slower_network(model, factor)).time().step_time_s
    tuning: Tuning = model.setting.tuning
    scaled = {name: getattr(tuning, name) * factor for name in slower.scales}
    setting: Setting = replace(model.setting, tuning=tuning.model_copy(update=scaled))
    return StepModel(setting, model.layout).time().step_time_s


def _slower_network(model: StepModel, factor: float) -> Cluster:
    cluster = model.setting.cluster
    usual = cluster.network.bus_bandwidth
    rates = {name: rate / factor for name, rate in usual.model_dump().items() if rate}
    network = cluster.network.model_copy(update={"bus_bandwidth": usual.model_copy(update=rates)})
    return cluster.model_copy(update={"network": network})


def _shown(steady: Steady, expected_s: float, seen: Seen, as_is: float) -> Iterator[Reason]:
    """What the step times themselves show: their spread and their drift."""
    measured_s = steady.step_time_s
    shown = (
        (
            steady.jitter, "steps vary: the usual one takes {:.1%} longer than the fastest tenth",
            "look for late data, a slow rank, other jobs on the hosts or the network",
        ),
        (
            steady.drift, "steps have become {:.1%} longer since the beginning",
            "check clocks and temperatures over time, and growing sequences or logs",
        ),
    )  # fmt: skip
    for share, name, try_this in shown:
        if share and share > SMALLEST_SEEN:
            without_s = measured_s / (1 + share)
            yield Reason(
                name=name.format(share), evidence="seen in the log",
                step_time_s=expected_s * (1 + share),
                explains=min(1.0, math.log(1 + share) / math.log(measured_s / expected_s)),
                try_this=try_this, gain=1 - without_s / measured_s,
                probability=seen.of_step(expected_s * (1 + share)) * as_is,
            )  # fmt: skip


SMALLEST_SEEN = 0.01
