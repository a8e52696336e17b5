"""Small models of every family, and random layouts of them that obey every rule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

from meshplan.costmodels.layout import (
    CONTEXT_KINDS,
    DISPATCHERS,
    SCHEDULES,
    VIRTUAL_STAGES,
    Layout,
    Schedule,
    Stage,
)
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.model.transformer import (
    Attention,
    Experts,
    Layer,
    Model,
    Product,
    Tower,
)
from meshplan.costmodels.operations.rank_share import stated
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Images, Lora, Training
from meshplan.hardware_profiles.engine_schema import Legality
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning

HEADS = Attention(heads=16, kv_heads=4, head_dim=64, v_head_dim=64)
LATENT = Attention(
    heads=16, kv_heads=16, head_dim=96, v_head_dim=64, q_lora_rank=256, kv_lora_rank=128,
    rope_head_dim=32,
)  # fmt: skip
EXPERTS = Experts(experts=16, top_k=2, ffn=512, shared_ffn=512)
NEAR = replace(HEADS, window=1000, sinks=True)
DENSE, MOE = Layer(attention=HEADS, ffn=2816), Layer(attention=HEADS, experts=EXPERTS)
SEEN = Attention(
    heads=8, kv_heads=8, head_dim=32, v_head_dim=32, qkv_bias=True, out_bias=True, causal=False
)
TOWER = Tower(
    layers=Model(
        name="tower", hidden=256, vocab=0, kinds=(Layer(attention=SEEN, ffn=1024),),
        pattern=(0,) * 4, gated=False, norm="layernorm", bias=True, final_norm=False,
    ),
    products=(
        Product(name="patch_embedding", k=588, n=256, bias=True),
        Product(name="joiner_0", k=1024, n=1024, merged=4, bias=True, activated=True, joins=True,
                cut="columns"),
        Product(name="joiner_1", k=1024, n=1024, merged=4, bias=True, joins=True, cut="rows"),
    ),
    merged=4, numbers=1000,
)  # fmt: skip
MODELS = {
    "dense": Model(name="dense", hidden=1024, vocab=32000, kinds=(DENSE,), pattern=(0,) * 8),
    "tied": Model(
        name="tied", hidden=1024, vocab=50257, kinds=(DENSE,), pattern=(0,) * 8, gated=False,
        norm="layernorm", bias=True, tied=True, learned_positions=2048,
    ),
    "moe": Model(
        name="moe", hidden=1024, vocab=32000, kinds=(DENSE, MOE), pattern=(0, *(1,) * 7)
    ),
    "windowed": Model(
        name="windowed", hidden=1024, vocab=32000, pattern=(0, 1) * 4,
        kinds=(DENSE, Layer(attention=NEAR, experts=replace(EXPERTS, shared_ffn=0))),
    ),
    "seeing": Model(
        name="seeing", hidden=1024, vocab=32000, kinds=(DENSE,), pattern=(0,) * 8, tower=TOWER
    ),
    "latent": Model(
        name="latent", hidden=1024, vocab=32000, mtp_layers=1, pattern=(0, 1) * 4,
        kinds=(Layer(attention=LATENT, ffn=2816), Layer(attention=LATENT, experts=EXPERTS)),
    ),
}  # fmt: skip
CHUNKED: tuple[Schedule, ...] = ("interleaved_1f1b", "zb_v", "dualpipe_v")
PIPELINED = tuple(n for n in engine_names() if load_engine(n).legality.zero_with_pipeline)
CLUSTERS = {name: load_cluster(name) for name in ("dgx-h100", "workstation-4x4090", "mi300x-8")}
TUNING = Tuning(
    launch_s=4e-6,
    micro_batch_s=1e-3,
    boundary_s=1e-4,
    step_s=5e-3,
    pipelined_rank_s=1e-6,
    state_slack_fraction=0.02,
    activation_slack_fraction=0.1,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One layout in its setting, and the grid of that one row."""

    setting: Setting
    layout: Layout
    layouts: Layouts

    @property
    def step(self) -> StepModel:
        """The layout priced on its own."""
        return StepModel(self.setting, self.layout)


def layouts_of(layout: Layout, training: Training) -> Layouts:
    """A grid with the one row of `layout`."""
    replicas = layout.data_parallel * layout.context_parallel
    columns = {
        "data_parallel": layout.data_parallel,
        "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel,
        "virtual_stages": layout.virtual_stages,
        "context_parallel": layout.context_parallel,
        "expert_parallel": layout.expert_parallel,
        "expert_tensor_parallel": layout.expert_tensor_parallel,
        "sequence_parallel": int(layout.sequence_parallel),
        "zero_stage": layout.zero_stage,
        "shard_group": layout.shard_group or replicas if layout.zero_stage else 1,
        "micro_batch_size": layout.micro_batch_size,
        "schedule": SCHEDULES.index(layout.schedule),
        "context_kind": int(stated(layout.context_kind, CONTEXT_KINDS)),
        "dispatcher": int(stated(layout.dispatcher, DISPATCHERS)),
        "num_micro_batches": layout.num_micro_batches(training),
    }
    fractions = {
        "optimizer_offload": np.array([layout.optimizer_offload]),
        "activation_offload": np.array([layout.activation_offload]),
    }
    return Layouts(
        **{name: np.array([value], np.int64) for name, value in columns.items()}, **fractions
    )


def cut(layers: int, parts: int, draw: st.DrawFn) -> tuple[int, ...]:
    """`layers` cut into `parts`, each of at least one."""
    cuts = draw(
        st.lists(st.integers(1, layers - 1), min_size=parts - 1, max_size=parts - 1, unique=True)
    )
    ends = [0, *sorted(cuts), layers]
    return tuple(b - a for a, b in pairwise(ends))


