"""Several chunks per rank, one split: what its rows and its ranks' work take at least, and a plan.

    rows   y[g, l]   row g lasts l ns longer than with nothing recomputed; l is 0 or what some way
                     to run a chunk of the row takes beyond the row's slowest.  Minimise sum of l
    work   z[v, c]   chunk v of one rank runs in way c.  Minimise the added ns, rank by rank
    both   for each in-flight vector, what the chunks of a rank save is at least what it lacks; in
           the rows a chunk saves the most of any way that fits into its row

    objective >= objective with nothing recomputed + weight x rows + share x sum of work

It is a bound since the ways of the rows and of the work may differ. Two plans are mostly as good as
it: the least work within the rows' levels; and one model of both (a way reaches its row's level).
Ranks, chunks and what they recompute in one model are `planner.stages.counts`, which is exact but
proves little by itself, for the model is symmetric in the ranks.
Letters as in `planner.problem.closed_form`.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints, each_once
from meshplan.planner.bounds.packing import at_least
from meshplan.planner.bounds.recompute import Ranks
from meshplan.planner.problem.stage_problem import StagePlan, evaluate
from meshplan.planner.stages.cpsat import Solved, new_model, solve_model, weighted_sum

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

ROWS_S, WORK_S, TOGETHER_S = 2.0, 0.2, 0.5  # deterministic seconds of CP-SAT

# In-flight vectors [vector, place], what each choice at each place saves, what each vector lacks.
Need = tuple[Ints, list[Ints], Floats]


class RowAnswer(NamedTuple):
    """A lower bound of the objective of a split, and the plan that the bound's solution gives."""

    bound: float
    plan: StagePlan | None


def answer_rows(ranks: Ranks, pair: int, below: int | None) -> RowAnswer:
    """Lower bound and plan of a split with several rows; (infinite, None): none below `below`."""
    problem, bare = ranks.problem, float(ranks.bare[pair])
    most = math.inf if below is None else below
    work = sum(ranks.work_ns(pair, rank) for rank in range(problem.pp))
    longer = _rows(ranks, pair, most - bare - work)
    bound = bare + problem.form.weight * longer.ns + work
    if bound >= most:
        return RowAnswer(bound, None)
    works = (
        max(ranks.work_ns(pair, rank), ranks.share * _work(ranks, pair, rank, None).ns)
        for rank in range(problem.pp)
    )
    bound += sum(works) - work
    if bound >= most:
        return RowAnswer(bound, None)
    bound = float(at_least(np.array(bound)))
    plan = _within(ranks, pair, longer.picks)
    if plan is None or plan.objective > bound:
        bound, other = _together(ranks, pair, bound, min(most, plan.objective if plan else most))
        plan = other or plan
    return RowAnswer(bound, plan)


def _within(ranks: Ranks, pair: int, levels: list[int]) -> StagePlan | None:
    """The plan of least added work whose row r lasts at most `levels[r]` ns longer; else None."""
    ways = []
    for rank in range(ranks.problem.pp):
        found = _work(ranks, pair, rank, levels)
        if not found.picks:
            return None
        ways.append(found.picks)
    return _plan(ranks, pair, ways)


def _together(ranks: Ranks, pair: int, known: float, most: float) -> RowAnswer:
    """The plan that one model of rows and ways finds first below `most`, at best at the bound
    `known`; and its bound."""
    problem, bare, model = ranks.problem, float(ranks.bare[pair]), new_model()
    under, over = int(problem.form.under), int(problem.form.over)
    levels = [_levels(ranks, pair, row) for row in range(problem.vpp)]
    reached = _reached(model, levels)
    works: list[Any] = []
    ways: list[list[list[Any]]] = []
    for rank, chunks in enumerate(problem.chunks_of_rank):
        choices = [ranks.choices(pair, chunk, problem.modes) for chunk in chunks]
        chosen = [[model.new_bool_var("") for _ in way[0]] for way in choices]
        for row, (place, way) in enumerate(zip(chosen, choices, strict=True)):
            model.add_exactly_one(place)
            beyond = np.maximum(0, way[0] - ranks.free_ns[rank][pair, row])
            for variable, index in zip(place, np.searchsorted(levels[row], beyond), strict=True):
                model.add_implication(variable, reached[row][index])
            works.append(weighted_sum(place, way[0].tolist()))
        brought = [way[1] for way in choices]
        _cover(model, chosen, (problem.shape.matrices[rank], brought, _lacks(ranks, pair, rank)))
        ways.append(chosen)
    rows = sum(
        weighted_sum(steps, np.diff(level, prepend=0).tolist())
        for steps, level in zip(reached, levels, strict=True)
    )
    objective = int(problem.form.weight) * under * rows + over * sum(works)
    model.add(objective >= math.floor((known - 1 - bare) * under))
    if math.isfinite(most):
        model.add(objective <= math.floor((most - bare) * under))
    model.minimize(objective)
    solved = solve_model(model, TOGETHER_S)
    if solved.status == "INFEASIBLE":
        return RowAnswer(most, None)
    bound = max(known, float(at_least(np.array(bare + solved.bound / under))))
    if not solved.found:
        return RowAnswer(bound, None)
    picks = [[_picked(solved, place) for place in places] for places in ways]
    return RowAnswer(bound, _plan(ranks, pair, picks))


def _reached(model: "cp_model.CpModel", levels: list[Ints]) -> list[list[Any]]:
    """By row and level, whether the row lasts at least so long."""
    reached = [[model.new_bool_var("") for _ in level] for level in levels]
    for steps in reached:
        model.add(steps[0] == 1)
        for lower, higher in pairwise(steps):
            model.add_implication(higher, lower)
    return reached


