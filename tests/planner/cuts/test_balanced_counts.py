"""The model of known chains that says how layers are best shared among chunks."""

from itertools import product

import numpy as np
import pytest
from chunked_cuts import climbs

from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.cuts.balanced_counts import SHIFTS, BalancedCounts, least_recomputed
from meshplan.planner.problem.stage_problem import StageProblem, evaluate

Counts = tuple[int, ...]


def learnt(
    problem: StageProblem, times: CutTimes, counts: Counts, after_s: float
) -> BalancedCounts:
    """The model with the longest chain of one cut, behind which so much follows."""
    model, stages = BalancedCounts(problem, times), least_recomputed(problem, counts)
    order = program(problem.schedule, problem.pp, problem.vpp, problem.m)
    model.learn(order.chain(times.work(stages), [0.0] * problem.pp), after_s)
    return model


def moved(counts: Counts, at: int, to: int, shift: int) -> Counts:
    """`shift` layers from chunk `at` to chunk `to`."""
    found = list(counts)
    found[at] -= shift
    found[to] += shift
    return tuple(found)


def test_chains_are_as_long_as_the_step_they_are_of_and_no_longer_than_others() -> None:
    """Without what follows; also of the cuts a few layers away."""
    asked = 0
    for problem, times, stages in climbs(range(20)):
        counts = tuple(stage.layers for stage in stages)
        bare = least_recomputed(problem, counts)
        own_s = max(
            program(problem.schedule, problem.pp, problem.vpp, problem.m).end_s(times.work(bare))
        )
        model = learnt(problem, times, counts, 0.0)
        assert model.longest_s(counts) == pytest.approx(own_s, rel=1e-9)
        chunks = range(problem.chunks)
        for at, to, shift in product(chunks, chunks, SHIFTS):
            near = moved(counts, at, to, shift)
            if at != to and near[at] >= problem.fewest_layers(at):
                step_s = times.step_s(least_recomputed(problem, near))
                assert model.longest_s(near) <= step_s * (1 + 1e-9)
                asked += 1
    assert asked > 50


def test_all_moves_at_once_are_what_each_gives() -> None:
    """With a soft maximum so narrow that it is the maximum."""
    for problem, times, stages in climbs(range(10)):
        counts = tuple(stage.layers for stage in stages)
        model = learnt(problem, times, counts, 0.0)
        lengths = model._lengths(model._first(np.array(counts)))
        for shift in SHIFTS:
            values = model._of_moves(np.array(counts), lengths, shift, 1e-12)
            for at, to in product(range(problem.chunks), repeat=2):
                near = moved(counts, at, to, shift)
                if at == to or near[at] < problem.fewest_layers(at):
                    assert values[at, to] == np.inf
                else:
                    assert values[at, to] == pytest.approx(model.longest_s(near), rel=1e-6)


def test_a_descent_ends_at_a_cut_that_fits_and_is_no_longer_by_what_is_known() -> None:
    """Of all layers; and somewhere it is shorter."""
    shorter = 0
    for problem, times, stages in climbs(range(30)):
        counts = tuple(stage.layers for stage in stages)
        if evaluate(problem, least_recomputed(problem, counts)) is None:
            continue
        model = learnt(problem, times, counts, 0.0)
        found = model.least(counts)
        assert sum(found) == len(problem.pattern)
        assert evaluate(problem, least_recomputed(problem, found)) is not None
        assert model.longest_s(found) <= model.longest_s(counts) * 1.005
        shorter += model.longest_s(found) < model.longest_s(counts)
    assert shorter >= 3