@st.composite
def pipelines(draw: st.DrawFn, rules: Legality, *, plain: bool) -> tuple[Schedule, int, int]:
    """A schedule that `rules` have, chunks per rank and micro-batches; `plain`: only 1F1B."""
    names = [name for name in rules.schedules if name == "1f1b" or not plain]
    schedule = draw(st.sampled_from(names))
    vpp = VIRTUAL_STAGES.get(schedule) or draw(st.sampled_from((2, 2, 3)))
    return (
        schedule,
        vpp,
        draw(st.sampled_from((8, 16) if schedule in CHUNKED else (1, 2, 7, 8, 40))),
    )


@st.composite
def adapters(draw: st.DrawFn, rules: Legality) -> Lora:
    """LoRA of any kind that an engine has."""
    return Lora(
        rank=draw(st.sampled_from((1, 16, 256))),
        targets=draw(st.sampled_from(rules.lora_targets)),
        base_precision=draw(st.sampled_from(("bf16", *rules.quantised_bases))),
    )


@st.composite
def seen(draw: st.DrawFn) -> Images:
    """A few images in each sequence, whose tower is trained or frozen."""
    return Images(tokens=256, number=draw(st.sampled_from((1, 4))), frozen=draw(st.booleans()))


@st.composite
def random_case(
    draw: st.DrawFn,
    *,
    pipelined: bool | None = None,
    uniform: bool = False,
    plain: bool = False,
    engine: str | None = None,
) -> Case:
    """A layout of one of `MODELS` under `engine` or any; `uniform`: all layers recompute alike;
    `plain`: one chunk per rank.
    """
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    named = load_engine(engine or draw(st.sampled_from(PIPELINED if pipelined else engine_names())))
    cluster = draw(st.sampled_from(list(CLUSTERS.values())))
    rules = named.legality
    ranks = {None: (1, 2, 4), True: (2, 4), False: (1,)}[pipelined]
    ranks = ranks if rules.zero_with_pipeline else (1,)
    pp = draw(st.sampled_from(ranks))
    tp = draw(st.sampled_from((1, 2, 4)))
    cp = draw(st.sampled_from((1, 2))) if rules.context_parallel else 1
    dp = draw(st.sampled_from((1, 2, 8, 64)))
    ep, etp = 1, 1
    if model.is_moe:
        degrees = [d for d in (1, 2, 4, 8) if dp * cp * tp % d == 0]
        ep = draw(st.sampled_from(degrees)) if rules.expert_parallel else 1
        split = rules.expert_tensor_parallel and dp * cp * tp % (2 * ep) == 0 and tp > 1
        etp = draw(st.sampled_from((1, 2))) if split else 1
    zero = draw(st.sampled_from(rules.zero_with_pipeline if pp > 1 else rules.zero_stages))
    mbs = draw(st.sampled_from((1, 2)))
    schedule, vpp, m = draw(pipelines(rules, plain=plain or pp == 1))
    vpp = vpp if pp * vpp <= model.num_layers else 2
    counts = cut(model.num_layers, pp * vpp, draw)
    modes = (
        [draw(st.integers(0, 2))] * (pp * vpp)
        if uniform
        else [draw(st.integers(0, 2)) for _ in counts]
    )
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, context_parallel=cp,
        expert_parallel=ep, expert_tensor_parallel=etp, zero_stage=zero, micro_batch_size=mbs,
        virtual_stages=vpp, schedule=schedule,
        sequence_parallel=tp > 1 and rules.sequence_parallel != "never",
        shard_group=dp * cp // 2 if zero and rules.hybrid_shard and dp > 1 else 0,
        stages=tuple(Stage(n, n if mode == 1 else 0, n if mode == 2 else 0)
                     for n, mode in zip(counts, modes, strict=True)),
    )  # fmt: skip
    waits = {"never": False, "any": True, "plain": pp == 1 and not any(modes)}
    layout = replace(
        layout,
        optimizer_offload=draw(st.sampled_from((0.0, 0.5, 1.0)))
        * (rules.optimizer_offload and (zero > 0 or dp * cp == 1)),
        activation_offload=draw(st.sampled_from((0.0, 0.25, 1.0)))
        * waits[rules.activation_offload],
    )  # fmt: skip
    training = Training(
        seq_len=draw(st.sampled_from((512, 4096))),
        global_batch_size=dp * mbs * m,
        precision=draw(st.sampled_from(("bf16", "fp8"))),
        expert_imbalance=draw(st.sampled_from((1.0, 1.3))) if model.is_moe else 1.0,
        lora=draw(adapters(rules)) if rules.lora_targets and draw(st.integers(0, 2)) == 2 else None,
        images=draw(seen()) if model.tower else None,
    )
    setting = Setting(model, training, cluster, named, TUNING)
    modules = draw(st.sampled_from(recompute_sets(setting)))
    layout = replace(layout, selective_modules=modules)
    return Case(setting, layout, layouts_of(layout, training))


@pytest.fixture(scope="session")
def cases() -> Callable[..., st.SearchStrategy[Case]]:
    """`random_case(pipelined=None | True | False, uniform, plain, engine)`."""
    return random_case


@pytest.fixture(scope="session")
def case_of() -> Callable[[Setting, Layout], Case]:
    """A layout in a setting as a case."""
    return lambda setting, layout: Case(setting, layout, layouts_of(layout, setting.training))


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """One small model of each family."""
    return MODELS
