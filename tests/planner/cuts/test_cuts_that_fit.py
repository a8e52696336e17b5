"""Listed cuts that are let go because a rank fits in no mix."""

import math
from typing import Any

import numpy as np
import pytest
from played_layouts import played

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.step.mix_memory import Span
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.whole_cuts import WholeLayers


def whole_of(layers: int) -> WholeLayers:
    """That of a V shape with several layers to cut."""
    every = (each for seed in range(40) for each in played(seed))
    each = next(
        x for x in every
        if x.cuts.same.schedule in V_SHAPED and x.cuts.same.pp == 2
        and len(x.cuts.same.pattern) >= layers and math.isfinite(x.least_s)
    )  # fmt: skip
    shape = each.cuts.same.schedule, 2, 2, int(each.cuts.same.m[0])
    program = FreeCutProgram(each.cuts, each.least_s, first_lines(*shape))
    return WholeLayers(program, each.least_s, lambda _: False)


def test_cuts_with_a_rank_that_does_not_fit_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked by hand: rank 1 of a V shape has chunks 1 and 2, here two layers on one of them; a
    list without cuts is settled. What is asked too often may fit.
    """
    whole, asked = whole_of(5), list[tuple[int, list[Span]]]()
    cuts = np.array([[1, 2, 1, 1], [1, 1, 1, 2], [2, 1, 1, 1], [1, 1, 2, 1]])

    def fits(rank: int, spans: Any) -> bool:
        asked.append((rank, spans))
        return rank == 0 or all(end - first < 2 for _, first, end in spans)

    assert whole.that_fit(cuts).all()
    whole.fits = fits
    assert whole.that_fit(cuts).tolist() == [False, True, True, False]
    assert (1, [(1, 1, 3), (2, 3, 4)]) in asked
    assert len(asked) == len({str(each) for each in asked}) == 7
    assert whole.played_s(cuts[[0, 3]], [], 0.0) == whole.below_s
    monkeypatch.setattr("meshplan.planner.cuts.whole_cuts.MOST_ASKED", 0)
    assert whole.that_fit(cuts).all()
