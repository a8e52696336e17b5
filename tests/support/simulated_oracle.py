"""Random small questions under the event simulation, and every layout, cut and mix of each.

The enumeration is its own: of the search it shares the legal rows (`test_space.py` holds them
against `check_layout`) and the simulated step and memory of one layout; in engines whose passes are
counted what fits by the priced memory. Each
row has every kind of exchange that the engine can run, none dropped for another.
"""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from compositions import compositions, mixes

from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, Stage
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import simulation_of
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space
from meshplan.planner.space.legal_layouts import Space, Variant, enumerate_space
from meshplan.planner.space.pins import parse_pins

ATTENTION = Attention(heads=16, kv_heads=8, head_dim=128, v_head_dim=128)
DENSE = Layer(attention=ATTENTION, ffn=8192)
MOE = Layer(attention=ATTENTION, experts=Experts(experts=4, top_k=2, ffn=2048))
LATENT = Layer(
    attention=Attention(
        heads=16, kv_heads=16, head_dim=192, v_head_dim=128, q_lora_rank=512, kv_lora_rank=256,
        rope_head_dim=64,
    ),
    experts=Experts(experts=4, top_k=2, ffn=2048, shared_ffn=2048),
)  # fmt: skip
"""With all that Megatron-Core may recompute."""
PINNED = {"context_parallel": "1", "shard_group": "..16"}
CHOOSING = ("megatron", "megatron-bridge", "nemo", "torchtitan", "torchtitan", "accelerate")
"""Engines that choose the kinds of their exchanges."""
MOST_PLANS = 5_000


def random_question(seed: int) -> Question:
    """Two to six layers, one or two kinds, on 2 to 8 GPUs with much or little memory."""
    draw = random.Random(seed)
    layers = draw.randint(2, 6)
    dense = layers if draw.random() < 0.7 else draw.randrange(layers)
    kinds = (DENSE,) * (dense > 0) + (MOE,) * (dense < layers)
    pattern = (0,) * dense + (len(kinds) - 1,) * (layers - dense)
    engine = load_engine(draw.choice(engine_names()))
    cluster = load_cluster(draw.choice(("dgx-h100", "dgx-a100")))
    gpus = draw.choice((2, 4, 4, 8))
    memory = draw.choice((4e9, 6e9, 9e9, 80e9)) + 14e9 * layers / gpus * draw.random() / 2
    pins = dict(PINNED)
    if draw.random() < 0.8:
        pins["pipeline_parallel"] = draw.choice(("2..", "2..", "4.."))
    if draw.random() < 0.4:
        pins["virtual_stages"] = "2.."
    apart = random.Random(-1 - seed)
    if apart.random() < 0.4:
        engine = load_engine(apart.choice(CHOOSING))
        pins["context_parallel"] = apart.choice(("1,2", "2", "2,4"))
    predicts = random.Random(-2_000_000 - seed)
    modules = predicts.choice((0, 0, 0, 1, 1, 2))
    if modules and predicts.random() < 0.7:
        engine = load_engine(predicts.choice(("megatron", "megatron-bridge")))
        pins["pipeline_parallel"] = predicts.choice(("3..", "4", "4.."))
    return Question(
        model=Model(
            name="small", hidden=2048, vocab=draw.choice((8_000, 64_000)), kinds=kinds,
            pattern=pattern, tied=draw.random() < 0.2, mtp_layers=modules,
        ),
        training=Training(
            seq_len=draw.choice((2048, 8192)), global_batch_size=draw.choice((4, 8, 16, 24))
        ),
        gpus=gpus,
        cluster=cluster.model_copy(
            update={"gpus_per_node": draw.choice((1, 8)), "usable_memory_bytes": memory}
        ),
        engine=engine,
        pins=parse_pins(pins),
    )  # fmt: skip


def latent_question(seed: int) -> Question:
    """One of layers with latent attention and shared experts that is short of memory, of an engine
    that recomputes by operation.
    """
    draw, q = random.Random(-1_000 - seed), random_question(seed)
    layers = min(q.model.num_layers, 3)
    few = 2e9 + layers / q.gpus * draw.uniform(4e9, 8e9)
    pins = {**PINNED, "context_parallel": "1", "virtual_stages": draw.choice(("1", "1", "2.."))}
    return replace(
        q,
        cluster=q.cluster.model_copy(update={"usable_memory_bytes": few}),
        engine=load_engine(draw.choice(("megatron", "nemo", "native"))),
        model=replace(q.model, kinds=(LATENT,), pattern=(0,) * layers),
        pins=parse_pins(pins),
        training=replace(q.training, seq_len=8192) if draw.random() < 0.7 else q.training,
    )


