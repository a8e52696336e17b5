"""Cuts that were met on one layout of a V shape, tried on others like it."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.simulation import cuts_elsewhere as module
from meshplan.planner.search.simulation import free_cuts
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.cuts_elsewhere import MetCut, cuts_elsewhere
from meshplan.planner.search.simulation.listed_layouts import layers_of, plan_of
from meshplan.planner.search.simulation.shaken_cuts import NearCut
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.stages.any_cut import any_cut


@pytest.fixture(scope="module")
def met() -> tuple[Simulated, Alike, MetCut]:
    """Rows of one V shape, the bound of each of which is its place from 1 s on, and a cut that fits
    on the first, with chains of 1.5 s.
    """
    for proof, variant, rows, same in listed_layouts("generic", range(30)):
        if variant.schedule not in V_SHAPED or len(rows) < 3:
            continue
        plan, _ = any_cut(proof.problem(int(rows[0]), variant)[0], 1.0)
        if plan is None:
            continue
        layers = layers_of(plan.stages, tuple(variant.modes))
        shape = proof.open.shape(int(rows[0]), variant)
        if all(plan_of(proof.problem(row, variant)[0], layers) for row in rows.tolist()):
            proof.open.row_bounds[rows] = 1.0 + np.arange(len(rows))
            alike = Alike(variant, shape, rows, np.zeros(len(rows)), len(same.pattern))
            return proof, alike, MetCut(1.5, shape, NearCut(int(rows[0]), variant, layers))
    raise AssertionError("no such layout among the drawn ones")


def places(met: tuple[Simulated, Alike, MetCut], limit_s: float) -> list[int]:
    proof, alike, cut = met
    rows = alike.rows.tolist()
    return [rows.index(each.row) for each in cuts_elsewhere(proof, [alike], [cut, cut], limit_s)]


def test_a_cut_is_tried_where_it_is_expected_to_be_faster(
    met: tuple[Simulated, Alike, MetCut],
) -> None:
    """Its chains are 1.5 times the bound of its own row, so 3.0 and 4.5 s are expected of the next
    two; each is tried once, and not where it was met.
    """
    assert places(met, 3.0) == []
    assert places(met, 3.1) == [1]
    assert places(met, 4.6) == [1, 2]


def test_what_is_expected_to_be_fastest_comes_first(
    met: tuple[Simulated, Alike, MetCut], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.5 and 3.0 s are expected of rows with bounds of 3 and 2 s, where the own one has 1 s; only
    so many are played.
    """
    proof, alike, _ = met
    bounds_s = proof.open.row_bounds.copy()
    bounds_s[alike.rows[1:3]] = 3.0, 2.0
    monkeypatch.setattr(proof.open, "row_bounds", bounds_s)
    assert places(met, 4.6) == [2, 1]
    monkeypatch.setattr(module, "PLAYED", 1)
    assert places(met, 4.6) == [2]
    monkeypatch.setattr(module, "LOOKED_AT", 0)
    assert places(met, 4.6) == []


def test_a_cut_under_other_recompute_modes_is_not_like_it(
    met: tuple[Simulated, Alike, MetCut],
) -> None:
    """Its layers are counted by mode."""
    proof, alike, cut = met
    variant = cut.near.variant
    other = replace(variant, modes=(2,) if variant.modes != (2,) else (0,))
    moved = cut._replace(near=cut.near._replace(variant=other))
    assert places((proof, alike, moved), 4.6) == []


def test_what_is_bounded_above_the_limit_is_not_tried(met: tuple[Simulated, Alike, MetCut]) -> None:
    """No cut of it is faster."""
    proof, alike, cut = met
    bounds = np.array([0.0, 5.0, *[0.0] * (len(alike.rows) - 2)])
    bounded = Alike(alike.variant, alike.shape, alike.rows, bounds, alike.layers)
    assert places((proof, bounded, cut), 4.6) == [2]


def test_other_ranks_and_micro_batches_are_not_like_it(
    met: tuple[Simulated, Alike, MetCut],
) -> None:
    """Another schedule of as many is."""
    proof, alike, cut = met
    schedule, *own = cut.shape
    for at in range(len(own)):
        other = [n + (place == at) for place, n in enumerate(own)]
        moved = cut._replace(shape=cast("tuple[str, int, int, int]", (schedule, *other)))
        assert places((proof, alike, moved), 4.6) == []
    assert places((proof, alike, cut._replace(shape=("", *cut.shape[1:]))), 4.6) == [1, 2]


def test_what_does_not_fit_is_left_out(
    met: tuple[Simulated, Alike, MetCut], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast it is expected to be; what fits behind it is tried."""
    answers = iter((None, "fits"))
    monkeypatch.setattr(module, "plan_of", lambda *_: next(answers))
    assert places(met, 4.6) == [2]


@pytest.mark.nightly
def test_a_plan_whose_gap_is_wide_gets_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3.5 122B on 8,192 H800 (measured: 3.271 s without, 3.188 s with it, 2026-11-29)."""
    q = ask(Arguments(
        model="qwen3.5-122b-a10b", gpus=8192, cluster="dgx-h800", engine="generic",
        seq_len="32768", global_batch=2048,
    )).question  # fmt: skip
    found = solve(q, 1)
    assert found.bound_s < found.solutions[0].step_time_s
    monkeypatch.setattr(free_cuts, "cuts_elsewhere", lambda *_: iter(()))
    assert solve(q, 1).solutions[0].step_time_s > found.solutions[0].step_time_s * 1.005
