"""Cuts of layouts that leave the gap wide, from any cut that fits."""

from collections.abc import Iterator

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.search.simulation import cuts_off_list as module
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.cuts_off_list import cuts_off_list
from meshplan.planner.search.simulation.listed_layouts import plan_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.stages.any_cut import any_cut


def wide_open(seeds: int) -> Iterator[tuple[Simulated, Alike]]:
    """Layouts of one shape, the first of which is bounded at 1 s and the others at 2 s."""
    for proof, variant, rows, same in listed_layouts("generic", range(seeds)):
        bounds = np.full(len(rows), 2.0)
        bounds[0] = 1.0
        shape = proof.open.shape(int(rows[0]), variant)
        yield proof, Alike(variant, shape, rows, bounds, len(same.pattern))


def test_a_cut_of_what_is_below_the_limit_fits() -> None:
    """Of the layout below it alone, in whole layers of the model; V shapes are left out."""
    found = 0
    for proof, alike in wide_open(9):
        for near in cuts_off_list(proof, [alike], 1.5):
            assert alike.shape[0] not in V_SHAPED
            assert (near.row, near.variant) == (alike.rows[0], alike.variant)
            problem, _ = proof.problem(near.row, near.variant)
            assert near.layers.sum() == len(problem.pattern)
            assert plan_of(problem, near.layers) is not None
            found += 1
    assert found > 1


def test_what_is_not_answered_in_little_time_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are no likelier to be."""
    asked = []
    monkeypatch.setattr(module, "any_cut", lambda *each: asked.append(each) or (None, False))
    rows = [
        (proof, each) for proof, each in wide_open(7)
        if each.shape[0] not in V_SHAPED and all(module.may_fit(proof, row) for row in each.rows)
    ]  # fmt: skip
    proof, alike = max(rows, key=lambda each: len(each[1].rows))
    assert len(alike.rows) > 1
    assert list(cuts_off_list(proof, [alike], 3.0)) == []
    assert len(asked) == 1


def test_of_rows_that_cannot_hold_all_layers_no_cut_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT proves it, so it is not asked; nor do such rows count among those that are."""
    refused, asked = 0, []
    monkeypatch.setattr(module, "any_cut", lambda *each: asked.append(each) or (None, True))
    for proof, alike in wide_open(9):
        if alike.shape[0] in V_SHAPED:
            continue
        fits = [module.may_fit(proof, row) for row in alike.rows]
        for row in alike.rows[np.logical_not(fits)].tolist():
            assert any_cut(proof.problem(row, alike.variant)[0]) == (None, True)
            refused += 1
        asked.clear()
        assert list(cuts_off_list(proof, [alike], 3.0)) == []
        assert len(asked) == min(module.ASKED, sum(fits))
    assert refused > 5
