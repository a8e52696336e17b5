"""Questions that differ from a plan's by one change each, answered like the cells of a sweep."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshplan.costmodels.units import format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.question import Arguments, Asked
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.sweep.cells import Answer, Cell
from meshplan.planner.whatif.changes import Change, changed

Answers = Callable[[Sequence[Cell]], Sequence[Answer | None]]
"""The answers of cells, None of those that Ctrl-C left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One question with its answer; `answer` is None where Ctrl-C came first."""

    change: Change
    asked: Asked
    answer: Answer | None

    @property
    def plan(self) -> Plan | None:
        """The plan, None where there is none."""
        return self.answer.plan if self.answer else None

    @property
    def refusal(self) -> str:
        """Why there is no plan, with what the nearest miss lacks; empty where there is one."""
        return "" if self.plan or self.answer is None else self.answer.reason

    @property
    def verdict(self) -> str:
        """What is said in place of a plan."""
        return self.answer.verdict if self.answer else "not planned"

    @property
    def prediction(self) -> Prediction | None:
        """What its plan predicts."""
        return self.plan.prediction if self.plan else None

    @property
    def step_time_s(self) -> float | None:
        """Of the proved plan."""
        return self.prediction.step_time_s if self.prediction else None

    def same_tokens_s(self, tokens: int) -> float | None:
        """Seconds for as many tokens as a step of another question has; the step time itself where
        it has as many.
        """
        step_s = self.step_time_s
        return None if step_s is None else step_s * tokens / self.tokens

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.asked.question.training.global_batch_tokens


def ask_each(asked: Asked, changes: Sequence[Change], answers: Answers) -> list[Asking]:
    """The question with each of `changes`, answered; raises `BadQuestion` before any search."""
    questions = [changed(asked, change) for change in changes]
    found = answers([_cell(question, i) for i, question in enumerate(questions)])
    return [
        Asking(change=change, asked=question, answer=answer)
        for change, question, answer in zip(changes, questions, found, strict=True)
    ]


def beside_file(before: Asking, plan: Plan) -> Asking:
    """The plan's question asked again, with a note where its file has another layout: chosen by
    `--robust` or `--top 1`, found within a time limit or by another version, or edited.
    """
    if before.plan is None or before.plan.layout == plan.layout:
        return before
    own, now = plan.layout.full_label, before.plan.layout.full_label
    step = f" ({format_seconds(plan.prediction.step_time_s)})" if plan.prediction else ""
    note = (
        f"note: the file's own layout is {own}{step}; changes are held against what its question "
        f"is answered with now, {f'{now} with other stages' if now == own else now}"
    )
    asked = replace(before.asked, notes=(*before.asked.notes, note))
    return replace(before, asked=asked)


def _cell(asked: Asked, line: int) -> Cell:
    q = asked.question
    said = Arguments(model=q.model.name, gpus=q.gpus, cluster=asked.cluster_name)
    return Cell(line=line, cluster_index=0, arguments=said, asked=asked)
