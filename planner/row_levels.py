"""V > 1, one split: what its rows take at least and what the work of its ranks, and a plan of both.

    rows   y[g, l]   row g lasts l ns longer than with nothing recomputed; l is 0 or what some way
                     to run a chunk of the row takes beyond the row's slowest.  Minimise sum of l
    work   z[v, c]   chunk v of one rank runs in way c.  Minimise the added ns, rank by rank
    both   for each in-flight vector, what the chunks of a rank save is at least what it lacks; in
           the rows a chunk saves the most of any way that fits into its row

    objective >= objective with nothing recomputed + weight x rows + share x sum of work

It is a bound since the ways of the rows and of the work may differ. The plan keeps the rows' levels
and does the least work within them; mostly it is as good as the bound. Ranks, chunks and what they
recompute in one model are `planner.stage_counts`, which is exact but proves little by itself: its
many ranks hide that they share their rows. Letters as in `planner.closed_form`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from costmodels.grid import Floats, Ints
from costmodels.layout import Stage
from planner.cpsat import solve_model
from planner.packing import at_least
from planner.recompute_bound import Ranks
from planner.stage_problem import StagePlan, evaluate

ROWS_S = 2.0  # deterministic seconds of CP-SAT
WORK_S = 0.2

class RowAnswer(NamedTuple):
    """A lower bound of the objective of a split, and the plan that the bound's solution gives."""

    bound: float
    plan: StagePlan | None


def answer_rows(ranks: Ranks, pair: int, below: int | None) -> RowAnswer:
    """What is known of a split with several rows; an infinite bound: no plan (below `below`)."""
    problem, bare = ranks.problem, float(ranks.bare[pair])
    most = math.inf if below is None else below
    work = sum(ranks.work_ns(pair, rank) for rank in range(problem.pp))
    longer = _rows(ranks, pair, most - bare - work)
    bound = bare + problem.form.weight * longer.bound_ns + work
    if bound >= most or not longer.picks:
        return RowAnswer(bound, None)
    added = [_work(ranks, pair, rank, None) for rank in range(problem.pp)]
    works = (
        max(ranks.work_ns(pair, rank), ranks.share * found.bound_ns)
        for rank, found in enumerate(added)
    )
    bound += sum(works) - work
    return RowAnswer(float(at_least(np.array(bound))), _plan(ranks, pair, longer.picks))


def _plan(ranks: Ranks, pair: int, levels_ns: list[int]) -> StagePlan | None:
    """The plan with the least work in rows that last so much longer; None if it does not fit."""
    problem, split = ranks.problem, ranks.splits[pair]
    stages = [Stage(layers) for layers in split]
    for rank, chunks in enumerate(problem.chunks_of_rank):
        found = _work(ranks, pair, rank, levels_ns)
        if not found.picks:
            return None
        for chunk, way in zip(chunks, found.picks, strict=True):
            full, selective = ranks.choices(pair, chunk, problem.modes)[2:, way].tolist()
            stages[chunk] = Stage(split[chunk], selective, full)
    return evaluate(problem, tuple(stages))


def _rows(ranks: Ranks, pair: int, budget_ns: float) -> "_Cover":
    """How much longer all rows last together at least, within the budget; picks: each row's ns."""
    problem = ranks.problem
    levels = [_levels(ranks, pair, row) for row in range(problem.vpp)]
    levels = [level[level * problem.form.weight <= budget_ns] for level in levels]
    saved = [
        [_saved(ranks, pair, chunks[row], free[pair, row], level)
         for row, level in enumerate(levels)]
        for chunks, free in zip(problem.chunks_of_rank, ranks.free_ns, strict=True)
    ]  # fmt: skip
    lacks = [_lacks(ranks, pair, rank) for rank in range(problem.pp)]
    needs = list(zip(problem.shape.matrices, saved, lacks, strict=True))
    found = _least_cover(levels, needs, ROWS_S)
    picks = [int(level[pick]) for level, pick in zip(levels, found.picks, strict=False)]
    return found._replace(picks=picks)


def _work(ranks: Ranks, pair: int, rank: int, levels_ns: list[int] | None) -> "_Cover":
    """The least work that `rank` adds to fit, in rows that last so much longer (None: any)."""
    problem = ranks.problem
    ways = [ranks.choices(pair, chunk, problem.modes) for chunk in problem.chunks_of_rank[rank]]
    if levels_ns is not None:
        most = ranks.free_ns[rank][pair] + levels_ns
        ways = [way[:, way[0] <= limit] for way, limit in zip(ways, most, strict=True)]
    needs = (problem.shape.matrices[rank], [way[1] for way in ways], _lacks(ranks, pair, rank))
    return _least_cover([way[0] for way in ways], [needs], WORK_S)


class _Cover(NamedTuple):
    """The least cost proved, and the index picked at each place; none: nothing was found."""

    bound_ns: float
    picks: list[int]


def _least_cover(
    costs: Sequence[Ints], needs: "list[tuple[Ints, list[Ints], Floats]]", seconds: float
) -> _Cover:
    """The least sum of `costs`, one of each place's, that covers all needs.

    A need is, for several vectors over the places at once, what each cost brings there and how much
    is lacking.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = [[model.new_bool_var("") for _ in place] for place in costs]
    for place in chosen:
        model.add_exactly_one(place)
    flat = [variable for place in chosen for variable in place]
    at = np.repeat(np.arange(len(costs)), [len(place) for place in costs])
    for vectors, brought, lacks in needs:
        for vector, lack in zip(vectors, lacks, strict=True):
            if lack > 0:
                terms = vector[at] * np.concatenate(brought)
                model.add(cp_model.LinearExpr.weighted_sum(flat, terms.tolist()) >= int(lack))
    model.minimize(cp_model.LinearExpr.weighted_sum(flat, np.concatenate(costs).tolist()))
    solved = solve_model(model, seconds)
    if not solved.found:
        return _Cover(math.inf if solved.status == "INFEASIBLE" else solved.bound, [])
    picks = [[solved.value(variable) for variable in place].index(1) for place in chosen]
    return _Cover(solved.bound, picks)


def _levels(ranks: Ranks, pair: int, row: int) -> Ints:
    """What the ways to run the chunks of a row take beyond it, ascending."""
    problem = ranks.problem
    beyond = [
        ranks.choices(pair, chunks[row], problem.modes)[0] - free[pair, row]
        for chunks, free in zip(problem.chunks_of_rank, ranks.free_ns, strict=True)
    ]
    return np.unique(np.maximum(0, np.concatenate(beyond).astype(np.int64)))


def _saved(ranks: Ranks, pair: int, chunk: int, free_ns: float, levels: Ints) -> Ints:
    """By level of its row, the KiB that a chunk saves of a micro-batch at most."""
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
