"""Covers: the fullest that a rank of a V shape is, beside the moments of every order."""

import numpy as np
import pytest

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.held_micro_batches import moments
from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.planner.problem.pipeline_shape import apart


@pytest.mark.parametrize("schedule", ["zb_v", "dualpipe_v"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (3, 14), (4, 6), (4, 8), (5, 40)])
def test_covers_of_v_shapes_are_what_ranks_hold(
    schedule: Schedule, ranks: int, micro_batches: int
) -> None:
    """Each fullest vector when a backward begins and nothing is late; those that are late, with
    what is held beside them, when an input gradient has ended or a weight gradient begins.
    """
    shape = (schedule, ranks, 2, micro_batches)
    covers, own = apart(*shape), np.eye(2, dtype=int)
    for rank, found in enumerate(moments(*shape)):
        begun = {
            tuple(each.held + own[each.chunk])
            for each in found
            if each.kind in "IB" and not any(each.deferred)
        }
        assert set(in_flight(*shape)[rank]) <= begun
        late = {
            (*each.held, *(each.deferred + own[each.chunk])) for each in found if each.kind in "IW"
        }
        for held, waits in zip(covers.held[-3:, rank], covers.late[-3:, rank], strict=True):
            assert (*held, *waits) in late or (not any(waits) and tuple(held) in begun)
    assert covers.late.sum() > 0
    assert not covers.late[:-3].any()
