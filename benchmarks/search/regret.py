"""Whether a layout that `plan` did not choose is faster: the best simulated of 1,000 others.

    python -m benchmarks.search.regret [--others 1000] [--only 70b/256]

The others of a question are layouts whose rows have the smallest bounds of the simulated step,
each with its first plan (no search of cuts or of mixes of recomputation), simulated and held to
memory as the answer is. Regret is how much longer the answer takes than the fastest of all of them,
0 where it is the fastest itself.
"""

import argparse
import math
import time
from itertools import islice

import numpy as np

from benchmarks.search.cases import CASES, Case, question_of
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.problem.stage_problem import stage_problem
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.search.rows.rows_below import Given
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.stages.first_plan import first_plan

QUESTIONS = (
    *CASES,
    Case("llama-3.1-8b", 8, "dgx-h100", 8192, 128),
    Case("llama-3.1-8b", 128, "dgx-a100", 4096, 1024, "torchtitan"),
    Case("llama-3.1-70b", 64, "dgx-h100", 8192, 512, "torchtitan"),
    Case("llama-3.1-70b", 1024, "dgx-h100", 131072, 128),
    Case("llama-3.1-405b", 2048, "dgx-h100", 8192, 2048, "torchtitan"),
    Case("llama-3.1-405b", 1024, "gb200-nvl72", 8192, 1024),
    Case("qwen3-32b", 256, "dgx-h100", 32768, 256),
    Case("qwen3-235b-a22b", 512, "dgx-h100", 4096, 2048),
    Case("qwen3-30b-a3b", 64, "dgx-h100", 4096, 1024),
    Case("deepseek-v3", 1024, "dgx-h100", 4096, 4096),
    Case("deepseek-v2", 256, "dgx-h800", 4096, 2304),
    Case("mixtral-8x7b", 64, "dgx-h100", 4096, 1024, "torchtitan"),
    Case("gpt-oss-120b", 128, "dgx-b200", 8192, 1024),
    Case("nemotron-4-340b", 1536, "dgx-h100", 4096, 768),
    Case("gemma-3-27b", 128, "mi300x-8", 8192, 512),
    Case("glm-4.5-air", 256, "dgx-h200", 8192, 1024),
    Case("kimi-k2", 2048, "dgx-h800", 4096, 8192),
    Case("bloom-176b", 384, "jean-zay-a100", 2048, 2048, "bigscience"),
)


def fastest_other_s(question: Question, count: int) -> tuple[float, int]:
    """The least simulated step of `count` layouts with small bounds, and how many of them fit."""
    q = question
    space = space_of(q)
    prices = price_space(q, space, closed_form)
    proof = Simulated(
        q, space, Given(np.flatnonzero(row_fits(space, prices)), prices),
        lambda layout: simulated_s(case_at(q, layout)),
        lambda row, variant, plan: layout_of_row(space.layouts, row, variant, plan),
    )  # fmt: skip
    best_s, fit = math.inf, 0
    every = ((row, each) for row in proof.open.rows.tolist() for each in proof.space.variants(row))
    for row, variant in islice(every, count):
        _, plan = first_plan(stage_problem(proof.space, proof.prices, row, variant))
        if plan is not None:
            step_s = proof.judged(layout_of_row(proof.space.layouts, row, variant, plan))
            best_s, fit = min(best_s, step_s), fit + math.isfinite(step_s)
    return best_s, fit


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", type=int, default=1000)
    parser.add_argument("--only", default="", help="a part of the questions' names")
    asked, regrets = parser.parse_args(), []
    for case in QUESTIONS:
        if asked.only not in case.name:
            continue
        started, question = time.process_time(), question_of(case)
        result = solve(question, 3)
        own_s = result.solutions[0].step_time_s
        other_s, fit = fastest_other_s(question, asked.others)
        regrets.append(max(0.0, own_s / other_s - 1))
        cpu_s = time.process_time() - started
        print(
            f"{case.name:44} {result.status:8} {own_s:8.3f} s, best of {fit:4} others "
            f"{other_s:8.3f} s, regret {regrets[-1]:.2%}, cpu {cpu_s:.0f} s",
            flush=True,
        )
    print(f"{len(regrets)} questions: mean {np.mean(regrets):.2%}, worst {max(regrets):.2%}")


if __name__ == "__main__":
    main()
