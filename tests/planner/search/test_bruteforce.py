"""First plans and their bounds against exhaustive enumeration of the closed form."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from first_plans import Plans, first_plans, least_ns
from nightly import blocks

from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.planner.problem.stage_problem import stage_problem
from meshplan.planner.search.rows.priced_space import Pricer, Question, price_space, space_of
from meshplan.planner.space.pins import parse_pins

SCHEDULES = (
    ("1f1b",),
    ("1f1b", "interleaved_1f1b"),
    ("gpipe", "zb_h1", "zb_v"),
    ("interleaved_1f1b", "dualpipe_v"),
)
PINS = (
    ("tensor_parallel", "1"), ("context_parallel", "1"), ("expert_parallel", "2.."),
    ("micro_batch_size", "1,2"), ("recompute", "none,full"), ("zero_stage", "..1"),
    ("num_micro_batches", "4.."), ("sequence_parallel", "on"),
)  # fmt: skip
CAPACITIES = (2e7, 4e7, 6e7, 1e9)
BLOCKS = 11
PER_BLOCK = 20
EVERY_CHANGE = 5  # blocks, the others nightly


def least_objective(question: Question, price: Pricer, every_plan: Plans) -> int | None:
    """The best objective over every layout, cut and mix; None if nothing fits."""
    q = question
    space = space_of(q)
    if not len(space.layouts):
        return None
    coefficients = price_space(q, space, price)
    best: int | None = None
    for row in range(len(space.layouts)):
        for variant in space.variants(row):
            best = least_ns(stage_problem(space, coefficients, row, variant), every_plan, best)
    return best


def opened(asked: Question, activations: str) -> Question:
    """The same, where the optimizer and activations may wait on the host."""
    engine = asked.engine
    rules = engine.legality.model_copy(
        update={"optimizer_offload": True, "activation_offload": activations}
    )
    pins = {name: pin.text for name, pin in asked.pins.axes.items()}
    pins |= {"optimizer_offload": "off,on", "activation_offload": "off,on"}
    engine = engine.model_copy(update={"legality": rules})
    return replace(asked, engine=engine, pins=parse_pins(pins))


def random_case(
    seed: int, question: Callable[..., Question], pricer: Callable[[int, float, int], Pricer]
) -> tuple[Question, Pricer]:
    """A small question: dense or mixed layers, loose or tight memory, any engine or a made-up one,
    nodes of one or many GPUs, pins.
    """
    draw = random.Random(seed)
    layers = draw.randint(2, 5)
    pattern = [draw.choice([0, 1]) for _ in range(layers)] if draw.random() < 0.4 else [0] * layers
    if 1 in pattern and draw.random() < 0.5:
        pattern.sort()
    pattern[0] = 0
    own, names = draw.random() < 0.4, engine_names()
    named = names[seed // 2 % len(names)] if own else draw.choice(("native", "megatron-bridge"))
    asked = question(
        tuple(pattern),
        draw.choice([2, 4]),
        draw.choice([4, 8, 12]),
        named=named,
        gpus_per_node=draw.choice((1, 8)),
        **own_rules(named) if own else made_up_rules(draw),
    )
    pins = random_pins(draw)
    asked = replace(asked, pins=parse_pins(pins))
    if not own and draw.random() < 0.3:
        asked = opened(asked, draw.choice(["plain", "any"]))
    asked = attending(asked, draw.choice(["plain", "plain", "latent", "windowed"]))
    return asked, pricer(seed, draw.choice(CAPACITIES), len(set(pattern)))


def attending(asked: Question, how: str) -> Question:
    """The same, with latent attention or a sliding window in every layer."""
    if how == "plain":
        return asked
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16, "rope_head_dim": 8}
    own = latent if how == "latent" else {"window": 16}
    kinds = tuple(
        replace(kind, attention=replace(kind.attention, **own)) for kind in asked.model.kinds
    )
    return replace(asked, model=replace(asked.model, kinds=kinds))


def own_rules(named: str) -> dict[str, object]:
    """What keeps the space of an engine small; all else is its own."""
    rules = load_engine(named).legality
    return {"zero_stages": rules.zero_stages[:2], "hybrid_shard": False}


def made_up_rules(draw: random.Random) -> dict[str, object]:
    """Rules that no engine may have together."""
    cuts, ends = draw.choice(["free", "free", "ends", "even"]), draw.random() < 0.5
    kinds = ["any", "alike"] if cuts == "free" else ["any", "first", "first", "alike"]
    return {
        "micro_batches_at_least_pp": True,
        "uneven_stages": cuts,
        "layers_count_ends": ends,
        "recompute_layers": kinds[int(draw.random() ** 2 * len(kinds))],
        "recompute": ("none", "selective", "full"),
        "zero_stages": draw.choice([(0,), (0, 1)]),
        "zero_with_pipeline": (0, 1),
        "schedules": draw.choice(SCHEDULES),
        "hybrid_shard": False,
        "context_parallel": False,
    }


def random_pins(draw: random.Random) -> dict[str, str]:
    """Mostly a pipeline, often with several chunks, now and then another axis."""
    pins = {}
    if draw.random() < 0.7:
        pins["pipeline_parallel"] = "2.."
        if draw.random() < 0.5:
            pins["virtual_stages"] = "2.."
    if draw.random() < 0.3:
        axis, text = draw.choice(PINS)
        pins[axis] = text
    return pins


@pytest.mark.parametrize("block", blocks(EVERY_CHANGE, of=BLOCKS))
def test_a_plan_is_found_where_there_is_one(
    block: int,
    question: Callable[..., Question],
    pricer: Callable[[int, float, int], Pricer],
    every_plan: Plans,
) -> None:
    """Over 100 random small questions (nightly 220)."""
    for seed in range(block * PER_BLOCK, (block + 1) * PER_BLOCK):
        asked, price = random_case(seed, question, pricer)
        best = least_objective(asked, price, every_plan)
        run = first_plans(asked, price)
        cutoff = run.cutoff if run else None
        assert (cutoff is None) == (best is None), seed
        if run and best is not None and cutoff is not None:
            assert run.least_ns() <= best <= cutoff, seed


def test_random_cases_cover_what_they_claim(
    question: Callable[..., Question], pricer: Callable[[int, float, int], Pricer]
) -> None:
    """The random questions hold answers, refusals, recomputation, mixed layers, chunks, rows that
    are priced apart for their chunks, latent attention, windows and every engine.
    """
    latent = windowed = 0
    fits = refused = recomputed = mixed = chunked = apart = 0
    for seed in range(EVERY_CHANGE * PER_BLOCK):
        asked, price = random_case(seed, question, pricer)
        mixed += len(asked.model.kinds) > 1
        latent += asked.model.kinds[0].attention.is_mla
        windowed += asked.model.kinds[0].attention.window is not None
        run = first_plans(asked, price)
        if run is None or not run.best:
            refused += 1
            continue
        fits += 1
        found = run.ranked()[0]
        recomputed += any(each.full_layers + each.selective_layers for each in found.plan.stages)
        chunks = found.variant.virtual_stages > 1
        chunked += chunks
        apart += chunks and int(run.space.layouts.expert_parallel[found.row]) > 1
    assert min(fits, refused, recomputed, mixed, chunked, latent, windowed) >= 5
    seeds = range(BLOCKS * PER_BLOCK)
    drawn = {random_case(seed, question, pricer)[0].engine.name for seed in seeds}
    assert drawn == set(engine_names())
    assert apart >= 1
