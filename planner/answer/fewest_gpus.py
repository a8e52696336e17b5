"""The fewest GPUs that hold a step, and what fills them: of the question alone, not of the plan.

savings  bytes that one change takes off the fullest rank: the changes of `planner.check.fixes`, and
         an optimizer that keeps its moments in 8 bits or runs on the host
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from meshplan.costmodels.units import GIB
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.explain import needed_bytes, runs
from meshplan.planner.case.plan_file import Prediction
from meshplan.planner.case.predict import predicted, stage_memory, step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.check.fixes import changes
from meshplan.planner.search.footprint import fewest
from meshplan.planner.search.rows.priced_space import Question

LEAST_SAVING = 0.05 * GIB
SIZES_TRIED = "tried: every number within a node, then whole nodes"
"""By `fewest`."""


class FewestGpus(NamedTuple):
    """How many, of which layout, and what each single change would free of the fullest rank.

    unsettled  fewer GPUs of which it is not known whether they hold a step
    """

    gpus: int
    label: str
    prediction: Prediction
    savings: tuple[tuple[str, float], ...]
    unsettled: tuple[int, ...] = ()


class NoFewer(NamedTuple):
    """No number of GPUs that was tried was found to hold a step: the question's own is none of
    them, or holds one in a layout that the search finds alone.

    unsettled  fewer GPUs of which it is not known whether they hold a step
    """

    unsettled: tuple[int, ...] = ()


def fewest_gpus(question: Question) -> FewestGpus | NoFewer:
    """The fewest GPUs of a question that hold a step."""
    found, unsettled = fewest(question)
    if found is None:
        return NoFewer(tuple(gpus for gpus in unsettled if gpus < question.gpus))
    case = case_at(replace(question, gpus=found.gpus), found.layout)
    prediction = predicted(case)
    freed, label = tuple(savings(case, prediction)), found.layout.full_label
    return FewestGpus(found.gpus, label, prediction, freed, found.unsettled)


def savings(case: Case, prediction: Prediction) -> Iterator[tuple[str, float]]:
    """Each single change that lowers the fullest rank's peak, and by how many bytes."""
    before = needed_bytes(prediction.memory)
    cases = [(fix.text, replace(case, layout=fix.layout)) for fix in changes(case)]
    if case.training.optimizer == "adamw" and "adamw8bit" in case.engine.legality.optimizers:
        training = replace(case.training, optimizer="adamw8bit")
        cases.append(("8-bit optimizer moments", replace(case, training=training)))
    if not case.layout.optimizer_offload:
        layout = replace(case.layout, optimizer_offload=1.0)
        cases.append(("the optimizer on the host", replace(case, layout=layout)))
    for text, changed in cases:
        if runs(changed):
            freed = before - needed_bytes(stage_memory(step_model_of(changed)))
            if freed > LEAST_SAVING:
                yield text, freed
