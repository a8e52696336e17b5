"""Random but consistent prices: what the search is tested on, whatever the cost model says."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from compositions import compositions, mixes
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.prices.prices import Prices
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.stage_problem import End, StageProblem
from meshplan.planner.search.rows.priced_space import Pricer, Question

ATTENTION = Attention(heads=8, kv_heads=4, head_dim=16, v_head_dim=16)
DENSE = Layer(attention=ATTENTION, ffn=256)
MOE = Layer(attention=ATTENTION, experts=Experts(experts=4, top_k=2, ffn=64))
WIDE = Layer(attention=ATTENTION, ffn=512)


def synthetic_pricer(seed: int, capacity_bytes: float, kinds: int) -> Pricer:
    """Prices drawn from `seed`: they scale as one expects, with noise that every row draws
    alike.
    """

    def price(layouts: Layouts, question: Question) -> Prices:
        rng = np.random.default_rng(seed)
        tp, cp, mbs = (layouts.tensor_parallel, layouts.context_parallel, layouts.micro_batch_size)
        ep, zero, pp = layouts.expert_parallel, layouts.zero_stage, layouts.pipeline_parallel
        noise = 1 + 0.3 * np.sin(rng.uniform(1, 9) * (tp + 3 * cp + 7 * mbs + 5 * ep + 11 * zero))
        share = noise * mbs / (tp * cp) * (1 + 0.1 * layouts.activation_offload)
        share = share * (1 - 0.25 * (layouts.virtual_stages > 1))
        away = 1 - 0.4 * layouts.optimizer_offload  # of the states stays on the device
        base_s = rng.uniform(1e-3, 5e-3, kinds)
        extra = np.stack([np.zeros(kinds), rng.uniform(0.02, 0.2, kinds),
                          rng.uniform(0.2, 0.4, kinds)], axis=1)  # fmt: skip
        kept = np.stack([np.ones(kinds), rng.uniform(0.4, 0.9, kinds),
                         rng.uniform(0.05, 0.3, kinds)], axis=1)  # fmt: skip
        saved = rng.uniform(2e6, 8e6, kinds)
        state = rng.uniform(2e6, 9e6, kinds)[None] * (1 - 0.2 * zero / 3)[:, None] / tp[:, None]
        step = rng.uniform(1e-4, 2e-3, kinds)[None] * np.where(zero > 1, 1.3, 1.0)[:, None]
        ends, update = rng.uniform(0.2, 1.5, 8), rng.uniform(0, 2)
        forward, input_grad, weight_grad = rng.uniform(1e-3, 1e-2, 3)
        return Prices(
            layer_s=share[:, None, None] * base_s[None, :, None] * (1 + extra)[None],
            layer_saved_bytes=(share * (1 - 0.7 * layouts.activation_offload))[:, None, None]
            * (saved[:, None] * kept)[None],
            layer_state_bytes=state * away[:, None],
            layer_update_bytes=state * np.where(zero == 1, update, 0.0)[:, None],
            layer_deferred_bytes=share[:, None] * saved[None] * 1.2,
            layer_waiting_bytes=state * np.where(zero > 1, 0.2, 0.0)[:, None],
            put_off_bytes=share * 1e5,
            layer_step_s=step / tp[:, None] / away[:, None],
            transient_bytes=share[:, None] * rng.uniform(0, 4e6, 3)[None],
            embedding_s=share * ends[0] * 1e-3,
            embedding_saved_bytes=share * ends[1] * 1e6,
            embedding_state_bytes=ends[2] * 5e6 / tp,
            embedding_update_bytes=ends[2] * 5e6 / tp * update,
            embedding_step_s=ends[3] * 1e-3 / tp,
            head_s=share * ends[4] * 3e-3,
            head_saved_bytes=share * ends[5] * 1e6,
            head_state_bytes=ends[6] * 5e6 / tp,
            head_update_bytes=ends[6] * 5e6 / tp * update,
            head_step_s=ends[7] * 1e-3 / tp,
            head_transient_bytes=share * rng.uniform(0, 6e6),
            send_s=np.where(pp > 1, share * 2e-4, 0.0),
            forward_s=share * forward,
            input_grad_s=share * input_grad,
            weight_grad_s=share * weight_grad,
            fixed_bytes=np.full(len(layouts), 1e6),
            fixed_step_s=np.full(len(layouts), 1e-3),
            capacity_bytes=capacity_bytes,
        )

    return price


def small_question(
    pattern: tuple[int, ...],
    gpus: int,
    batch: int,
    *,
    named: str = "native",
    gpus_per_node: int = 8,
    **legality: object,
) -> Question:
    """A question about a model of tiny layers: kind 0 dense, 1 mixture of experts, 2 dense and
    wider.
    """
    kinds = (DENSE, MOE, WIDE)[: max(pattern) + 1]
    engine = load_engine(named)
    # Made-up prices know one way to recompute selectively.
    one_set = {"recompute_modules": (), "recompute_policy": False}
    rules = engine.legality.model_copy(update=one_set | legality)
    return Question(
        model=Model(name="small", hidden=128, vocab=512, kinds=kinds, pattern=pattern),
        training=Training(seq_len=64, global_batch_size=batch),
        gpus=gpus,
        cluster=load_cluster("dgx-h100").model_copy(update={"gpus_per_node": gpus_per_node}),
        engine=engine.model_copy(update={"legality": rules}),
    )


def every_plan(problem: StageProblem) -> Iterator[tuple[Stage, ...]]:
    """All cuts into stages with all mixes of recomputation."""
    fewest = [problem.fewest_layers(j) for j in range(problem.chunks)]
    ways = problem.splits
    for counts in compositions(len(problem.pattern), fewest) if ways is None else ways:
        for stages in itertools.product(*(mixes(n, problem.modes) for n in counts)):
            full = {stage.full_layers for stage in stages if stage.full_layers < stage.layers}
            most = max(stage.full_layers for stage in stages)
            if not problem.first or full <= {most}:
                yield stages


def random_problem(seed: int, vpp: int, **fixed: object) -> StageProblem:
    """A small inner problem: one or two kinds, tight or loose memory."""
    draw = random.Random(seed)
    pp, kinds = draw.randint(2, 3), draw.choice([1, 1, 2])
    layers = draw.randint(pp * vpp, pp * vpp + 3)
    fill = {1: ["1f1b", "gpipe", "zb_h1"], 2: ["interleaved_1f1b", "zb_v"]}[vpp]
    base = [draw.randint(500, 3000) for _ in range(kinds)]
    saved = [draw.randint(200, 900) for _ in range(kinds)]
    settings: dict[str, Any] = {
        "pattern": tuple(range(kinds)) + tuple(draw.choices(range(kinds), k=layers - kinds)),
        "schedule": draw.choice(fill),
        "pp": pp,
        "vpp": vpp,
        "m": pp * draw.randint(1, 4),
        "modes": draw.choice([(0,), (0, 2), (0, 1, 2), (0, 1, 2), (2,)]),
        "layer_ns": tuple((t, t + draw.randint(1, 200), t + t // 3) for t in base),
        "saved_kib": tuple((s, s * 3 // 4, s // draw.randint(3, 8)) for s in saved),
        "state_kib": tuple(draw.randint(100, 400) for _ in range(kinds)),
        "update_kib": tuple(draw.choice([0, 300]) for _ in range(kinds)),
        "step_ns": tuple(draw.randint(0, 300) for _ in range(kinds)),
        "transient_kib": (0, draw.randint(0, 300), draw.randint(0, 600)),
        "embedding": End(draw.randint(0, 800), draw.randint(0, 99), 150, 50),
        "head": End(draw.randint(0, 2500), draw.randint(0, 99), 250, 80, draw.randint(0, 500)),
        "send_ns": draw.randint(0, 60),
        "fixed_kib": 100,
        "cap_kib": draw.choice([2500, 3500, 5000, 8000, 10**6]),
        "fixed_step_ns": 1000,
        "passes_ns": Passes(*(draw.randint(300, 900) * layers for _ in range(3))),
        "empty_ends": draw.random() < 0.5,
    }
    return problem_of(**{**settings, **fixed})


@pytest.fixture
def problem() -> Callable[..., StageProblem]:
    """`random_problem(seed, vpp, **fields)`."""
    return random_problem


@pytest.fixture(name="every_plan")
def every_plan_fixture() -> Callable[[StageProblem], Iterator[tuple[Stage, ...]]]:
    """`every_plan(problem)`: all plans of a small problem."""
    return every_plan


@pytest.fixture
def pricer() -> Callable[[int, float, int], Pricer]:
    """`synthetic_pricer(seed, capacity_bytes, kinds)`."""
    return synthetic_pricer


@pytest.fixture
def question() -> Callable[..., Question]:
    """`small_question(pattern, gpus, batch, **legality)`."""
    return small_question