def fastest(question: Question, *, anywhere: bool = False) -> float | None:
    """The least simulated step of everything; infinite if nothing fits, None if it is too much.
    `anywhere`: several chunks per rank are cut in every way, not in those of the list alone.
    """
    q = question
    space = every_kind(q)
    if not len(space.layouts):
        return math.inf
    coefficients = price_space(q, space, closed_form)
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    passes = pass_seconds(space.layouts, setting)
    sets, rule = recompute_sets(setting), q.engine.legality.recompute_layers
    counts, simulate = q.engine.kernels.counts_passes, simulation_of(q)
    problems = list(_problems(space, coefficients, sets))
    plans = (every_plan(problem, anywhere=anywhere, rule=rule) for *_, problem in problems)
    listed = itertools.islice(itertools.chain.from_iterable(plans), MOST_PLANS + 1)
    if sum(1 for _ in listed) > MOST_PLANS:
        return None
    best = math.inf
    for row, variant, problem in problems:
        times = None
        for stages in every_plan(problem, anywhere=anywhere, rule=rule):
            layout = partial(layout_of_row, space.layouts, row, variant)
            if times is None:
                first = layout(StagePlan(stages, 0, ()))
                times = CutTimes(setting, first, passes, row, variant.columns)
            if times.step_s(stages) >= best or (counts and evaluate(problem, stages) is None):
                continue
            best = min(best, simulate(layout(StagePlan(stages, 0, ()))))
    return best


def _problems(
    space: Space, coefficients: Coefficients, sets: tuple[tuple[str, ...], ...]
) -> Iterator[tuple[int, Variant, StageProblem]]:
    """Each row under each of its schedules and sets, with all ways to recompute."""
    for row in range(len(space.layouts)):
        for each in space.variants(row):
            variant = replace(each, columns=(0, 1 + sets.index(each.replayed), 1 + len(sets)))
            yield row, variant, stage_problem(space, coefficients, row, variant)


def every_kind(question: Question) -> Space:
    """The rows with every kind of context parallelism and dispatcher, by rules of its own; their
    layers may mix all modes.
    """
    q, g = question, question.cluster.gpus_per_node
    mixing = q.engine.legality.model_copy(update={"recompute_layers": "any"})
    engine = q.engine.model_copy(update={"legality": mixing})
    space = enumerate_space(q.model, q.training, q.gpus, engine, q.pins, g)
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    space = space.replaying(recompute_sets(setting))
    la, rules, found = space.layouts, q.engine.legality, list[tuple[int, int, int]]()
    for row in range(len(la)):
        tp, cp, ep, etp = (
            int(each[row])
            for each in (la.tensor_parallel, la.context_parallel, la.expert_parallel,
                         la.expert_tensor_parallel)
        )  # fmt: skip
        together = min(cp, max(1, g // tp))
        contexts = {"ring": True, "all_gather": True, "all_to_all": 8 % (tp * cp) == 0,
                    "hierarchical": 1 < together < cp and 8 % (tp * together) == 0}  # fmt: skip
        sends = {"all_to_all": True, "deepep": ep * etp in (2, 4, 8) and ep * etp <= g,
                 "hybridep": True}  # fmt: skip
        kinds = [1 + CONTEXT_KINDS.index(kind) for kind in rules.context_kinds if contexts[kind]]
        named = [1 + DISPATCHERS.index(kind) for kind in rules.usual_dispatchers if sends[kind]]
        ways = itertools.product(
            kinds if cp > 1 and rules.context_kinds else [0],
            named if ep > 1 and rules.dispatchers else [0],
        )
        found += [(row, *way) for way in ways]
    rows, kinds_of, sends_of = np.array(found or np.zeros((0, 3)), np.int64).T
    opened = replace(la.take(rows), context_kind=kinds_of, dispatcher=sends_of)
    return replace(space, layouts=opened)


def every_plan(
    problem: StageProblem, *, anywhere: bool = False, rule: str | None = None
) -> Iterator[tuple[Stage, ...]]:
    """All cuts into stages, of the list unless `anywhere`, with all recomputation of the problem's
    modes that the engine's `rule` has, unless said that of the problem.
    """
    fewest = [problem.fewest_layers(j) for j in range(problem.chunks)]
    ways = None if anywhere and problem.vpp > 1 else problem.splits
    rule = rule or ("first" if problem.first else "any")
    for counts in compositions(len(problem.pattern), fewest) if ways is None else ways:
        yield from recomputed(counts, problem.modes, rule)


def recomputed(
    counts: tuple[int, ...], modes: tuple[int, ...], rule: str
) -> Iterator[tuple[Stage, ...]]:
    """What an engine of that rule can recompute: any layer what it likes, the first k of each stage
    in full, or all alike; with the first, all selectively too.
    """
    if rule == "any":
        yield from itertools.product(*(mixes(n, modes) for n in counts))
        return
    if rule == "first" and {0, 2} <= set(modes):
        for k in range(1, max(counts)):
            yield tuple(Stage(n, 0, min(k, n)) for n in counts)
    for mode in modes:
        yield tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)


def free_of_pins(question: Question) -> Question:
    """The same without the pins of its pipeline."""
    kept = {"context_parallel": question.pins.axes["context_parallel"].text}
    return replace(question, pins=parse_pins(PINNED | kept))
