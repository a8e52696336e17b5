"""Random legal plans, and what must survive a trip through a framework's format."""

import random
from dataclasses import dataclass, fields, replace
from functools import cache

from meshplan.costmodels.layout import (
    CONTEXT_KINDS,
    DISPATCHERS,
    InvalidLayout,
    Layout,
    RecomputeModule,
    Schedule,
    Stage,
    check_layout,
    even_stages,
)
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Optimizer, Precision, Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.settings import Settings
from meshplan.planner.space.engine_rules import check_engine

CHUNKED: dict[Schedule, tuple[int, ...]] = {
    "1f1b": (1,),
    "gpipe": (1,),
    "interleaved_1f1b": (2, 3, 4),
    "zb_h1": (1,),
    "zb_v": (2,),
    "dualpipe_v": (2,),
}
MODULES: tuple[RecomputeModule, ...] = ("core_attention", "layernorm", "mlp")
CLUSTER = "dgx-h100"
ENGINES = {name: load_engine(name) for name in engine_names()}


@dataclass(frozen=True)
class Habits:
    """What half of the random layouts keep to, so that a format can say them whole."""

    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
    schedules: tuple[Schedule, ...] = ("1f1b",)
    zero_stages: tuple[int, ...] = (0, 1)
    recompute: tuple[str, ...] = ("none", "full")
    precisions: tuple[Precision, ...] = ("bf16",)
    context: bool = True
    sequence_parallel: bool = True
    even: bool = True


