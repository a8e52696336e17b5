"""Plans beside the recipes that NVIDIA published: what the plan claims, and what is to be expected.

    python -m benchmarks.search.recipes            writes the tables of docs/accuracy_tables.md
    python -m benchmarks.search.recipes --only 5   prints the first five recipes

A recipe is a run of Megatron-Bridge or NeMo in runs.csv (grades A and B, suites of NVIDIA's own:
`SUITES`), the last release of several; its question is its model, GPUs, batch, sequence, precision
and engine. Both sides are predicted, so that they share what is wrong with both; how far the
recipe's own prediction is off stands beside, since a recipe that is predicted too slow is beaten
easily.

    claim     predicted step of the recipe / predicted step of the plan - 1
    expected  exp(b ln(1 + claim)) - 1: what pairs of measured runs leave of a predicted difference,
              corrected for the choice of the plan among thousands (`hardware_profiles.
              layout_ratios` has the equations)
    faster    P of the same: in how many of 100 cases the plan is really faster
    before    the claim of the fastest layout that fits the profile's margin, uncorrected, as it was
              until 2026-11-24

"It loses most by" names the two parts of the step in which the recipe takes most time more.
"""

import argparse
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.accuracy.tables import ROOT, put
from meshplan.costmodels.layout import differing_axes
from meshplan.costmodels.units import format_seconds
from meshplan.hardware_profiles.layout_ratios import expected_slower, faster_probability
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.explain import PART_NAMES, lost_by, priced
from meshplan.planner.answer.ties import chosen
from meshplan.planner.case.memory_limit import with_usual_headroom
from meshplan.planner.cli.validate import BUILT_IN
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import Run, read_runs, run_of
from meshplan.planner.search.priced_space import Question
from meshplan.planner.search.search import NoLayoutFits

SUITES = ("mbridge", "nemo")
LARGE = 0.10
TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A recipe and the plan of its question.

    before, claim  of the fastest in the profile's margin, and of the plan, of which `expected`
    own_error      predicted / measured step of the recipe - 1
    """

    run: Run
    plan: str
    before: float
    claim: float
    expected: float
    faster: float
    own_error: float
    why: str


def recipes() -> list[Run]:
    """The last published run of each question."""
    found: dict[object, tuple[list[int], Run]] = {}
    for cells in read_runs(BUILT_IN):
        if cells["suite"] not in SUITES or cells["grade"] not in ("A", "B"):
            continue
        try:
            run = run_of(cells)
        except SkippedRow:
            continue
        if not run.measured.step_time_s or run.training.lora:
            continue
        question, release = run.group[1:-1], _release(cells["framework"])
        if question not in found or release > found[question][0]:
            found[question] = release, run
    return [run for _, run in found.values()]


def _release(framework: str) -> list[int]:
    """The last number of the framework's words, such as 26.06 of "megatron-bridge (NeMo 26.06)"."""
    numbers = re.findall(r"\d+(?:\.\d+)+", framework)
    return [int(part) for part in numbers[-1].split(".")] if numbers else []


def beside(run: Run) -> Beside | None:
    """The plan of the recipe's question; None where nothing fits."""
    question = Question(
        model=run.model, training=run.training, gpus=run.layout.world_size, cluster=run.cluster,
        engine=run.engine,
    )  # fmt: skip
    safe = replace(question, cluster=with_usual_headroom(run.cluster, run.engine.name))
    try:
        fastest_s = solve(question, 1).solutions[0].step_time_s
        solutions = solve(safe, TOP).solutions
    except NoLayoutFits:
        return None
    recipe = priced(case_at(question, run.layout))
    at, _ = chosen(safe, solutions)
    plan = priced(case_at(safe, solutions[at].layout))
    recipe_s, plan_s = recipe.prediction.step_time_s, plan.prediction.step_time_s
    axes = len(differing_axes(run.layout, plan.case.layout))
    lost = [(name, s) for name, s in lost_by(plan.parts, recipe.parts).items() if s > 0][:2]
    return Beside(
        run=run,
        plan=plan.case.layout.label,
        before=recipe_s / fastest_s - 1,
        claim=recipe_s / plan_s - 1,
        expected=expected_slower(recipe_s / plan_s),
        faster=faster_probability(recipe_s / plan_s, axes),
        own_error=recipe_s / (run.measured.step_time_s or math.nan) - 1,
        why=", ".join(f"{PART_NAMES[name]} {format_seconds(s)}" for name, s in lost),
    )


def summary(found: Sequence[Beside]) -> Iterator[str]:
    """Claims before and after: medians, and the share of large ones."""
    yield "| claim over the recipe | median | above 10 % | within 1 % |"
    yield "|---|---|---|---|"
    ways: dict[str, list[float]] = {
        "before: the fastest in the profile's margin, as predicted": [e.before for e in found],
        "the plan: fits with 85 %, chosen among ties, as predicted": [e.claim for e in found],
        "the plan, expected: corrected for the choice": [e.expected for e in found],
    }
    for name, claims in ways.items():
        large = sum(claim > LARGE for claim in claims) / len(claims)
        near = sum(abs(claim) < 0.01 for claim in claims) / len(claims)
        yield f"| {name} | {median(claims):+.1%} | {large:.0%} | {near:.0%} |"
    sure = median(each.faster for each in found)
    yield ""
    yield (
        f"{len(found)} recipes; the plan is faster in {sure * 100:.0f} of 100 cases in the median."
    )


def large_claims(found: Iterable[Beside]) -> Iterator[str]:
    """What stays above `LARGE`, and what the recipe loses most by."""
    yield (
        "| recipe | its layout | the plan | predicted | expected | faster in | it loses most by | "
        "its own prediction is off by |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for each in sorted(found, key=lambda each: -each.expected):
        if each.expected > LARGE:
            run = each.run
            yield (
                f"| {run.model.name}, {run.layout.world_size} {run.cluster.gpu.name}, "
                f"{run.training.precision} | {run.layout.label} | {each.plan} | {each.claim:+.0%} "
                f"| {each.expected:+.0%} | {each.faster * 100:.0f} of 100 | {each.why} | "
                f"{each.own_error:+.0%} |"
            )


def _line(each: Beside) -> str:
    run = each.run
    return (
        f"{run.id} ({run.engine.name}) {run.layout.label} | {each.plan} | before {each.before:+.1%}"
        f" claim {each.claim:+.1%} expected {each.expected:+.1%} faster {each.faster:.0%} "
        f"| {each.why} | own {each.own_error:+.1%}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, help="recipes to print, without writing the tables")
    only = parser.parse_args().only
    found: list[Beside] = []
    for run in recipes()[:only]:
        if each := beside(run):
            found.append(each)
            print(_line(each), flush=True)
    print("\n".join(summary(found)))
    if only is None:
        text = "\n".join((*summary(found), "", *large_claims(found)))
        put(ROOT / "docs/accuracy_tables.md", "recipes", text)


if __name__ == "__main__":
    main()
