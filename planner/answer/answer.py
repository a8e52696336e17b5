"""From a search's result to a plan file: the best layout under the event simulation, and why."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from meshplan.costmodels.layout import Layout, differing_axes
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.step.step_models import StepModels
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.layout_ratios import expected_slower, faster_probability
from meshplan.planner.answer.explain import (
    AS_FAST,
    MovedAxis,
    PricedLayout,
    TimedLayout,
    alternatives,
    lost_by,
    needed_bytes,
    priced,
    without_adapters,
)
from meshplan.planner.answer.question import Asked
from meshplan.planner.answer.ties import chosen
from meshplan.planner.case.host_memory import host_use
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel, RunnerUp
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.search_report import OpenKind, SearchReport
from meshplan.planner.check.verdicts import fullest
from meshplan.planner.search.both_roundings import Simulation, search_exactly
from meshplan.planner.search.found import KIND_AXES, Kind, kind_of_layout
from meshplan.planner.search.open_kinds import of_shown
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import SearchResult, Solution
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.words import UNLISTED, space_words

MOST_REASONS = 8
MOST_TIMED = 7  # changes that are timed: a deep pipeline takes a tenth of a second to play


def case_at(question: Question, layout: Layout) -> Case:
    """`layout` as an answer to `question`."""
    q = question
    return Case(
        model=q.model, layout=layout, training=q.training, cluster=q.cluster, engine=q.engine
    )


def solve(
    question: Question,
    top: int,
    time_limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """The `top` best layouts, ordered by simulated step time; raises `NoLayoutFits`."""
    return search_exactly(
        question, simulation_of(question), k=top, time_limit_s=time_limit_s, progress=progress
    )


def simulated_s(case: Case) -> float:
    """The step time that the event simulation gives; infinite where it finds that a rank does not
    fit after all (the closed form knows less of what a zero-bubble pass holds, or the host).
    """
    return _played_s(step_model_of(case))


def simulation_of(question: Question) -> Simulation:
    """`simulated_s` of any number of layouts of one question."""
    q = question
    models = StepModels(Setting.fitted(q.model, q.training, q.cluster, q.engine))
    return lambda layout, more_bytes=0.0: _played_s(models.of(layout), more_bytes)


def _played_s(model: StepModel, more_bytes: float = 0.0) -> float:
    """The step where a rank may fill `more_bytes` than a plan may."""
    memory, cluster = stage_memory(model), model.setting.cluster
    host = host_use((rank.host for rank in memory), cluster, model.layout.world_size)
    too_full = needed_bytes(memory) > cluster.fillable_bytes + more_bytes
    if too_full or host.lacking_bytes > 0:
        return math.inf
    return model.time().step_time_s


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan without its runners-up and reasons, which take time to price.

    others    the runners-up, the fastest first
    found     what the search says of each
    """

    plan: Plan
    priced: PricedLayout
    others: Sequence[Case]
    found: Sequence[Solution]

    def runners_up(self) -> tuple[RunnerUp, ...]:
        """What each loses by."""
        return tuple(
            _runner_up(self.plan.layout, self.priced, case, found.kind_bound_s)
            for case, found in zip(self.others, self.found, strict=True)
        )

    def reasons(self, tried: "Tried | None" = None) -> tuple[str, ...]:
        """Why not a little different; `tried` is what changes of the plan do, if that is known."""
        bound_s = self.plan.search.bound_s if self.plan.search else 0.0
        others = tuple((each.layout, each.step_time_s) for each in self.found)
        return reasons(self.priced, bound_s, others, tried)


def plan_of(asked: Asked, result: SearchResult) -> Plan:
    """The plan file of `chosen_plan`."""
    found = chosen_plan(asked, result)
    update = {"runners_up": found.runners_up(), "reasons": found.reasons()}
    return found.plan.model_copy(update=update)


def chosen_plan(
    asked: Asked, result: SearchResult, *, robust: bool = False, top: int | None = None
) -> Chosen:
    """The plan of the best solution, the others as runners-up.

    The fastest, or of those that measured runs do not tell apart from it the one that loses least
    where the figures are off (`planner.answer.ties`); `robust`: of all. At most `top` in all, the
    fastest among them.
    """
    q = asked.question
    at, choice = chosen(q, result.solutions, robust=robust)
    others = [*result.solutions[:at], *result.solutions[at + 1 :]]
    others = others if top is None else others[: top - 1]
    result = of_shown(result, [result.solutions[at], *others])
    best, *cases = (case_at(q, each.layout) for each in (result.solutions[at], *others))
    own = priced(best)
    sets = recompute_sets(q.setting)
    words = space_words(q.setting, q.gpus, q.pins, sets, result.cuts, result.all_degrees)
    words = (*words, *[UNLISTED] * (not result.whole_space))
    plan = Plan(
        model=PlanModel.of(q.model.name, asked.model_config),
        cluster=PlanCluster(name=asked.cluster_name, gpus=q.gpus, sha256=asked.cluster_sha256),
        training=q.training,
        engine=q.engine.name,
        layout=best.layout,
        prediction=own.prediction,
        search=report_of(result, words),
        learned=q.engine.learned,
        pins={axis: pin.text for axis, pin in q.pins.axes.items()},
        choice=choice,
    )
    return Chosen(plan, own, cases, others)


