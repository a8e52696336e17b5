"""Plans beside the recipes that NVIDIA published: what the plan claims, and what is to be expected.

    python -m benchmarks.search.recipes            writes the tables of docs/accuracy_tables.md
    python -m benchmarks.search.recipes --only 5   prints the first five recipes

A recipe is a run of Megatron-Bridge or NeMo in runs.csv (grades A and B, suites of NVIDIA's own:
`SUITES`), the last release of several; its question is its model, GPUs, batch, sequence, precision
and engine. Both sides are predicted, so that they share what is wrong with both; how far the
recipe's own prediction is off stands beside, since a recipe that is predicted too slow is beaten
easily. Both run what the row says of the software: graphs, hidden exchanges, and the library that
brings tokens to experts, which the plan may not exchange (dropped tokens need Megatron's own).

    claim     predicted step of the recipe / predicted step of the plan - 1
    expected  exp(b ln(1 + claim)) - 1: what pairs of measured runs leave of a predicted difference,
              corrected for the choice of the plan among thousands (`hardware_profiles.
              layout_ratios` has the equations)
    faster    P of the same: in how many of 100 cases the plan is really faster
    before    the claim of the fastest layout that fits the profile's margin, uncorrected, as it was
              until 2026-11-24
    any       the claim with whichever of the engine's libraries

"It loses most by" names the two parts of the step in which the recipe takes most time more; what
is left of a large claim is asked again with single decisions as in the recipe (`decisions`). "Made
by" names the one that leaves least, and beside it is what pairs of measured runs of other sources
left of a predicted difference in that direction (`benchmarks.accuracy.layout_ratios`). The second
table has what NVIDIA's own changes of a recipe brought, from one release to the next.
"""

import argparse
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from benchmarks.accuracy.layout_ratios import FAR, Timings, direction, timings
from benchmarks.pages import TABLES, put
from meshplan.costmodels.layout import Layout, differing_axes
from meshplan.costmodels.units import counted, format_seconds
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.errors.layout_ratios import (
    expected_slower,
    faster_probability,
    kept,
)
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.explain import PART_NAMES, lost_by, priced
from meshplan.planner.answer.ties import chosen
from meshplan.planner.case.memory_limit import with_usual_headroom
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import parse_pins

SUITES = ("mbridge", "nemo")
LARGE = 0.10
TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A recipe and the plan of its question.

    before, claim  of the fastest in the profile's margin, and of the plan, of which `expected`
    any_library    the claim with any library; None where nothing fits
    own_error      predicted / measured step of the recipe - 1
    left           of a large claim, with each decision as in the recipe
    made_by        the decision that leaves least, and what the plan has more of there, or less
    """

    run: Run
    plan: str
    before: float
    claim: float
    expected: float
    faster: float
    own_error: float
    why: str
    any_library: float | None = None
    left: Mapping[str, float | None] = field(default_factory=dict)
    made_by: "MadeBy | None" = None


class MadeBy(NamedTuple):
    """What makes a claim: a decision of the recipe, and the axis and direction of the plan's."""

    decision: str
    axis: str = ""
    sign: int = 0


def recipes() -> list[Run]:
    """The last published run of each question."""
    return [runs[-1] for runs in releases()]


def releases() -> list[list[Run]]:
    """The published runs of each question, the last release last."""
    found: dict[object, dict[str, tuple[list[int], Run]]] = {}
    for cells in read_runs(BUILT_IN):
        if cells["suite"] not in SUITES or cells["grade"] not in ("A", "B"):
            continue
        try:
            run = run_of(cells)
        except SkippedRow:
            continue
        if not run.measured.step_time_s or run.training.lora:
            continue
        release = _release(cells["framework"])
        found.setdefault(run.group[1:-1], {}).setdefault(str(release), (release, run))
    ordered = (sorted(runs.values(), key=lambda each: each[0]) for runs in found.values())
    return [[run for _, run in runs] for runs in ordered]


def _release(framework: str) -> list[int]:
    """The last number of the framework's words, such as 26.06 of "megatron-bridge (NeMo 26.06)"."""
    numbers = re.findall(r"\d+(?:\.\d+)+", framework)
    return [int(part) for part in numbers[-1].split(".")] if numbers else []