def _plan(ranks: Ranks, pair: int, ways: list[list[int]]) -> StagePlan | None:
    """The ways of all ranks' chunks as stages; None where their transients do not fit."""
    problem, split = ranks.problem, ranks.splits[pair]
    stages = [Stage(layers) for layers in split]
    for chunks, of_rank in zip(problem.chunks_of_rank, ways, strict=True):
        for chunk, way in zip(chunks, of_rank, strict=True):
            full, selective = ranks.choices(pair, chunk, problem.modes)[2:, way].tolist()
            stages[chunk] = Stage(split[chunk], selective, full)
    return evaluate(problem, tuple(stages))


class _Cover(NamedTuple):
    """The least sum that is proved, infinite where nothing covers the needs; and the choice at each
    place, if one was found.
    """

    ns: float
    picks: list[int]


def _rows(ranks: Ranks, pair: int, budget_ns: float) -> _Cover:
    """How much longer all rows last together at least, up to `budget_ns`; `picks` are ns by row."""
    problem = ranks.problem
    levels = [_levels(ranks, pair, row) for row in range(problem.vpp)]
    levels = [level[level * problem.form.weight <= budget_ns] for level in levels]
    saved = [
        [_saved(ranks, pair, chunks[row], free[pair, row], level)
         for row, level in enumerate(levels)]
        for chunks, free in zip(problem.chunks_of_rank, ranks.free_ns, strict=True)
    ]  # fmt: skip
    lacks = [_lacks(ranks, pair, rank) for rank in range(problem.pp)]
    needs = zip(problem.shape.matrices, saved, lacks, strict=True)
    found = _least_cover(levels, needs, ROWS_S)
    picks = [int(level[pick]) for level, pick in zip(levels, found.picks, strict=False)]
    return _Cover(found.ns, picks)


def _work(ranks: Ranks, pair: int, rank: int, levels: list[int] | None) -> _Cover:
    """The least work that `rank` adds to fit, in rows that last `levels` longer (None: any)."""
    problem = ranks.problem
    ways = [ranks.choices(pair, chunk, problem.modes) for chunk in problem.chunks_of_rank[rank]]
    if levels is not None:
        most = ranks.free_ns[rank][pair] + levels
        ways = [way[:, way[0] <= limit] for way, limit in zip(ways, most, strict=True)]
    need = (problem.shape.matrices[rank], [way[1] for way in ways], _lacks(ranks, pair, rank))
    return _least_cover([way[0] for way in ways], [need], WORK_S)


def _least_cover(costs: Sequence[Ints], needs: Iterable[Need], seconds: float) -> _Cover:
    """The least sum of `costs`, one for each place, with which all needs are covered."""
    model = new_model()
    chosen = [[model.new_bool_var("") for _ in place] for place in costs]
    for place in chosen:
        model.add_exactly_one(place)
    for need in needs:
        _cover(model, chosen, need)
    flat = [variable for place in chosen for variable in place]
    model.minimize(weighted_sum(flat, np.concatenate(costs).tolist()))
    solved = solve_model(model, seconds)
    if solved.status == "INFEASIBLE":
        return _Cover(math.inf, [])
    picks = [_picked(solved, place) for place in chosen] if solved.found else []
    return _Cover(float(solved.bound), picks)


def _cover(model: "cp_model.CpModel", chosen: list[list[Any]], need: Need) -> None:
    """Constrain the choices: under each in-flight vector they save all that it lacks."""
    vectors, brought, lacks = need
    flat = [variable for place in chosen for variable in place]
    at = np.repeat(np.arange(len(chosen)), [len(place) for place in chosen])
    for vector, lack in zip(vectors, lacks, strict=True):
        if lack > 0:
            terms = vector[at] * np.concatenate(brought)
            model.add(weighted_sum(flat, terms.tolist()) >= math.ceil(lack))


def _picked(solved: Solved, place: list[Any]) -> int:
    return [solved.value(variable) for variable in place].index(1)


def _levels(ranks: Ranks, pair: int, row: int) -> Ints:
    """The distinct ns by which recomputing choices of a row's chunks exceed the row, ascending."""
    problem = ranks.problem
    beyond = [
        ranks.choices(pair, chunks[row], problem.modes)[0] - free[pair, row]
        for chunks, free in zip(problem.chunks_of_rank, ranks.free_ns, strict=True)
    ]
    return each_once(np.maximum(0, np.concatenate(beyond).astype(np.int64)))


def _saved(ranks: Ranks, pair: int, chunk: int, free_ns: float, levels: Ints) -> Ints:
    """The most KiB of a micro-batch that a chunk can save at each of its row's `levels`."""
    more_ns, saved, _, _ = ranks.choices(pair, chunk, ranks.problem.modes)
    within = np.searchsorted(more_ns - free_ns, levels, side="right")
    most: Ints = np.concatenate([[0], saved])[within]  # a way that takes longer saves more
    return most


def _lacks(ranks: Ranks, pair: int, rank: int) -> Floats:
    """KiB that `rank` lacks with nothing recomputed, by in-flight vector."""
    problem, pairs = ranks.problem, ranks.pairs
    chunks, held = list(problem.chunks_of_rank[rank]), problem.shape.matrices[rank]
    fixed = problem.fixed_kib - problem.cap_kib + ranks.transient_kib(pair, rank)
    lacks: Floats = held @ pairs.saved[pair, chunks] + pairs.states[pair, chunks].sum() + fixed
    for end, (holder, place) in zip(
        (problem.embedding, problem.head), problem.shape.ends, strict=True
    ):
        if holder == rank:
            lacks = lacks + end.state_kib + held[:, place] * end.saved_kib
    return lacks
