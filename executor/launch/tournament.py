"""Several layouts of a plan, run one after the other: the measured fastest wins."""

from collections.abc import Callable
from dataclasses import dataclass

from meshplan.executor.launch.preflight import label
from meshplan.executor.launch.results import RunResult
from meshplan.planner.case.plan_file import Plan


@dataclass(frozen=True, slots=True)
class Contender:
    """A layout of a tournament; `predicted_s` is its step time as the plan says it."""

    plan: Plan
    predicted_s: float | None


def contenders(plan: Plan, top: int) -> tuple[Contender, ...]:
    """The plan and its first `top` - 1 runners-up; their own predictions are not in the plan."""
    chosen = Contender(plan, plan.prediction.step_time_s if plan.prediction else None)
    others = (
        Contender(
            plan.model_copy(
                update={
                    "layout": other.layout, "prediction": None, "search": None, "runners_up": (),
                    "reasons": (f"runner-up of {label(plan)}",),
                }
            ),
            other.step_time_s,
        )
        for other in plan.runners_up[: top - 1]
    )  # fmt: skip
    return (chosen, *others)


def tournament(
    plan: Plan, top: int, run: Callable[[Plan, int], RunResult]
) -> tuple[tuple[Contender, RunResult], ...]:
    """Run every contender; the measured fastest comes first."""
    entered = contenders(plan, top)
    runs = [(each, run(each.plan, number)) for number, each in enumerate(entered, start=1)]
    return tuple(sorted(runs, key=lambda pair: pair[1].step_time_s or float("inf")))
