"""Plans that no list of cuts has, where nothing of a list fits.

Where an engine cuts anywhere, layouts of several chunks per rank are cut as a list says once there
are many ways (`planner.space.stage_splits`). A list is made for short steps. So where none of its
cuts fits, CP-SAT is asked for any cut that does, first of the rows that fit with least memory.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.setting import Setting
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.problem.stage_problem import stage_problem
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.held_memory.less_than_priced import rows_beyond
from meshplan.planner.search.simulation.counted_ranks import memory_is_a_bound
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.stage_splits import lists_all
from meshplan.planner.stages.any_cut import any_cut

MOST = 8  # ways to run a row that are asked
LESS = (0.98, 0.95, 0.9, 0.8, 0.65, 0.5)  # parts of the memory with which rows may fit still


def plan_unlisted(run: FirstPlans, setting: Setting, deadline: float | None) -> bool:
    """Offer `run`, which has no plan, one of a cut that no list has; False if a cut may fit that
    was not found.
    """
    rows = run.space.listed(run.rows)
    beyond = rows_beyond(run.space, setting) if memory_is_a_bound(setting) else rows[:0]
    settled = not len(run.space.listed(beyond))
    with suppress(KeyboardInterrupt):
        for asked, (row, variant) in enumerate(_ways(run, rows)):
            late = deadline is not None and time.perf_counter() >= deadline
            if late or asked == MOST:
                return False
            run.solves += 1
            plan, known = any_cut(stage_problem(run.space, run.coefficients, row, variant))
            settled &= known
            if plan is not None:
                run.offer(row, variant, plan)
                return True
        return settled
    return False


def _ways(run: FirstPlans, rows: Ints) -> Iterator[tuple[int, Variant]]:
    """Rows and how each is run in cuts of a list, the rows that need least memory first."""
    if not len(rows):
        return
    run.coefficients.hold(rows)
    prices, space = run.coefficients.take(rows), run.space.take(rows)
    less = np.zeros(len(rows), np.int64)
    for part in LESS:
        less += row_fits(space, replace(prices, cap_kib=int(prices.cap_kib * part)))
    for row in rows[np.argsort(-less, kind="stable")].tolist():
        pp = int(run.space.layouts.pipeline_parallel[row])
        for variant in run.space.variants(row):
            if not lists_all(run.space.model, run.space.legality, pp, variant.virtual_stages):
                yield row, variant
