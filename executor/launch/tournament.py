"""Several layouts of a plan, run one after the other: the measured fastest wins.

All run a few steps, the faster half of them four times as many, and so on; the last two run all
that were asked for (successive halving). Where that would be no fewer steps in all, warm-up of each
start included, everybody runs all of them at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

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
                    "reasons": (f"runner-up of {plan.layout.label}",),
                }
            ),
            other.step_time_s,
        )
        for other in plan.runners_up[: top - 1]
    )  # fmt: skip
    return (chosen, *others)


LEAST_STEPS = 3  # of which a median is taken
FINALISTS = 2
FEWER = 4  # times fewer steps in each heat before the last


@dataclass(frozen=True, slots=True)
class Heat:
    """The `entered` best so far run `steps` each."""

    entered: int
    steps: int


def heats(entered: int, steps: int, warmup: int) -> tuple[Heat, ...]:
    """Those of `entered` layouts, `steps` asked for and `warmup` before them."""
    found, count = [Heat(min(FINALISTS, entered), steps)], FINALISTS
    while count < entered:
        count = min(2 * count, entered)
        found.insert(0, Heat(count, min(steps, max(LEAST_STEPS, ceil(found[0].steps / FEWER)))))
    in_all = sum(heat.entered * (heat.steps + warmup) for heat in found)
    if in_all < entered * (steps + warmup):
        return tuple(found)
    return (Heat(entered, steps),)


def tournament(
    entered: Sequence[Contender],
    run: Callable[[Plan, int, int], RunResult],
    planned: Sequence[Heat],
) -> tuple[tuple[Contender, RunResult], ...]:
    """Every contender with its last result: those of the last heat first, the faster before.

    run  a plan, its number from 1 on, and the steps to time
    """
    alive, out = list(enumerate(entered, start=1)), list[tuple[Contender, RunResult]]()
    ranked: list[tuple[int, Contender, RunResult]] = []
    for heat in planned:
        out = [(each, result) for _, each, result in ranked[heat.entered :]] + out
        alive = alive[: heat.entered]
        ranked = [(number, each, run(each.plan, number, heat.steps)) for number, each in alive]
        ranked.sort(key=lambda found: found[2].step_time_s or inf)
        alive = [(number, each) for number, each, _ in ranked]
    return (*((each, result) for _, each, result in ranked), *out)
