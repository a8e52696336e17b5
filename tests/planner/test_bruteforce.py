"""The search against exhaustive enumeration of its own model: equal optima, always."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from costmodels.layout import Stage
from planner.coefficients import NS_PER_S
from planner.pins import parse_pins
from planner.priced_space import Pricer, Question, price_space
from planner.search import NoLayoutFits, search
from planner.space import enumerate_space
from planner.stage_problem import StageProblem, evaluate, stage_problem

Plans = Callable[[StageProblem], Iterator[tuple[Stage, ...]]]

SCHEDULES = (
    ("1f1b",),
    ("1f1b", "interleaved_1f1b"),
    ("gpipe", "zb_h1", "zb_v"),
    ("interleaved_1f1b", "dualpipe_v"),
)
CAPACITIES = (2e7, 4e7, 6e7, 1e9)
BLOCKS = 11
PER_BLOCK = 20


def least_objective(question: Question, price: Pricer, every_plan: Plans) -> int | None:
    """The best objective over every layout, cut and mix; None if nothing fits."""
    q = question
    space = enumerate_space(q.model, q.training, q.gpus, q.engine, q.pins, q.cluster.gpus_per_node)
    if not len(space.grid):
        return None
    coefficients = price_space(q, space, price)
    best: int | None = None
    for row in range(len(space.grid)):
        for variant in space.variants(row):
            problem = stage_problem(space, coefficients, row, variant)
            for stages in every_plan(problem):
                plan = evaluate(problem, stages)
                if plan is not None and (best is None or plan.objective < best):
                    best = plan.objective
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
    """A small question: dense or mixed layers, loose or tight memory, each kind of engine."""
    draw = random.Random(seed)
    layers = draw.randint(2, 5)
    pattern = [draw.choice([0, 1]) for _ in range(layers)] if draw.random() < 0.4 else [0] * layers
    if 1 in pattern and draw.random() < 0.5:
        pattern.sort()
    pattern[0] = 0
    asked = question(
        tuple(pattern),
        draw.choice([2, 4]),
        draw.choice([4, 8, 12]),
        micro_batches_at_least_pp=True,
        uneven_stages=draw.choice(["free", "free", "ends", "even"]),
        layers_count_ends=draw.random() < 0.5,
        recompute_per_layer=draw.random() < 0.7,
        zero_stages=draw.choice([(0,), (0, 1)]),
        schedules=draw.choice(SCHEDULES),
        hybrid_shard=False,
        context_parallel=False,
    )
    if draw.random() < 0.7:
        pins = {"pipeline_parallel": "2.."}
        if draw.random() < 0.5:
            pins["virtual_stages"] = "2.."
        asked = replace(asked, pins=parse_pins(pins))
    if draw.random() < 0.3:
        asked = opened(asked, draw.choice(["plain", "any"]))
    return asked, pricer(seed, draw.choice(CAPACITIES), len(set(pattern)))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_search_equals_brute_force(
    block: int,
    question: Callable[..., Question],
    pricer: Callable[[int, float, int], Pricer],
    every_plan: Plans,
) -> None:
    """Over 220 random small questions the search proves exactly the optimum of enumeration."""
    for seed in range(block * PER_BLOCK, (block + 1) * PER_BLOCK):
        asked, price = random_case(seed, question, pricer)
        best = least_objective(asked, price, every_plan)
        if best is None:
            with pytest.raises(NoLayoutFits):
                search(asked, price=price)
            continue
        result = search(asked, price=price)
        assert result.status == "OPTIMAL", seed
        assert round(result.solutions[0].step_time_s * NS_PER_S) == best, seed


def test_random_cases_cover_what_they_claim(
    question: Callable[..., Question], pricer: Callable[[int, float, int], Pricer]
) -> None:
    """The random questions hold answers, refusals, recomputation, mixed layers and CP-SAT
    solves.
    """
    fits = refused = recomputed = mixed = solves = 0
    for seed in range(60):
        asked, price = random_case(seed, question, pricer)
        mixed += len(asked.model.kinds) > 1
        try:
            result = search(asked, price=price)
        except NoLayoutFits:
            refused += 1
            continue
        fits += 1
        recomputed += result.solutions[0].layout.recompute != "none"
        solves += result.cpsat_solves
    assert min(fits, refused, recomputed, mixed) >= 5
    assert solves >= 8
