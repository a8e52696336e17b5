"""`plan --compare`: somebody's config, or another plan file, beside the plan that was found."""

from dataclasses import replace
from pathlib import Path

from meshplan.costmodels.layout import InvalidLayout
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.compare import (
    Comparison,
    Searched,
    Yours,
    compare,
    yours_of,
    yours_of_plan,
)
from meshplan.planner.answer.own_question import same_question, why_not_the_plan
from meshplan.planner.answer.question import Asked, BadQuestion
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Reading, UnreadableConfig
from meshplan.planner.check.check import case_of
from meshplan.planner.search.result import NoLayoutFits, SearchEnded


def yours_on(asked: Asked, beside: Reading | Plan, path: Path) -> Yours:
    """The config, or the plan file, on the question's cluster. Raises `BadQuestion`."""
    try:
        if isinstance(beside, Plan):
            return yours_of_plan(asked.question, str(path), case_of(beside))
        return yours_of(asked.question, asked.cluster_name, beside)
    except (InvalidLayout, MissingFacts, UnreadableConfig) as error:
        raise BadQuestion(f"--compare {path}: {error}") from None


def compared(
    asked: Asked,
    answer: Plan,
    yours: Yours,
    *,
    gpu_hour_price: float | None,
    time_limit_s: float | None,
) -> Comparison:
    """The config beside the best layout of its own question: the plan, unless it asks another.

    Raises `NoLayoutFits` and `SearchEnded` where that question has no answer.
    """
    own = same_question(asked.question, yours.case)
    if own is asked.question:
        ours, claim = case_at(own, answer.layout), _claim_of(answer)
        return compare(yours, ours, gpu_hour_price=gpu_hour_price, searched=claim)
    said = why_not_the_plan(asked.question, yours.case)
    try:
        result = solve(own, 1, time_limit_s)
    except SearchEnded as error:
        raise SearchEnded(f"--compare {yours.path}: {error} ({said})") from None
    except NoLayoutFits:
        raise NoLayoutFits(
            f"--compare {yours.path}: no layout fits for its question ({said})"
        ) from None
    best = result.solutions[0]
    claim = Searched(bound_s=result.bound_s, fastest_s=best.step_time_s)
    ours = case_at(own, best.layout)
    found = compare(yours, ours, gpu_hour_price=gpu_hour_price, searched=claim)
    shorter = f" (not proved: a step up to {result.gap:.1%} shorter may exist)"
    proved = "" if result.status == "OPTIMAL" else shorter
    note = f"{said}; so ours is the best layout for its question{proved}, not the plan above"
    return replace(found, notes=(note, *found.notes))


def _claim_of(answer: Plan) -> Searched | None:
    """What its search says; None of a plan without one."""
    if answer.search is None or answer.prediction is None:
        return None
    own_s, choice = answer.prediction.step_time_s, answer.choice
    fastest_s = own_s if choice is None else choice.fastest_step_time_s
    return Searched(bound_s=answer.search.bound_s, fastest_s=fastest_s)
