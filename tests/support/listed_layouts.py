"""Small layouts whose cuts are those of a list, short of memory."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from every_row import every_row
from simulated_oracle import DENSE, MOE, PINNED, random_question

from meshplan.costmodels.layouts import Ints
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import parse_pins


def listed_layouts(
    engine: str, seeds: range, chunks: str = "2..3"
) -> Iterator[tuple[Simulated, Variant, Ints, SamePipeline]]:
    """Those of so many chunks per rank that share a shape, with the search that bounds them."""
    for seed in seeds:
        question = _short_of_memory(seed, engine, chunks)
        space = space_of(question)
        if not len(space.layouts):
            continue
        proof = Simulated(
            question, space, every_row(question, space), lambda layout: math.inf,
            lambda row, variant, plan, of=space.layouts: layout_of_row(of, row, variant, plan),
        )  # fmt: skip
        for variant, rows in proof.space.by_variant(np.arange(len(proof.space.layouts))):
            if question.pins.allows("virtual_stages", variant.virtual_stages):
                yield proof, variant, rows[:4], run_as(proof.space, proof.prices, rows[:4], variant)


def _short_of_memory(seed: int, engine: str, chunks: str) -> Question:
    """Layers of one kind or two; on a seventh of the questions little fits."""
    draw, question = random.Random(-seed), random_question(seed)
    layers, dense = draw.randint(4, 8), draw.choice((0, 1, 3))
    few = 1e9 + layers / 4 * draw.uniform(1e9, 5e9)
    kinds = (DENSE, MOE) if dense else (DENSE,)
    return replace(
        question, gpus=4, engine=load_engine(engine),
        cluster=question.cluster.model_copy(update={"usable_memory_bytes": few}),
        model=replace(
            question.model, kinds=kinds, mtp_layers=0,
            pattern=(0,) * dense + (len(kinds) - 1,) * (layers - dense),
        ),
        training=replace(question.training, global_batch_size=draw.choice((4, 8))),
        pins=parse_pins({**PINNED, "pipeline_parallel": "2..4", "virtual_stages": chunks}),
    )  # fmt: skip
