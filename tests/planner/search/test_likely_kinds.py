"""Kinds that the search for runners-up left open, though they are nearly as fast as the best."""

import math
from dataclasses import replace
from functools import partial

import pytest
from short_of_memory import question

from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.search import likely_kinds
from meshplan.planner.search.found import Kind, kind_of
from meshplan.planner.search.likely_kinds import settle_likely_kinds
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import closed_form, price_space, space_of
from meshplan.planner.search.simulation.layer_moves import LayerMoves
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins

LONG_S, TOP = 1e6, 4
PINNED = {"micro_batch_size": "1", "virtual_stages": "2"}


@pytest.fixture(name="proof")
def proof_fixture() -> Simulated:
    """Of `qwen3.5-9b` on 8 GPUs, with its runners-up."""
    asked = replace(question("qwen3.5-9b", 8, "hai-llm"), pins=parse_pins(PINNED))
    space = space_of(asked)
    found = Simulated(
        asked, space, price_space(asked, space, closed_form),
        lambda layout: simulated_s(case_at(asked, layout)),
        partial(layout_of_row, space.layouts), limit_s=LONG_S,
    )  # fmt: skip
    found.prove(None)
    found.find_runners_up(TOP, None)
    return found


def second(proof: Simulated) -> tuple[Kind, float]:
    """The kind of the first runner-up, and its step."""
    found = proof.ranked()[1]
    return proof.kind(found), found.step_s


@pytest.mark.parametrize("is_open", [True, False])
def test_a_likely_kind_without_a_plan_gets_one(proof: Simulated, is_open: bool) -> None:
    """If something of it is open."""
    kind, step_s = second(proof)
    del proof.best[kind]
    proof.open_kinds.least_s = {kind: 0.9 * step_s} if is_open else {}
    settle_likely_kinds(proof, TOP, math.inf)
    assert (kind in proof.best) == is_open
    assert not is_open or proof.best[kind].step_s <= step_s * 1.001


@pytest.mark.parametrize(("slower", "settled"), [(1.5, True), (1.0, False)])
def test_a_kind_with_a_stand_in_is_settled(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch, slower: float, settled: bool
) -> None:
    """Where what is known of it is far slower than expected: then nothing of it is open either."""
    monkeypatch.setattr(likely_kinds, "STAND_IN", 1.1)
    kind, step_s = second(proof)
    proof.best[kind] = proof.best[kind]._replace(step_s=slower * step_s)
    proof.open_kinds.least_s = {kind: 0.9 * step_s}
    settle_likely_kinds(proof, TOP, math.inf)
    assert proof.best[kind].step_s <= step_s * (1 + 1e-6)
    assert (proof.open_kinds.bound_s(kind) > step_s * (1 - 1e-6)) == settled


@pytest.mark.parametrize(("open_part", "looked_at"), [(0.9, True), (1.0, False)])
def test_a_kind_whose_list_is_settled_may_be_cut_otherwise(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch, open_part: float, looked_at: bool
) -> None:
    """Layers of its stand-in are moved, and on from there, where the bound of every cut leaves
    something faster than the best.
    """
    gone_on = list[Kind]()
    monkeypatch.setattr(
        LayerMoves, "go_on_near", lambda own, kinds: gone_on.extend(map(own.plans.kind, kinds))
    )
    kind, step_s = second(proof)
    proof.best[kind] = proof.best[kind]._replace(step_s=1.5 * step_s)
    proof.open_kinds.least_s = {}
    settle_likely_kinds(proof, TOP, open_part * proof.best_s)
    assert (proof.best[kind].step_s <= step_s * (1 + 1e-6)) == looked_at
    assert (kind in gone_on) == looked_at


def test_the_likeliest_kinds_come_first(proof: Simulated) -> None:
    """Each kind once, but for that of the best."""
    layouts = proof.space.layouts
    kinds = {kind_of(layouts, row) for row in range(len(layouts))}
    proof.open_kinds.least_s = dict.fromkeys(kinds, 0.0)
    likely = list(likely_kinds._likely(proof, LONG_S, any_cut=False))
    assert {each.kind for each in likely} <= kinds - {proof.kind(proof.ranked()[0])}
    assert len({each.kind for each in likely}) == len(likely) > 1
    assert sorted(likely, key=lambda each: each.expected_s) == likely
