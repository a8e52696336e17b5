"""The plan file with all that `meshplan plan` tells beside the layout.

Each finding is found apart from the others, on two processors where there are two. What Ctrl-C
leaves out is said; the layout and its proof are there before.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from meshplan.planner.answer import better_batch
from meshplan.planner.answer.answer import Chosen, case_at, chosen_plan
from meshplan.planner.answer.question import Asked
from meshplan.planner.answer.spare_memory import spare_memory
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.plan_findings import BetterBatch
from meshplan.planner.runs.evidence import nearest_runs
from meshplan.planner.search.search import SearchResult
from meshplan.planner.search.second_core import done_beside

SHOWN_RUNS = 3  # of the nearest measured ones, in the plan file; `explain` shows more


def full_plan(
    asked: Asked,
    result: SearchResult,
    *,
    robust: bool,
    top: int,
    left_out: Callable[[str], None],
) -> Plan:
    """`chosen_plan` with its runners-up, reasons, measured runs, batches nearby and what more
    memory would buy; `left_out` is told what of it Ctrl-C left out.
    """
    notes = {"notes": asked.notes}
    try:
        found = chosen_plan(asked, result, robust=robust, top=top)
    except KeyboardInterrupt:
        left_out("runners-up, a choice among ties, and all that stands beside the fastest layout")
        fastest = replace(result, solutions=result.solutions[:1])
        return chosen_plan(asked, fastest).plan.model_copy(update=notes)
    try:
        return found.plan.model_copy(update=notes | _beside(asked, found))
    except KeyboardInterrupt:
        left_out("reasons, measured runs, batches nearby and what more memory would buy")
        return found.plan.model_copy(update=notes | {"runners_up": found.runners_up()})


def _beside(asked: Asked, found: Chosen) -> dict[str, Any]:
    case = case_at(asked.question, found.plan.layout)
    *batches, spare, runs, reasons, runners = done_beside(  # what mostly takes longest first
        *better_batch.tries(asked.question, found.plan),
        partial(spare_memory, asked, found.plan), partial(nearest_runs, case, SHOWN_RUNS),
        found.reasons, found.runners_up,
    )  # fmt: skip
    return {
        "spare_memory": spare,
        "reasons": reasons,
        "evidence": runs,
        "runners_up": runners,
        "better_batch": better_batch.fastest(
            each for each in batches if isinstance(each, BetterBatch)
        ),
    }
