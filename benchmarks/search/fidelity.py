"""How far the closed form is from the simulation of the same layout, over random legal layouts.

    python -m benchmarks.search.fidelity [LAYOUTS PER QUESTION] [SEED]

For each question random rows of its legal space are drawn, a schedule and a recompute mode for
each, and two cuts into stages: the search's own first plan, and a random one. Printed by schedule
and cut: closed form over simulated step time, less one (median, middle 90 %, extremes), and priced
over simulated memory of every rank. Below 0 is a lower bound that is not reached; above 0 is what a
search may overlook. The last line is the time that pricing took.
"""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.usage import check_usage
from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.prices.prices import price
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.problem.coefficients import NS_PER_S, Coefficients
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, stage_problem
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.space.legal_layouts import Space, enumerate_space
from meshplan.planner.space.pins import Pins
from meshplan.planner.stages.first_plan import first_plan

QUESTIONS = (  # model, GPUs, sequence length, global batch, cluster
    ("llama-3.2-1b", 32, 4096, 256, "dgx-a100"),
    ("llama-3.1-8b", 64, 8192, 256, "dgx-h100"),
    ("llama-3.1-70b", 256, 8192, 512, "dgx-h100"),
    ("mixtral-8x7b", 128, 4096, 512, "dgx-h100"),
    ("deepseek-v3", 512, 4096, 2048, "dgx-h800"),
)
ENGINES = ("megatron", "native", "nanotron", "generic")
MOST_STAGES, MOST_MICRO_BATCHES = 64, 512  # what is simulated in a fraction of a second
PLENTY_BYTES = 1e16  # so that every layout is compared, whether it fits or not


@dataclass(frozen=True, slots=True)
class Distance:
    """Closed form over simulation, less one; memory: the least and the most of any rank."""

    schedule: str
    cut: str
    time: float
    least_memory: float
    most_memory: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """Some rows of one question's space, priced."""

    setting: Setting
    space: Space
    layouts: Layouts
    coefficients: Coefficients


def draw(question: tuple[str, int, int, int, str], engine: str, count: int, seed: int) -> Drawn:
    """`count` random rows."""
    name, gpus, seq_len, batch, cluster_name = question
    cluster = load_cluster(cluster_name).model_copy(update={"usable_memory_bytes": PLENTY_BYTES})
    training = Training(seq_len=seq_len, global_batch_size=batch)
    model = read_model(name)[1]
    setting = Setting.fitted(model, training, cluster, load_engine(engine))
    space = enumerate_space(model, training, gpus, setting.engine, Pins(), cluster.gpus_per_node)
    space = space.replaying(recompute_sets(setting))
    rows = np.random.default_rng(seed).integers(0, len(space.layouts), count)
    layouts = space.layouts.take(rows)
    prices = price(layouts, setting)
    return Drawn(setting, replace(space, layouts=layouts), layouts, Coefficients.of(prices))


def distances(drawn: Drawn, rng: random.Random) -> Iterator[Distance]:
    """Each row under one random schedule and recompute mode, cut in two ways."""
    for row in range(len(drawn.layouts)):
        variant = rng.choice(drawn.space.variants(row))
        variant = replace(variant, modes=(rng.choice(variant.modes),))
        problem = stage_problem(drawn.space, drawn.coefficients, row, variant)
        if problem.chunks > MOST_STAGES or problem.m > MOST_MICRO_BATCHES:
            continue
        searched = first_plan(problem)[1]
        for cut, plan in (("searched", searched), ("random", random_plan(problem, rng))):
            if plan is not None:
                layout = layout_of_row(drawn.layouts, row, variant, plan)
                yield distance(plan, StepModel(drawn.setting, layout), cut)


def random_plan(problem: StageProblem, rng: random.Random) -> StagePlan | None:
    """Even stages with a few layers moved, or one of the splits that the engine allows."""
    layers, chunks = len(problem.pattern), problem.chunks
    if problem.splits is not None:
        counts = list(rng.choice(problem.splits))
    else:
        counts = [layers * (j + 1) // chunks - layers * j // chunks for j in range(chunks)]
        for _ in range(rng.choice((0, 1, chunks // 2)) if chunks > 1 else 0):
            giver, taker = rng.sample(range(chunks), 2)
            moved = counts[giver] > 1
            counts[giver], counts[taker] = counts[giver] - moved, counts[taker] + moved
    mode = problem.modes[0]
    stages = (Stage(n, n if mode == 1 else 0, n if mode == 2 else 0) for n in counts)
    return evaluate(problem, tuple(stages))


def distance(plan: StagePlan, step: StepModel, cut: str) -> Distance:
    """One plan against its simulation."""
    seconds = plan.objective / NS_PER_S
    outside = step.context_bytes
    memory = [
        (peak * 1024 - outside) / (float(held.allocated) + step.slack_bytes(held)) - 1
        for peak, held in zip(plan.peak_kib, step.memory(), strict=True)
    ]
    return Distance(
        step.layout.schedule if step.layout.pipeline_parallel > 1 else "one rank", cut,
        seconds / step.time().step_time_s - 1, min(memory), max(memory),
    )  # fmt: skip


def line(name: str, found: list[Distance]) -> str:
    """One row of the table, in per cent."""
    times = 100 * np.array([d.time for d in found])
    low, median, high = np.quantile(times, (0.05, 0.5, 0.95))
    least = 100 * min(d.least_memory for d in found)
    most = 100 * max(d.most_memory for d in found)
    return (
        f"{name:30} {len(found):5} {median:8.2f} {low:8.2f} {high:8.2f} {times.min():8.2f} "
        f"{times.max():8.2f} {least:10.2f} {most:8.2f}"
    )


def main(count: int, seed: int) -> None:
    """Print the table."""
    rng, groups, spent_s, rows = random.Random(seed), defaultdict(list), 0.0, 0
    for question in QUESTIONS:
        for engine in ENGINES:
            started = time.process_time()
            drawn = draw(question, engine, count, seed)
            spent_s += time.process_time() - started
            rows += count
            for found in distances(drawn, rng):
                groups[f"{found.schedule}, {found.cut}"].append(found)
    print(f"{'schedule, cut':30} {'n':>5} {'median':>8} {'5 %':>8} {'95 %':>8} {'least':>8} "
          f"{'most':>8} {'mem least':>10} {'most':>8}   (% of simulated)")  # fmt: skip
    for name in sorted(groups):
        print(line(name, groups[name]))
    print(f"{rows} rows drawn and priced in {spent_s:.2f} s of CPU time")


if __name__ == "__main__":
    check_usage(str(__doc__))
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*(numbers + [40, 0][len(numbers) :]))