ANYTHING = Habits(
    models=(
        *("llama-3.1-70b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b"),
        *("deepseek-v3", "gpt3-13b", "gemma-2-9b", "gpt-neox-20b", "gpt-oss-20b"),
        *("deepseek-v2-lite", "gemma-3-12b", "llama-4-scout", "qwen2-57b-a14b", "olmo-2-7b"),
    ),
    schedules=tuple(CHUNKED),
    zero_stages=(0, 1, 2, 3),
    recompute=("none", "selective", "full", "block", "mixed"),
    precisions=("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
    even=False,
)


@cache
def model_named(name: str) -> Model:
    """A built-in model."""
    return model_from_config(load_model_config(name), name)


def random_plan(rng: random.Random, habits: Habits) -> Plan:
    """A plan whose layout obeys `check_layout`, within `habits`, for one of the engines that run
    it."""
    while True:
        plan = _random_plan(rng, habits)
        model = model_named(plan.model.name)
        running = [each for each in ENGINES.values() if _runs(each, plan, model)]
        if running:
            return plan.model_copy(update={"engine": rng.choice(running).name})


def _runs(engine: Engine, plan: Plan, model: Model) -> bool:
    """Whether `engine` can run the layout; what its profile does not price may stand."""
    try:
        check_engine(plan.layout, model, plan.training, engine)
    except InvalidLayout:
        return False
    return True


def _random_plan(rng: random.Random, habits: Habits) -> Plan:
    name = rng.choice(habits.models)
    model = model_named(name)
    wild = habits is ANYTHING
    tp = rng.choice([d for d in (1, 2, 4, 8) if _divides(model, d)])
    schedule = rng.choice(habits.schedules)
    pp = rng.choice([1, 2, 4]) if habits.schedules != ("1f1b",) or wild else rng.choice([1, 2])
    schedule = "1f1b" if pp == 1 else schedule
    vpp = rng.choice(CHUNKED[schedule])
    cp = rng.choice([1, 2]) if habits.context else 1
    dp = rng.choice([1, 2, 4, 8, 6])
    ep = rng.choice([e for e in (1, 2, 4, 8) if model.is_moe and model.num_experts % e == 0] or [1])
    etp = rng.choice([1, tp]) if model.is_moe else 1
    if (dp * cp * tp) % (ep * etp):
        ep, etp = 1, 1
    zero = rng.choice(habits.zero_stages)
    groups = [g for g in (2, 4, 8) if (dp * cp) % g == 0 and g < dp * cp]
    layout = Layout(
        data_parallel=dp,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        virtual_stages=vpp,
        context_parallel=cp,
        expert_parallel=ep,
        expert_tensor_parallel=etp,
        sequence_parallel=tp > 1 and (habits.sequence_parallel if not wild else rng.random() < 0.5),
        zero_stage=zero,
        shard_group=rng.choice([0, *groups]) if wild and zero else 0,
        micro_batch_size=rng.choice([1, 2, 4]),
        schedule=schedule,
        stages=_stages(rng, model, pp * vpp, habits),
        optimizer_offload=wild and rng.random() < 0.1,
        activation_offload=wild and rng.random() < 0.1,
    )
    layout = replace(
        layout,
        context_kind=rng.choice(["", *CONTEXT_KINDS]) if cp > 1 else "",
        dispatcher=rng.choice(["", *DISPATCHERS]) if ep > 1 else "",
    )
    if any(stage.selective_layers for stage in layout.stages):
        layout = replace(layout, selective_modules=rng.choice([MODULES[:1], MODULES[1:]]))
    training = Training(
        seq_len=rng.choice([2048, 4096, 8192]),
        global_batch_size=dp * layout.micro_batch_size * 2 * pp * rng.choice([1, 2, 3]),
        precision=rng.choice(habits.precisions),
        optimizer=rng.choice(_optimizers(wild)),
        expert_imbalance=rng.choice([1.0, 1.25]) if wild and model.is_moe else 1.0,
    )
    check_layout(layout, model, training)
    return plan_of(name, layout, training)


def _optimizers(wild: bool) -> tuple[Optimizer, ...]:
    return ("adamw", "adamw", "sgd", "muon", "adamw8bit") if wild else ("adamw",)


def _divides(model: Model, tp: int) -> bool:
    widths = [kind.attention.heads for kind in model.kinds]
    widths += [kind.attention.kv_heads for kind in model.kinds]
    widths += [kind.ffn for kind in model.kinds if kind.ffn]
    widths += [kind.experts.ffn for kind in model.kinds if kind.experts]
    return all(width % tp == 0 for width in widths)


def _stages(rng: random.Random, model: Model, count: int, habits: Habits) -> tuple[Stage, ...]:
    counts = [stage.layers for stage in even_stages(model.num_layers, count)]
    if not habits.even and rng.random() < 0.5 and count > 1 and counts[0] > 1:
        counts[0], counts[-1] = counts[0] - 1, counts[-1] + 1
    mode = rng.choice(habits.recompute)
    first = rng.randint(1, max(counts))
    picks = {
        "none": lambda n: Stage(n),
        "selective": lambda n: Stage(n, selective_layers=n),
        "full": lambda n: Stage(n, full_layers=n),
        "block": lambda n: Stage(n, full_layers=min(first, n)),
        "mixed": lambda n: Stage(n, n // 2, rng.randint(0, n - n // 2)),
    }
    return tuple(picks[mode](n) for n in counts)


def plan_of(name: str, layout: Layout, training: Training) -> Plan:
    """A plan file's content for `layout`, without a prediction."""
    return Plan(
        model=PlanModel.of(name, load_model_config(name)),
        cluster=PlanCluster(name=CLUSTER, gpus=layout.world_size, sha256="0" * 16),
        training=training,
        engine="megatron",
        layout=layout,
    )


def missing_facts(plan: Plan, exported: Exported) -> Settings:
    """What the format could not say, said as flags would; GPUs only if the file has none."""
    unsaid = {each.name for each in exported.cannot_say}
    training = plan.training
    return Settings(
        cluster=CLUSTER,
        gpus=_gpus(plan, exported),
        model=plan.model.name if exported.framework not in ("megatron", "nanotron") else None,
        seq_len=training.seq_len if "training.seq_len" in unsaid else None,
        global_batch_size=training.global_batch_size
        if "training.global_batch_size" in unsaid
        else None,
        micro_batch_size=plan.layout.micro_batch_size
        if "layout.micro_batch_size" in unsaid
        else None,
    )


def _gpus(plan: Plan, exported: Exported) -> int | None:
    """Bridge never states them; DeepSpeed's batch does, unless there is tensor parallelism."""
    if exported.framework == "bridge":
        return plan.cluster.gpus
    la = plan.layout
    if exported.framework == "deepspeed" and la.tensor_parallel > 1:
        return la.data_parallel * la.tensor_parallel  # it has neither pipeline nor context
    return None


def differences(layout: Layout, training: Training, back: Case, exported: Exported) -> list[str]:
    """Fields that changed although the format claims to say them."""
    unsaid = {each.name for each in exported.cannot_say}
    pairs = [("layout", layout, back.layout), ("training", training, back.training)]
    found = []
    for prefix, before, after in pairs:
        for field in fields(before):
            name = f"{prefix}.{field.name}"
            old, new = getattr(before, field.name), getattr(after, field.name)
            if name == "layout.stages" and "layout.stages.recompute" in unsaid:
                old, new = [s.layers for s in old], [s.layers for s in new]
            open_kind = field.name in ("context_kind", "dispatcher") and not old
            if name not in unsaid and old != new and not open_kind:
                found.append(f"{name}: {old} became {new}")
    return found
