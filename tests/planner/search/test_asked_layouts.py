"""Multipliers of one layout asked of others: against the step of a plan that fits."""

from collections.abc import Callable

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.search.simulation.alike_layouts import Alike, Asked
from meshplan.planner.search.simulation.asked_layouts import ask, ask_others
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.stages.any_cut import any_cut

Ask = Callable[[ListedLayouts, Alike, FreeCutProgram, float], int]


def of_the_same_order(
    layouts: ListedLayouts, alike: Alike, program: FreeCutProgram, aim_s: float
) -> int:
    """`ask` with the last multipliers."""
    by = [each.by for each in program.answers(aim_s) if each.by][-1]
    asked = Asked(program.lines[: len(by.lines)], by, alike.shape, aim_s)
    return ask(layouts, [alike], asked, aim_s)


def of_all_micro_batches(
    layouts: ListedLayouts, alike: Alike, program: FreeCutProgram, aim_s: float
) -> int:
    """`ask_others` with the first ones."""
    cap_kib, by = program.cuts.same.prices.cap_kib, program.answer().by
    assert by
    return ask_others(layouts, [alike], by, cap_kib, aim_s)


@pytest.mark.few(1)
@pytest.mark.parametrize("asked", [of_the_same_order, of_all_micro_batches])
def test_what_is_asked_is_below_a_plan_that_fits(asked: Ask) -> None:
    """Though bounds up to twice its step are wanted; they rise, and work is counted."""
    risen = 0
    for proof, variant, rows, same in listed_layouts("generic", range(4)):
        layouts, row = ListedLayouts(proof, rows), int(rows[0])
        cuts, shape = layouts.cuts(variant, rows[:1]), (same.schedule, same.pp, same.vpp)
        plan, _ = any_cut(proof.problem(row, variant)[0])
        if plan is None:
            continue
        step_s = proof.times_of(row, variant, plan.stages).step_s(plan.stages)
        program = FreeCutProgram(cuts, 2 * step_s, first_lines(*shape, same.m[0]))
        alike = Alike(
            variant, (*shape, same.m[0]), rows[:1], np.array([step_s / 10]), len(same.pattern)
        )
        assert asked(layouts, alike, program, 2 * step_s) > 0
        assert step_s / 10 <= alike.bounds[0] <= step_s
        assert alike.open_s == alike.bounds[0]
        risen += alike.bounds[0] > step_s / 2
    assert risen