def as_published(engine: Engine) -> Engine:
    """Without a choice of what brings tokens to experts."""
    none = {"dispatchers": (), "usual_dispatchers": ()}
    return engine.model_copy(update={"legality": engine.legality.model_copy(update=none)})


def question_of(run: Run) -> Question:
    """What the recipe answers, on the software that it ran."""
    return Question(
        model=run.model, training=run.training, gpus=run.layout.world_size, cluster=run.cluster,
        engine=as_published(run.engine),
    )  # fmt: skip


def decisions(la: Layout) -> dict[str, dict[str, str]]:
    """The pins of each decision of a recipe; the last leaves the cut into stages alone open."""
    modes = {"recompute": "none" if la.recompute == "none" else f"none,{la.recompute}"}
    if la.recompute == "selective":
        modes |= {"recompute_modules": ",".join(la.selective_modules)}
    pipeline = {
        "pipeline_parallel": str(la.pipeline_parallel), "virtual_stages": str(la.virtual_stages)
    }  # fmt: skip
    found = {
        "ep": {"expert_parallel": str(la.expert_parallel)},
        "micro-batch": {"micro_batch_size": str(la.micro_batch_size)},
        "pipeline": pipeline,
        "recomputation": modes,
    }
    others = ("tensor_parallel", "context_parallel", "zero_stage", "expert_tensor_parallel")
    every = {name: str(getattr(la, name)) for name in others}
    for pins in found.values():
        every |= pins
    return {**found, "degrees and recomputation": every}


AXES = {
    "ep": "expert_parallel", "micro-batch": "micro_batch_size", "pipeline": "pipeline_parallel"
}  # fmt: skip
CUT = "cut into stages"


def made_by(
    claim: float, left: Mapping[str, float | None], recipe: Layout, plan: Layout
) -> MadeBy | None:
    """The decision that leaves least of a claim; the cut where all others leave most of it."""
    *single, (_, whole) = left.items()
    if whole is not None and whole > claim / 2:
        return MadeBy(CUT)
    known = {name: each for name, each in single if each is not None}
    if not known:
        return None
    name = min(known, key=known.__getitem__)
    if name not in AXES:
        return MadeBy(name)
    more = getattr(plan, AXES[name]) - getattr(recipe, AXES[name])
    return MadeBy(name, AXES[name], (more > 0) - (more < 0))


def claim_of(recipe_s: float, question: Question, pins: Mapping[str, str]) -> float | None:
    """Over the recipe, of the fastest layout under `pins`; None where nothing fits."""
    try:
        found = solve(replace(question, pins=parse_pins(dict(pins))), 1)
    except NoLayoutFits:
        return None
    return recipe_s / found.solutions[0].step_time_s - 1


def beside(run: Run) -> Beside | None:
    """The plan of the recipe's question; None where nothing fits."""
    question = question_of(run)
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
    axes, claim = len(differing_axes(run.layout, plan.case.layout)), recipe_s / plan_s - 1
    pins = decisions(run.layout) if claim > LARGE else {}
    left = {name: claim_of(recipe_s, safe, each) for name, each in pins.items()}
    lost = [(name, s) for name, s in lost_by(plan.parts, recipe.parts).items() if s > 0][:2]
    return Beside(
        run=run,
        plan=plan.case.layout.label,
        before=recipe_s / fastest_s - 1,
        claim=claim,
        expected=expected_slower(recipe_s / plan_s),
        faster=faster_probability(recipe_s / plan_s, axes),
        own_error=recipe_s / (run.measured.step_time_s or math.nan) - 1,
        why=", ".join(f"{PART_NAMES[name]} {format_seconds(s)}" for name, s in lost),
        any_library=claim_of(recipe_s, replace(safe, engine=run.engine), {}),
        left=left,
        made_by=made_by(claim, left, run.layout, plan.case.layout) if left else None,
    )


