"""Why a run is slower than expected: hypotheses, each priced by the cost model or read off the log.

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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.logs.steady import Steady
from meshplan.planner.runs.habits import BEFORE_FLASH, NOT_COMPILED, NOT_HIDDEN
from meshplan.planner.runs.memory import recomputing

MOST, UNUSUAL, HALVINGS = 8.0, math.log(1.6), 20
SMALLEST_EXPLAINED, IMBALANCED = 0.05, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One hypothesis. `step_time_s`: the step if it holds alone; `try_this`: what to do."""

    name: str
    evidence: Literal["priced by the cost model", "seen in the log"]
    step_time_s: float
    explains: float
    try_this: str
    gain: float


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that may differ from what the config says, and the cost model with it changed."""

    name: str
    try_this: str
    model: StepModel


@dataclass(frozen=True, slots=True)
class Slower:
    """Hardware that may be slower than the profile says: the constants to multiply."""

    name: str
    try_this: str
    scales: tuple[str, ...]


KERNELS = ("matmul_scale", "attention_scale", "pointwise_scale")
SLOWER = (
    Slower(
        "the GPUs compute {factor:.2f} x as long",
        "look at clocks, power caps and temperatures (nvidia-smi -q -d PERFORMANCE)", KERNELS,
    ),
    Slower(
        "collectives take {factor:.2f} x as long",
        "measure the links: `meshplan profile`, nccl-tests; look for a card or rail that is down",
        ("collective_scale",),
    ),
    Slower(
        "the host needs {factor:.2f} x as long for kernels and micro-batches",
        "look at CPU load, data loading in the training process, logging; larger micro-batches",
        ("launch_s", "micro_batch_s", "step_s", "routing_s"),
    ),
)  # fmt: skip


def reasons(model: StepModel, measured_s: float, steady: Steady) -> tuple[Reason, ...]:
    """What would explain a measured step longer than expected, best first; nothing for a shorter
    one.
    """
    expected_s = model.time().step_time_s
    if measured_s <= expected_s:
        return ()
    found = [*_switched(model, measured_s), *_slowed(model, measured_s), *_seen(steady, expected_s)]
    told = [reason for reason in found if reason.explains >= SMALLEST_EXPLAINED]
    return tuple(sorted(told, key=lambda reason: -reason.explains))


def explained(measured_s: float, expected_s: float, under_s: float) -> float:
    """The share of the gap that is gone under a hypothesis, 0 where it is none."""
    gap = math.log(measured_s / expected_s)
    return max(0.0, 1 - abs(math.log(measured_s / under_s)) / gap) if gap > 0 else 0.0


def _switched(model: StepModel, measured_s: float) -> Iterator[Reason]:
    expected_s = model.time().step_time_s
    for switch in switches(model):
        under_s = switch.model.time().step_time_s
        yield Reason(
            name=switch.name, evidence="priced by the cost model", step_time_s=under_s,
            explains=explained(measured_s, expected_s, under_s), try_this=switch.try_this,
            gain=1 - expected_s / under_s,
        )  # fmt: skip


def switches(model: StepModel) -> Iterator[Switch]:
    """What may be on or off otherwise than the config and the engine's habits say."""
    layout, training, kernels = model.layout, model.setting.training, model.setting.engine.kernels
    if layout.recompute != "full":
        yield Switch(
            "every layer recomputes its activations", "switch activation recompute off",
            StepModel(model.setting, recomputing(layout)),
        )  # fmt: skip
    if kernels.attention != "unfused":
        yield Switch(
            "attention runs without a fused kernel", "install FlashAttention, or name the backend",
            _with_engine(model, "kernels", BEFORE_FLASH),
        )  # fmt: skip
    if kernels.fused_norm or kernels.fused_gated or kernels.fused_rope:
        yield Switch(
            "norms, activations and rotary embeddings run unfused", "compile, or fused kernels",
            _with_engine(model, "kernels", NOT_COMPILED),
        )  # fmt: skip
    if layout.world_size > 1:
        yield Switch(
            "no communication runs beside computing", "switch the overlap of communication on",
            _with_engine(model, "overlap", {**NOT_HIDDEN, "tensor": 0.0, "expert": 0.0}),
        )  # fmt: skip
    if training.precision in ("fp8", "mxfp8", "nvfp4"):
        yield Switch(
            f"{training.precision} is off: products run in bf16", "look whether the recipe is on",
            _with_setting(model, training=replace(training, precision="bf16")),
        )  # fmt: skip
    if layout.micro_batch_size > 1:
        yield Switch(
            "micro-batches hold one sequence", "raise the micro-batch to the config's",
            StepModel(model.setting, replace(layout, micro_batch_size=1)),
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


def _slowed(model: StepModel, measured_s: float) -> Iterator[Reason]:
    expected_s = model.time().step_time_s
    for slower in SLOWER:
        factor, under_s = needed(partial(_slower_s, model, slower), measured_s)
        usual = math.exp(-((math.log(factor) / UNUSUAL) ** 2) / 2)
        yield Reason(
            name=slower.name.format(factor=factor), evidence="priced by the cost model",
            step_time_s=under_s, explains=usual * explained(measured_s, expected_s, under_s),
            try_this=slower.try_this, gain=1 - expected_s / under_s,
        )  # fmt: skip


def needed(seconds_at: Callable[[float], float], measured_s: float) -> tuple[float, float]:
    """The factor up to `MOST` that closes the gap, and the step with it; seconds never fall with
    the factor.
    """
    low, high = 1.0, MOST
    if seconds_at(high) <= measured_s:
        return high, seconds_at(high)
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if seconds_at(middle) > measured_s else (middle, high)
    return low, seconds_at(low)


def _slower_s(model: StepModel, slower: Slower, factor: float) -> float:
    tuning: Tuning = model.setting.tuning
    scaled = {name: getattr(tuning, name) * factor for name in slower.scales}
    setting: Setting = replace(model.setting, tuning=tuning.model_copy(update=scaled))
    return StepModel(setting, model.layout).time().step_time_s


def _seen(steady: Steady, expected_s: float) -> Iterator[Reason]:
    """What the step times themselves show: their spread and their drift."""
    measured_s = steady.step_time_s
    seen = (
        (
            steady.jitter, "steps vary: the usual one takes {:.1%} longer than the fastest tenth",
            "look for late data, a straggling rank, other jobs on the hosts or the network",
        ),
        (
            steady.drift, "steps have become {:.1%} longer since the beginning",
            "look at clocks and temperatures over time, and at growing sequences or logs",
        ),
    )  # fmt: skip
    for share, name, try_this in seen:
        if share and share > SMALLEST_SEEN:
            without_s = measured_s / (1 + share)
            yield Reason(
                name=name.format(share), evidence="seen in the log",
                step_time_s=expected_s * (1 + share),
                explains=min(1.0, math.log(1 + share) / math.log(measured_s / expected_s)),
                try_this=try_this, gain=1 - without_s / measured_s,
            )  # fmt: skip


SMALLEST_SEEN = 0.01
