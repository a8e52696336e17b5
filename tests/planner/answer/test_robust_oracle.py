"""`plan --robust` against an enumeration of its own, which shares the price of a layout alone."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.errors.figure_errors import figure_errors
from meshplan.planner.answer.answer import case_at, chosen_plan, simulated_s, solve
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.answer.question import Arguments, Asked, ask
from meshplan.planner.case.predict import stage_memory

MOST = 12  # layouts that are chosen from, as the guide says
ALIKE = 0.001  # losses that are not told apart
POWERS = (1, 2, 4, 8, 16, 32)
CONSTANTS = (
    "matmul_scale", "attention_scale", "pointwise_scale", "collective_scale", "launch_s",
)  # fmt: skip
HIDDEN = (
    "data_reduce", "weight_gather", "tensor", "pipeline", "context", "expert_interleaved",
)  # fmt: skip
ONE_STAGE = {
    "pipeline_parallel": "1", "recompute": "none", "expert_tensor_parallel": "1",
    "zero_stage": "..1",
}  # fmt: skip
DENSE = ONE_STAGE | {"context_kind": "ring"}
EXPERTS = ONE_STAGE | {"context_parallel": "1", "dispatcher": "all_to_all"}


def layouts_of(asked: Asked) -> Iterator[Layout]:
    """Every layout of one stage that recomputes nothing, fit or not."""
    q = asked.question
    sequences, experts = q.training.global_batch_size, q.model.is_moe
    for tp in (1, 2, 4, 8):
        for cp in POWERS[:1] if experts else POWERS:
            for ep in POWERS if experts else POWERS[:1]:
                dp = q.gpus // (tp * cp)
                if not dp or sequences % dp or dp * cp * tp % ep or tp > q.cluster.gpus_per_node:
                    continue
                for mbs in (each for each in POWERS if sequences // dp % each == 0):
                    yield from _with_zero(len(q.model.pattern), dp, tp, cp, ep, mbs)


def _with_zero(layers: int, dp: int, tp: int, cp: int, ep: int, mbs: int) -> Iterator[Layout]:
    for zero in (0, 1) if dp * cp > 1 else (0,):
        yield Layout(
            data_parallel=dp, tensor_parallel=tp, context_parallel=cp, expert_parallel=ep,
            context_kind="ring" if cp > 1 else "", dispatcher="all_to_all" if ep > 1 else "",
            sequence_parallel=tp > 1, micro_batch_size=mbs, zero_stage=zero,
            stages=(Stage(layers),),
        )  # fmt: skip


def best_of_each_kind(asked: Asked) -> list[Layout]:
    """The fastest that fits of each choice of degrees, the fastest first."""
    best: dict[tuple[int, ...], tuple[float, Layout]] = {}
    for layout in layouts_of(asked):
        la, step_s = layout, simulated_s(case_at(asked.question, layout))
        kind = la.tensor_parallel, la.context_parallel, la.pipeline_parallel, la.expert_parallel
        if step_s < best.get(kind, (math.inf, la))[0]:
            best[kind] = step_s, layout
    return [layout for _, layout in sorted(best.values(), key=lambda found: found[0])]


def moved(asked: Asked) -> Iterator[Setting]:
    """The figures as they are; each constant a deviation up and down; all that is hidden too."""
    errors, setting = figure_errors(), asked.question.setting
    fitted = Setting.fitted(setting.model, setting.training, setting.cluster, setting.engine)
    yield fitted
    for name in CONSTANTS:
        for factor in (math.exp(errors[name]), math.exp(-errors[name])):
            own = {name: getattr(fitted.tuning, name) * factor}
            yield replace(fitted, tuning=fitted.tuning.model_copy(update=own))
    overlap = setting.engine.overlap
    for sign in (-1, 1):
        own = {name: getattr(overlap, name) + sign * errors[name] for name in HIDDEN}
        own = {name: min(max(each, 0.0), 1.0) for name, each in own.items()
               if getattr(overlap, name)}  # fmt: skip
        engine = setting.engine.model_copy(update={"overlap": overlap.model_copy(update=own)})
        yield replace(fitted, engine=engine)


def worst_of_each(asked: Asked, layouts: list[Layout]) -> list[float]:
    """What each loses at most to the best of all, whichever figure is moved."""
    worst = [0.0] * len(layouts)
    for setting in moved(asked):
        steps = [StepModel(setting, layout).time().step_time_s for layout in layouts]
        worst = [max(w, s / min(steps) - 1) for w, s in zip(worst, steps, strict=True)]
    return worst


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "gpus", "seq_len", "pins", "chosen"),
    [
        pytest.param("olmoe-7b-a1b", 8, "4096", EXPERTS, 0, id="experts"),
        pytest.param("llama-3.1-8b", 16, "16384", DENSE, 0, id="long sequences"),
        pytest.param("qwen2.5-14b", 8, "4096", DENSE, 0, id="few fit"),
        pytest.param("llama-3.1-8b", 8, "3072", DENSE, 1, id="not the fastest"),
    ],
)
def test_robust_is_the_smallest_worst_loss(
    model: str, gpus: int, seq_len: str, pins: dict[str, str], chosen: int
) -> None:
    """Of the best of each kind, up to twelve; of those alike the one that needs least memory."""
    asked = ask(Arguments(model=model, gpus=gpus, cluster="dgx-h100", engine="megatron",
                          global_batch=gpus, seq_len=seq_len, pins=pins))  # fmt: skip
    layouts = best_of_each_kind(asked)[:MOST]
    worst = worst_of_each(asked, layouts)
    memory = [
        needed_bytes(stage_memory(StepModel(asked.question.setting, layout))) for layout in layouts
    ]
    alike = [at for at in range(len(layouts)) if worst[at] <= min(worst) + ALIKE]
    best = min(alike, key=lambda at: memory[at])
    plan = chosen_plan(asked, solve(asked.question, MOST), robust=True).plan
    assert best == chosen
    assert plan.choice is not None
    assert plan.choice.candidates == len(layouts)
    assert plan.layout.label == layouts[best].label
    assert plan.choice.worst_loss_fraction == pytest.approx(worst[best], abs=1e-6)
    assert plan.choice.fastest == layouts[0].full_label
