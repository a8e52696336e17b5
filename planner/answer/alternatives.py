"""Other layouts of a plan's question, timed by the event simulation: what a scatter of time against
memory is drawn of.

They are the plan, its runners-up, and what one notch on each axis makes of each of these
(`planner.answer.explain`, `planner.check.fixes`): what a reader would try, not a sample of the
space. The search has proved more than these.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.explain import needed_bytes, notches, runs
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.resolve import Case

MOST_ALTERNATIVES = 48
MOST_ACTIONS = 10_000
"""Of the schedules that are new to the simulation, together: some 10 us each, so that the page of a
deep pipeline stays fast. A layout whose schedule is known costs a tenth.
"""
MOST_STAGES = 1_600
"""Virtual stages of all of them: each has its own memory to be added up."""
FAR = 1.6  # times the memory of the GPU: beyond it nobody tries


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One layout; `fits` where the fullest rank needs no more than its GPU has."""

    layout: Layout
    step_time_s: float
    needed_bytes: float
    fits: bool

    @property
    def family(self) -> str:
        """What layouts are called alike by: their tensor- and pipeline-parallel degrees."""
        return f"tp{self.layout.tensor_parallel} pp{self.layout.pipeline_parallel}"


def alternatives_of(plan: Plan, case: Case) -> tuple[Alternative, ...]:
    """The plan first, then the others, each once."""
    found: list[Alternative] = []
    known: set[tuple[object, ...]] = set()
    actions_left, stages_left = MOST_ACTIONS, MOST_STAGES
    for index, layout in enumerate(_layouts(plan, case)):
        moved = replace(case, layout=layout)
        always, schedule = index <= len(plan.runners_up), _schedule(moved)
        actions = 0 if always or schedule in known else _actions(moved)
        stages_left -= len(layout.stages)
        if not always and (stages_left < 0 or len(found) == MOST_ALTERNATIVES):
            break
        model = step_model_of(moved)
        needed = needed_bytes(stage_memory(model))
        if always or (actions <= actions_left and needed <= FAR * case.cluster.capacity_bytes):
            actions_left -= actions
            known.add(schedule)
            found.append(_timed(model, needed))
    return tuple(found)


def _layouts(plan: Plan, case: Case) -> Iterator[Layout]:
    first = [plan.layout, *(other.layout for other in plan.runners_up)]
    seen = set(first)
    yield from first
    for layout in first:
        for fix in notches(replace(case, layout=layout)):
            if fix.layout not in seen and runs(replace(case, layout=fix.layout)):
                seen.add(fix.layout)
                yield fix.layout


def _schedule(case: Case) -> tuple[object, ...]:
    """What the order of a step depends on."""
    la = case.layout
    m = la.num_micro_batches(case.training)
    return la.schedule, la.pipeline_parallel, la.virtual_stages, m


def _actions(case: Case) -> int:
    la = case.layout
    per_micro_batch = 2 * la.pipeline_parallel * la.virtual_stages
    return per_micro_batch * la.num_micro_batches(case.training)


def _timed(model: StepModel, needed: float) -> Alternative:
    return Alternative(
        layout=model.layout, step_time_s=model.time().step_time_s,
        needed_bytes=needed, fits=needed <= model.setting.cluster.fillable_bytes,
    )  # fmt: skip
