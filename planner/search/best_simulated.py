"""The half of a search under the event simulation: what is best, with a proof.

It begins with the best plans of the closed form. Then every layout and cut is simulated whose bound
is below the best simulated step (`planner.search.simulation.simulated`); then, for runners-up, what
may be faster than the best of its own kind and nearly as fast as the best of all.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.planner.cuts import budget as costs
from meshplan.planner.processes.free_pages import give_back_freed
from meshplan.planner.processes.second_core import Later
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.far_kinds import settle_far_kinds
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.held_memory.counted_kinds import CountedKinds
from meshplan.planner.search.held_memory.counted_memory import CountedMemory, taken_out
from meshplan.planner.search.held_memory.kinds_held import look_beyond_priced
from meshplan.planner.search.held_memory.less_than_priced import source_of_rows
from meshplan.planner.search.likely_kinds import settle_likely_kinds
from meshplan.planner.search.near_kinds import settle_near_kinds
from meshplan.planner.search.open_kinds import (
    OpenKinds,
    bounded,
    has_others,
    least_of_kinds,
    not_shown,
)
from meshplan.planner.search.progress import Fastest, Progress
from meshplan.planner.search.result import (
    NoLayoutFits,
    SearchEnded,
    SearchResult,
    Solution,
    least_known,
    nothing_fits,
    result_of,
    solution_of,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.least_held import CountedRows
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.rows.rows_below import Source
from meshplan.planner.search.simulation.carried_cuts import CarriedCuts
from meshplan.planner.search.simulation.free_cuts import EveryCut, FreeCutBounds
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.words import Cuts

FIRST_SIMULATED = 8  # best plans under the closed form that are simulated first


def best_simulated(
    run: FirstPlans,
    question: Question,
    simulate: Callable[[Layout], float],
    k: int,
    deadline: float | None,
    started: float,
) -> SearchResult:
    """What is best under the simulation of the rows that may fit; raises `NoLayoutFits`.

    `run` has the best plans of the closed form, with which the proof begins.
    """
    rows = source_of_rows(run.space, run.coefficients, question.setting, fits=bool(run.best))
    give_back_freed()
    proof = _proof_of(run, question, simulate, rows, k)
    open_s, beyond_s = _settled(run, question, proof, deadline)
    deadline = proof.tally.deadline  # Ctrl-C ends what would follow
    carried = CarriedCuts(proof)
    proved = proof.copied()  # runners-up, found before or meanwhile, change nothing of its answer
    every_cut = Later(lambda: FreeCutBounds(proved).settled())
    give_back_freed()
    tell_proved = partial(_proved, run, proof, open_s, every_cut)
    _find_other_kinds(run, proof, carried, tell_proved, k, deadline)
    if not proof.best:
        refused = nothing_fits(question, run, open_s, deadline)
        if isinstance(refused, SearchEnded):
            raise refused
        raise NoLayoutFits(f"{refused} in the simulation", proved=refused.proved)
    every_cut_s = _every_cut_s(proof, carried, every_cut, k)
    bound_s = least_known(run, open_s, proof.best_s)
    solutions = tuple(
        solution_of(question, run.space, timed, timed.step_s, proved=timed.step_s <= bound_s)
        for timed in proof.ranked()[:k]
    )
    result = result_of(run, solutions, bound_s, started, every_cut_s, proof.tally.simulated)
    all_degrees = math.isinf(beyond_s) and (not isinstance(rows, CountedRows) or rows.all_degrees)
    cuts = _cuts_beside(proof, solutions) if result.cuts == "all" else result.cuts
    result = replace(result, all_degrees=all_degrees, cuts=cuts)
    return _with_kinds(result, proof, k, rows) if k > 1 else result


def _with_kinds(result: SearchResult, proof: Simulated, k: int, source: Source) -> SearchResult:
    """The same with what is proved of other kinds than the best: of those that it has, and of
    those that it leaves out.
    """
    solutions, known = result.solutions, proof.open_kinds
    last_s = solutions[-1].step_time_s if len(solutions) == k else math.inf  # no others are wanted
    least_s = known.least_of_all_s if result.all_degrees else 0.0
    kinds_s = min(last_s, max(result.listed_bound_s, least_s)) * result.whole_space
    if not (result.all_degrees and result.whole_space):
        return replace(result, kinds_bound_s=kinds_s)
    every = _of_every_cut(proof, solutions[-1].step_time_s, result.bound_s)
    others = partial(has_others, proof.layouts, that_fit=source.that_fit)
    open_kinds, rest_s = not_shown(solutions, every, result.bound_s, others)
    return replace(
        result, solutions=bounded(solutions, every, result.bound_s), kinds_bound_s=kinds_s,
        open_kinds=open_kinds, rest_bound_s=rest_s,
    )  # fmt: skip


def _of_every_cut(proof: Simulated, most_s: float, bound_s: float) -> OpenKinds:
    """What of kinds may be faster than `most_s` however it is cut: where a list says how rows are
    cut (`planner.space.stage_splits`), other cuts take no less than the bound of their row, and
    than `bound_s`, that of all.
    """
    bounds = proof.open.row_bounds
    rows = proof.space.listed(np.flatnonzero(bounds < most_s))
    cuts_s = least_of_kinds(proof.space.layouts, rows, np.maximum(bounds[rows], bound_s))
    return proof.open_kinds.with_cuts(cuts_s)


def _proof_of(
    run: FirstPlans,
    question: Question,
    simulate: Callable[[Layout], float],
    rows: Source,
    k: int,
) -> Simulated:
    """The proof before it begins, with the best plans of the closed form."""
    layouts = run.space.layouts
    budget = costs.after_rows(len(layouts))
    proof = Simulated(
        question, run.space, rows, simulate, partial(layout_of_row, layouts),
        first=run.ranked()[: max(k, FIRST_SIMULATED)], tell=partial(_tell, run),
        budget=budget, more=costs.BUDGET - budget + costs.BEYOND,
    )  # fmt: skip
    look_beyond_priced(proof)
    return proof


def _settled(
    run: FirstPlans, question: Question, proof: Simulated, deadline: float | None
) -> tuple[float, float]:
    """What the proof leaves open: the least bound of all, and of what no bound of memory lets fit;
    infinite where there is nothing. Raises `NoLayoutFits`.
    """
    counts = question.engine.kernels.counts_passes
    if counts and not run.best:  # nothing fits by the bound
        proof.tally.deadline = deadline
        left_s, _ = CountedMemory.each(proof, proof.open.rows[:0])
        if not proof.best:
            raise nothing_fits(question, run, left_s, proof.tally.deadline)
    beyond = taken_out(proof) if counts and run.best else proof.open.rows[:0]
    proof.tally.deadline = deadline
    open_s, beyond_s = proof.prove(deadline), math.inf
    if not proof.best and not run.best:
        raise nothing_fits(question, run, open_s, proof.tally.deadline)
    if counts:
        left_s, beyond_s = CountedMemory.each(proof, beyond)
        open_s = min(open_s, left_s)
    return open_s, beyond_s


def _find_other_kinds(
    run: FirstPlans,
    proof: Simulated,
    carried: CarriedCuts,
    tell_proved: Callable[[], Progress],
    k: int,
    deadline: float | None,
) -> None:
    """Runners-up, the near ones first."""
    if k > 1 and proof.best:
        try:
            carried.carry(k)
            run.tell.now(tell_proved)
            proof.find_runners_up(k, deadline)
            if proof.setting.engine.kernels.counts_passes:
                CountedKinds.runners_up(proof, k)
        except KeyboardInterrupt:  # the proof is there, but not what is open where moments count
            proof.open_kinds = OpenKinds()
    settle_far_kinds(proof, k)


def _every_cut_s(
    proof: Simulated, carried: CarriedCuts, every_cut: Later[EveryCut], k: int
) -> float:
    """A bound of the cuts that no list has, infinite where it leaves none that is faster than the
    best; those that are known to be faster are offered first.
    """
    every_cut_s, faster = every_cut.done()
    for plan in faster:
        proof.judged_s(*plan)
    if k > 1:
        with suppress(KeyboardInterrupt):
            proof.moves.go_on_near(proof.ranked()[1:k])
            carried.carry(k)
            give_back_freed()
            settle_near_kinds(proof, k, every_cut_s)
            give_back_freed()
            settle_likely_kinds(proof, k, every_cut_s)
    settled = every_cut_s >= proof.best_s * SETTLED  # runners-up may have been faster
    return math.inf if settled else every_cut_s


def _cuts_beside(proof: Simulated, solutions: tuple[Solution, ...]) -> Cuts:
    """Whether a list limits what may be faster than the slowest runner-up."""
    rows = np.flatnonzero(proof.open.row_bounds < solutions[-1].step_time_s)
    return "runners-up listed" if len(solutions) > 1 and proof.space.lists_cuts(rows) else "all"


def _tell(run: FirstPlans, proof: Simulated, left: Sequence[Open]) -> None:
    """Where the simulation stands; `left`: cuts of settled layouts that are open still."""

    def progress() -> Progress:
        best_s, solves = proof.best_s if proof.best else None, run.solves
        open_s = [proof.proved_s, proof.open.least_s, *(each.bound_s for each in left)]
        bound_s = least_known(run, proof.best_s, *open_s)
        return Progress(best_s, bound_s, run.candidates, solves, proof.tally.simulated)

    run.tell(progress)


def _proved(
    run: FirstPlans, proof: Simulated, open_s: float, every_cut: Later[EveryCut]
) -> Progress:
    """The progress when the proof has ended; `open_s`: the least bound that it left open."""
    best, bound_s = proof.ranked()[0], least_known(run, open_s, proof.best_s)
    layout = layout_of_row(run.space.layouts, best.row, best.variant, best.plan)
    fastest = Fastest(layout, best.step_s, bound_s >= best.step_s, every_cut)
    solves, simulated = run.solves, proof.tally.simulated
    return Progress(best.step_s, bound_s, run.candidates, solves, simulated, fastest)