def report_of(result: SearchResult, space: tuple[str, ...]) -> SearchReport:
    """How the search ended, as the plan file states it."""
    own: dict[str, Any] = {"space": space, "wall_s": round(result.wall_s, 3)}
    own["every_cut_bound_s"] = None
    own["open_kinds"] = _open_kinds(result.open_kinds)
    copied = SearchReport.model_fields.keys() - own
    return SearchReport(**own, **{name: getattr(result, name) for name in copied})


def _open_kinds(found: Sequence[tuple[Kind, float]] | None) -> tuple[OpenKind, ...] | None:
    if found is None:
        return None
    degrees = ((dict(zip(KIND_AXES, kind, strict=True)), bound_s) for kind, bound_s in found)
    return tuple(OpenKind(**each, bound_s=bound_s) for each, bound_s in degrees)


def _runner_up(
    layout: Layout, plan: PricedLayout, case: Case, kind_bound_s: float | None
) -> RunnerUp:
    other = priced(case)
    slower = other.prediction.step_time_s / plan.prediction.step_time_s
    axes = differing_axes(layout, case.layout)
    return RunnerUp(
        layout=case.layout,
        step_time_s=other.prediction.step_time_s,
        reserved_bytes=fullest(other.prediction)[1].reserved,
        lost_by=lost_by(plan.parts, other.parts),
        faster_probability=round(faster_probability(slower, len(axes)), 3),
        expected_slower=round(expected_slower(slower), 4),
        kind_bound_s=kind_bound_s,
    )


OUTSIDE = " (not in the space that was searched: a pin or what the space leaves out excludes it)"


class Tried(NamedTuple):
    """What one change each does to a layout, as far as that is looked at; and what training all
    weights does, "" where it is no faster.
    """

    moved: tuple[MovedAxis, ...]
    all_weights: str


def tried(plan: TimedLayout) -> Tried:
    """Changes of a layout, which depend on it alone."""
    return Tried(tuple(_until(alternatives(plan), MOST_TIMED)), without_adapters(plan))


def reasons(
    plan: PricedLayout,
    bound_s: float = 0.0,
    others: Sequence[tuple[Layout, float]] = (),
    known: Tried | None = None,
) -> tuple[str, ...]:
    """One change each: training all weights where that is faster, the changes nearest to being
    better, then those that do not fit. What takes less than `bound_s`, below which the search
    has proved that its space holds nothing, is said to be outside; where a change leads to the
    degrees of one of `others`, the runners-up with their steps, what that takes is said too. What
    changes do is found if it is not `known`.
    """
    found, all_weights = known or tried(plan.timed)
    timed = sorted((c for c in found if c.slower is not None), key=lambda c: c.slower or 0.0)
    misfits = [c for c in found if c.lacks_bytes is not None]
    kept = (*timed[: MOST_REASONS - min(2, len(misfits))], *misfits)[:MOST_REASONS]
    below = bound_s / plan.prediction.step_time_s - 1 - AS_FAST
    outside = [OUTSIDE * (c.slower is not None and c.slower < below) for c in kept]
    told = [
        f"{c.fix.text}: {c.verdict}{o}{_as_runner_up(c, plan, others)}"
        for c, o in zip(kept, outside, strict=True)
    ]
    return (*filter(None, [all_weights]), *told)[:MOST_REASONS]


def _as_runner_up(
    moved: MovedAxis, plan: PricedLayout, others: Sequence[tuple[Layout, float]]
) -> str:
    """What the degrees that a change leads to take with other settings too, where that is less."""
    kind = kind_of_layout(moved.fix.layout)
    if kind == kind_of_layout(plan.case.layout):
        return ""
    for layout, step_s in others:
        slower = step_s / plan.prediction.step_time_s - 1
        less = moved.slower is None or slower < moved.slower - AS_FAST
        if less and kind_of_layout(layout) == kind:
            return f"; with other settings too, the runner-up {layout.full_label}: {slower:+.1%}"
    return ""


def _until(found: Iterator[MovedAxis], most_timed: int) -> Iterator[MovedAxis]:
    """Changes up to the one that makes `most_timed` of them timed."""
    for change in found:
        yield change
        most_timed -= change.slower is not None
        if not most_timed:
            return
