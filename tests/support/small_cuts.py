"""Random questions of a few layers that are short of memory, and everything faster than an answer.

The enumeration is its own: every cut into stages as bars between layers, every mix of recomputation
that the engine's rule has, every kind of exchange. Of the search it shares the legal rows and the
price of one layout: its simulated step and its memory, as `check` says them.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from simulated_oracle import every_kind, recomputed

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import case_at, simulation_of
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space
from meshplan.planner.space.pins import parse_pins

FREE = ("native", "native", "generic", "torchtitan", "internevo", "hai-llm", "automodel")
MODELS = (
    "llama-3.1-8b", "gemma-3-4b", "qwen2.5-7b", "mixtral-8x7b", "olmoe-7b-a1b", "gpt-oss-20b",
    "qwen3.5-9b", "qwen3.5-35b-a3b", "jamba-v0.1", "nemotron-h-8b", "xlstm-7b",
    "granite-4.0-h-small",
)  # fmt: skip
"""Dense models, mixtures of experts and hybrids, of which some layers are taken."""
MOST_PLANS = 6_000


def small_question(seed: int, most_layers: int = 8, chunks: str = "2..") -> Question:
    """Four layers or more on two pipeline ranks or more, in so many chunks each, in an engine that
    cuts anywhere; with the memory that some cut needs with nothing recomputed, or a part of it.
    """
    draw = random.Random(f"small cuts {seed}")
    model = read_model(draw.choice(MODELS))[1]
    layers = draw.randint(4, most_layers)
    first = draw.choice((0, draw.randrange(model.num_layers - layers + 1)))
    pattern = model.pattern[first : first + layers]
    used = sorted(set(pattern))
    pins = {
        "pipeline_parallel": "2..", "virtual_stages": chunks, "context_parallel": "1",
        "sequence_parallel": "on", "expert_parallel": "1",
        "tensor_parallel": draw.choice(("1", "..2")), "micro_batch_size": draw.choice(("1", "..2")),
        "zero_stage": draw.choice(("0", "..1")),
    }  # fmt: skip
    question = Question(
        model=replace(
            model, kinds=tuple(model.kinds[kind] for kind in used),
            pattern=tuple(map(used.index, pattern)), mtp_layers=0,
        ),
        training=Training(
            seq_len=draw.choice((4096, 8192, 32768)), global_batch_size=draw.choice((4, 8, 16))
        ),
        gpus=draw.choice((2, 2, 4)),
        cluster=load_cluster(draw.choice(("dgx-h100", "dgx-a100"))),
        engine=load_engine(draw.choice(FREE)),
        pins=parse_pins(pins),
    )  # fmt: skip
    return short_of_memory(question, draw)


def short_of_memory(question: Question, draw: random.Random) -> Question:
    """With 0.4 to 1.1 of what a random cut of a random layout needs."""
    needs = 4e10
    layouts = [(times, problem) for times, problem in every_layout(question) if problem.vpp > 1]
    if layouts:
        times, problem = draw.choice(layouts)
        cut = draw.choice(list(cuts(problem)))
        layout = replace(times.layout, stages=tuple(map(Stage, cut)))
        needs = max(rank.needed for rank in stage_memory(step_model_of(case_at(question, layout))))
    memory = {"usable_memory_bytes": needs * draw.uniform(0.4, 1.1)}
    return replace(question, cluster=question.cluster.model_copy(update=memory))


def every_layout(question: Question) -> Iterator[tuple[CutTimes, StageProblem]]:
    """Each legal layout, to be cut."""
    q, space = question, every_kind(question)
    if not len(space.layouts):
        return
    coefficients = price_space(q, space, closed_form)
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    passes, sets = pass_seconds(space.layouts, setting), recompute_sets(setting)
    for row in range(len(space.layouts)):
        for each in space.variants(row):
            columns = (0, 1 + sets.index(each.replayed), 1 + len(sets))
            variant = replace(each, columns=columns)
            problem = stage_problem(space, coefficients, row, variant)
            if cut := next(cuts(problem), None):
                plan = StagePlan(tuple(map(Stage, cut)), 0, ())
                layout = layout_of_row(space.layouts, row, variant, plan)
                layout = replace(layout, selective_modules=each.replayed)
                yield CutTimes(setting, layout, passes, row, columns), problem


def cuts(problem: StageProblem) -> Iterator[tuple[int, ...]]:
    """Every number of layers on each chunk: bars between what chunks hold beyond the fewest."""
    fewest = [problem.fewest_layers(chunk) for chunk in range(problem.chunks)]
    places = len(problem.pattern) - sum(fewest) + problem.chunks - 1
    if places >= problem.chunks - 1:
        for bars in combinations(range(places), problem.chunks - 1):
            yield _between(bars, places, fewest)


def _between(bars: Sequence[int], places: int, fewest: list[int]) -> tuple[int, ...]:
    edges = zip((-1, *bars), (*bars, places), strict=True)
    return tuple(n + end - at - 1 for n, (at, end) in zip(fewest, edges, strict=True))


def faster_than(question: Question, limit_s: float) -> float | None:
    """The least simulated step below the limit of all that fits, the limit where nothing is; None
    if that is too much to look at.
    """
    rule = question.engine.legality.recompute_layers
    found, plans = list[tuple[float, CutTimes, tuple[Stage, ...]]](), 0
    for times, problem in every_layout(question):
        for cut in cuts(problem):
            for stages in recomputed(cut, problem.modes, rule):
                plans += 1
                if plans > MOST_PLANS:
                    return None
                step_s = times.step_s(stages)
                if step_s < limit_s:
                    found.append((step_s, times, stages))
    simulate = simulation_of(question)
    for _, times, stages in sorted(found, key=lambda each: each[0]):
        step_s = simulate(replace(times.layout, stages=stages))
        if math.isfinite(step_s):
            return min(step_s, limit_s)
    return limit_s
