"""Known chains over many cuts at once, against the simulation and the memory of each."""

import numpy as np
import pytest
from chunked_cuts import climbs

from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.planner.cuts.cut_lengths import CutLengths, _near, as_row, as_stages, fitting
from meshplan.planner.cuts.layer_changes import all_pairs, applied, single
from meshplan.planner.problem.stage_problem import evaluate

NEARLY = 1.05  # reductions and updates beside small models are known no better


def test_the_chain_of_a_cut_is_as_long_as_its_step_and_others_are_no_shorter() -> None:
    """Also of cuts with one layer elsewhere or recomputed otherwise; of those that fit by the
    memory of all at once, and no others, each fits alone.
    """
    asked = 0
    for p, times, stages in climbs(range(40)):
        lengths, after = CutLengths(p, times), times.after_s(stages)
        lengths.begin(stages)
        work = times.work(stages)
        lengths.learn(longest_chain(p.schedule, p.pp, p.vpp, p.m, work, after.reduce_s))
        own = lengths.longest_s(lengths.seconds(as_row(stages)[None]))[0]
        assert own == pytest.approx(times.step_s(stages), rel=1e-9)
        fewest = np.array([p.fewest_layers(at) for at in range(p.chunks)])
        changes = single(p.chunks, p.modes, all_pairs(p.chunks))
        near = applied(as_row(stages), changes, fewest, keeps=0 in p.modes)[::2]
        if not len(near):
            continue
        found = lengths.longest_s(lengths.seconds(near))
        fits = set(fitting(p, near).tolist())
        for at, (cut, length_s) in enumerate(zip(near, found.tolist(), strict=True)):
            assert length_s <= times.step_s(as_stages(cut)) * NEARLY
            assert (at in fits) == (evaluate(p, as_stages(cut)) is not None)
            asked += 1
    assert asked > 200


def test_what_a_rank_reduces_with_more_or_fewer_layers() -> None:
    """1 second with a layer less, 3 as it is, 4 with one more: by 2 seconds a layer downwards, and
    by 1 upwards.
    """
    of_layers, more = np.array([[1.0], [3.0], [4.0]]), np.array([[-2], [-1], [0], [1], [3]])
    assert _near(of_layers, more).ravel().tolist() == [-1.0, 1.0, 3.0, 4.0, 6.0]
