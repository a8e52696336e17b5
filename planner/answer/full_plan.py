"""The plan file with all that `meshplan plan` tells beside the layout.

Each finding is found apart from the others, on two processors where there are two; there most begin
while runners-up are looked for. What Ctrl-C leaves out is said; the layout and its proof are there
before.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.planner.answer import better_batch
from meshplan.planner.answer.answer import Chosen, case_at, chosen_plan
from meshplan.planner.answer.question import Asked
from meshplan.planner.answer.spare_memory import spare_memory
from meshplan.planner.case.plan_file import MeasuredRun, Plan
from meshplan.planner.case.resolve import Case
from meshplan.planner.search.progress import Fastest
from meshplan.planner.search.search import SearchResult
from meshplan.planner.search.second_core import Begun, done_beside

SHOWN_RUNS = 3  # of the nearest measured ones, in the plan file; `explain` shows more


class Beside:
    """What stands beside a plan. What its layout alone decides is begun on a second processor when
    the proof has ended, of the fastest layout, while runners-up are looked for: mostly it is the
    plan.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._of: Fastest | None = None
        self._begun = Begun[Any]()

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *error: object) -> None:
        self._begun.end()

    def begin(self, fastest: Fastest) -> None:
        """Begin with what stands beside this layout."""
        self._of, self._begun = fastest, Begun(*self._pieces(fastest))

    def found(self, chosen: Chosen) -> dict[str, Any]:
        """All of it, by its name in the plan file."""
        own = _as_fastest(chosen.plan)
        if self._of is None or self._of.layout != own.layout:
            self._begun.end()
            self.begin(own)
        reasons, runners_up = done_beside(chosen.reasons, chosen.runners_up)
        *batches, spare, runs = self._begun.done()
        return {
            "spare_memory": spare,
            "reasons": reasons,
            "evidence": runs,
            "runners_up": runners_up,
            "better_batch": better_batch.fastest(filter(None, batches)),
        }

    def _pieces(self, plan: Fastest) -> list[Callable[[], Any]]:
        """What mostly takes longest first."""
        question = self.asked.question
        return [
            *better_batch.tries(question, plan), partial(spare_memory, self.asked, plan),
            partial(_nearest_runs, case_at(question, plan.layout)),
        ]  # fmt: skip


def _as_fastest(plan: Plan) -> Fastest:
    assert plan.prediction is not None
    assert plan.search is not None
    return Fastest(plan.layout, plan.prediction.step_time_s, plan.search.status == "OPTIMAL")


def _nearest_runs(case: Case) -> tuple[MeasuredRun, ...]:
    """Imported where they are looked for: by another process, where there is one."""
    from meshplan.planner.runs.evidence import nearest_runs

    return nearest_runs(case, SHOWN_RUNS)


def full_plan(
    beside: Beside,
    result: SearchResult,
    *,
    robust: bool,
    top: int,
    left_out: Callable[[str], None],
) -> Plan:
    """`chosen_plan` with its runners-up, reasons, measured runs, batches nearby and what more
    memory would buy; `left_out` is told what of it Ctrl-C left out.
    """
    asked, notes = beside.asked, {"notes": beside.asked.notes}
    try:
        found = chosen_plan(asked, result, robust=robust, top=top)
    except KeyboardInterrupt:
        left_out("runners-up, a choice among ties, and all that stands beside the fastest layout")
        fastest = replace(result, solutions=result.solutions[:1])
        return chosen_plan(asked, fastest).plan.model_copy(update=notes)
    try:
        return found.plan.model_copy(update=notes | beside.found(found))
    except KeyboardInterrupt:
        left_out("reasons, measured runs, batches nearby and what more memory would buy")
        return found.plan.model_copy(update=notes | {"runners_up": found.runners_up()})