def summary(found: Sequence[Beside]) -> Iterator[str]:
    """Claims before and after: medians, and the share of large ones."""
    yield "| claim over the recipe | median | above 10 % | within 1 % |"
    yield "|---|---|---|---|"
    ways: dict[str, list[float]] = {
        "before: the fastest in the profile's margin, as predicted": [e.before for e in found],
        "the plan: fits with 85 %, chosen among ties, as predicted": [e.claim for e in found],
        "the plan, expected: corrected for the choice": [e.expected for e in found],
        "with any library between tokens and experts": [
            e.claim if e.any_library is None else e.any_library for e in found
        ],
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


def large_claims(found: Iterable[Beside], known: Sequence[Timings] = ()) -> Iterator[str]:
    """What stays above `LARGE`, what the recipe loses most by, which decision makes it, and what
    the `known` pairs say of such a change.
    """
    large = sorted((e for e in found if e.claim > LARGE), key=lambda each: -each.claim)
    names = list(large[0].left) if large else []
    yield (
        "| recipe | its layout | the plan | predicted | expected | faster in | made by | left of "
        "such differences where measured | it loses most by | "
        f"{' | '.join(f'left with its {name}' for name in names)} | its own prediction is off by |"
    )
    yield f"|---|---|---|---|---|---|---|---|---|{'---|' * len(names)}---|"
    for each in large:
        run = each.run
        left = " | ".join(
            "nothing fits" if claim is None else f"{claim:+.0%}" for claim in each.left.values()
        )
        yield (
            f"| {run.model.name}, {run.layout.world_size} {run.cluster.gpu.name}, "
            f"{run.training.precision} | {run.layout.label} | {each.plan} | {each.claim:+.0%} "
            f"| {each.expected:+.0%} | {each.faster * 100:.0f} of 100 "
            f"| {_made(each.made_by, known)} | {each.why} | {left} | "
            f"{each.own_error:+.0%} |"
        )


def _made(by: MadeBy | None, known: Sequence[Timings]) -> str:
    """Both columns: the decision, and what is left where measured, with pairs and sources."""
    if by is None:
        return "no single decision | "
    way = {1: ": the plan has more", -1: ": the plan has less"}.get(by.sign, "")
    made = f"its {by.decision}{way}"
    pairs = direction(known, by.axis, by.sign) if by.sign else []
    if not pairs:
        return f"{made} | no pair"
    sources = counted(len({pair.suite for pair in pairs}), "source")
    return f"{made} | {kept(pairs):.2f} of it, {counted(len(pairs), 'pair')}, {sources}"


def own_changes(every: Iterable[Sequence[Run]]) -> Iterator[str]:
    """Where one release runs a question in another layout than the one before."""
    yield "| recipe | before | after | shorter by, as predicted | as measured |"
    yield "|---|---|---|---|---|"
    for runs in every:
        for old, new in pairwise(runs):
            if not differing_axes(old.layout, new.layout):
                continue
            each = [_seconds(run) for run in (old, new)]
            predicted, measured = (before / after - 1 for before, after in zip(*each, strict=True))
            yield (
                f"| {new.model.name}, {new.layout.world_size} {new.cluster.gpu.name}, "
                f"{new.training.precision} | {old.layout.label} | {new.layout.label} | "
                f"{predicted:+.0%} | {measured:+.0%} |"
            )


def _seconds(run: Run) -> tuple[float, float]:
    """Of a step, predicted and measured."""
    predicted = priced(case_at(question_of(run), run.layout)).prediction.step_time_s
    return predicted, run.measured.step_time_s or math.nan


def _line(each: Beside) -> str:
    run = each.run
    return (
        f"{run.id} ({run.engine.name}) {run.layout.label} | {each.plan} | before {each.before:+.1%}"
        f" claim {each.claim:+.1%} expected {each.expected:+.1%} faster {each.faster:.0%} "
        f"any {each.any_library or math.nan:+.1%} left {dict(each.left)} | {each.why} "
        f"| own {each.own_error:+.1%}"
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
        known = [each for each in timings(FAR) if each.faster.run.suite not in SUITES]
        parts = summary(found), large_claims(found, known), own_changes(releases())
        text = "\n\n".join("\n".join(part) for part in parts)
        put(TABLES, "recipes", text)


if __name__ == "__main__":
    main()
