"""The plan file with all that `meshplan plan` tells beside the layout.

Each finding is found apart from the others, on two processors where there are two; there most begin
while runners-up are looked for. What Ctrl-C leaves out is said; the layout and its proof are there
before.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.planner.answer import better_batch
from meshplan.planner.answer.answer import Chosen, case_at, chosen_plan, tried
from meshplan.planner.answer.explain import timed
from meshplan.planner.answer.question import Asked
from meshplan.planner.answer.spare_memory import spare_memory
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.plan_findings import MeasuredRun
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.search_report import ROUNDING
from meshplan.planner.processes.free_pages import give_back_freed
from meshplan.planner.processes.second_core import Begun, done_beside
from meshplan.planner.search.progress import Fastest
from meshplan.planner.search.result import SearchResult

SAME_STEP = 1 - 1e-9  # but for rounding
SHOWN_RUNS = 3  # of the nearest measured ones, in the plan file; `explain` shows more


class Beside:
    """What a plan file says beside the layout: batches nearby, spare memory, runs, one change each.

    A second processor begins with the fastest layout when the proof has ended, while runners-up are
    looked for. If a tie of that layout becomes the plan, what depends on the layout is found anew,
    and the batches nearby stay compared with the fastest. If a faster layout was found meanwhile,
    everything is found anew. After the deadline, of `time.perf_counter`, no batch nearby is begun,
    and no search of spare memory goes on.
    """

    def __init__(self, asked: Asked, deadline: float | None = None) -> None:
        self.asked, self.deadline = asked, deadline
        self._of: Fastest | None = None
        self._begun = Begun[Any]()

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *error: object) -> None:
        self._begun.end()

    def begin(self, fastest: Fastest) -> None:
        """Start everything for this layout, what usually takes longest first, but for what the
        search waits for.
        """
        late = self.deadline is not None and time.perf_counter() >= self.deadline
        batches = [] if late else better_batch.tries(self.asked.question, fastest)
        pieces = *batches, *self._of_layout(fastest)
        self._of, self._begun = fastest, Begun(*pieces, first=fastest.later)

    def found(self, chosen: Chosen) -> dict[str, Any]:
        """Everything beside the chosen layout, by its name in the plan file."""
        own = as_fastest(chosen.plan)
        if self._of is None or own.step_s < self._of.step_s * SAME_STEP:
            self._begun.end()
            self.begin(own)
        assert self._of is not None
        anew = self._of_layout(own) if self._of.layout != own.layout else []
        runners_up, *others = done_beside(chosen.runners_up, *anew)
        *batches, spare, runs, changes = self._begun.done()
        spare, runs, changes = others or (spare, runs, changes)
        return {
            "spare_memory": spare,
            "reasons": chosen.reasons(changes),
            "evidence": runs,
            "runners_up": runners_up,
            "better_batch": next(iter(batches), None),
        }

    def _of_layout(self, plan: Fastest) -> list[Callable[[], Any]]:
        case = case_at(self.asked.question, plan.layout)
        return [
            partial(spare_memory, self.asked, plan, self.deadline),
            partial(_nearest_runs, case),
            lambda: tried(timed(case)),
        ]


def as_fastest(plan: Plan) -> Fastest:
    """The layout of a plan that a search found; of a tie that is slower nothing is proved."""
    assert plan.prediction is not None
    assert plan.search is not None
    tied = plan.choice is not None and plan.choice.slower_fraction > 0
    proved = plan.search.listed_gap < ROUNDING and not tied
    return Fastest(plan.layout, plan.prediction.step_time_s, proved)


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
        give_back_freed(cycles=True)
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
