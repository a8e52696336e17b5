"""What the proof does first where the gap is wide: what costs little and closes much."""

import math
from typing import Any

import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.layout import Stage
from meshplan.planner.cuts.recompute_chains import MixAnswer
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.search.simulation.cut_mixes import AheadOfTurn
from meshplan.planner.search.simulation.open_layouts import Open, OpenLayouts
from meshplan.planner.search.simulation.simulated import Simulated


def bounded_closely(proof: Simulated) -> None:
    """Until the smallest bound is that of a layout that knows all chains of its shape."""
    while proof.open.closer(math.inf):
        pass


def far_proofs() -> list[Simulated]:
    """Layouts of several chunks, bounded closely."""
    proofs = {id(each[0]): each[0] for each in listed_layouts("generic", range(7))}
    for proof in proofs.values():
        bounded_closely(proof)
    return [proof for proof in proofs.values() if math.isfinite(proof.open.first_s)]


def chains_known(opened: OpenLayouts, entry: Open) -> int:
    return opened.chains.count(opened.shape(entry.row, entry.variant))


def split_of(proof: Simulated, entry: Open) -> tuple[int, ...]:
    """The first split of a layout's list."""
    splits = proof.problem(entry.row, entry.variant)[0].splits
    assert splits
    return splits[0]


def test_what_is_far_below_knows_all_chains_before_one_of_it_is_settled() -> None:
    """Where the first layout taught chains, others of its shape are bounded by them, no lower than
    before, until the first that is far below the limit knows all of its shape. The work is charged.
    """
    higher = charged = 0
    for proof in far_proofs():
        opened, first = proof.open, proof.open.first
        proof._settle(first, lambda _: math.inf)
        opened._layouts = [each for each in opened._layouts if each.cut is None]
        before = {each.order: each.bound_s for each in opened._layouts}
        limit_s, left = 3 * opened.first_s, proof.tally.left
        proof._anew(limit_s)
        after = {each.order: each.bound_s for each in opened._layouts}
        assert all(after[order] >= before[order] for order in before.keys() & after.keys())
        assert opened.first.known == chains_known(opened, opened.first)
        higher += sum(after.get(order, limit_s) > before[order] for order in before)
        charged += proof.tally.left < left
    assert min(higher, charged) > 0


def test_nothing_is_bounded_anew_where_no_layout_is_open() -> None:
    """Though no limit is known either."""
    (proof, *_) = far_proofs()
    proof.open._layouts.clear()
    proof._anew(math.inf)


@pytest.mark.parametrize(("more", "simulated"), [(0, False), (10**9, True)])
def test_the_budget_does_not_end_amid_a_layout_where_there_is_more(
    more: int, simulated: bool
) -> None:
    """To look it up takes all that is left: with more to come its cuts are looked at too."""
    found = 0
    for proof in far_proofs():
        proof.limit_s = 2 * proof.open.first_s  # as far as is known, a wide gap
        proof.tally.left, proof._more = 1, more
        proof._settle(proof.open.first, lambda _: math.inf)
        found += proof.tally.simulated
    assert bool(found) == simulated


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("bound_s", "limit_s", "waits"),
    [
        pytest.param(1.5, 2.0, True, id="it waits for cuts with smaller bounds"),
        pytest.param(1.5, 1.5, False, id="it is settled"),
    ],
)
def test_a_cut_that_a_known_mean_bounds_higher(
    bound_s: float, limit_s: float, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that bound, and the number of the mean, which is not asked again."""
    (proof, *_) = far_proofs()

    def known(*_: Any) -> MixAnswer:
        return MixAnswer(bound_s, math.inf, None, knapsacks=1)

    monkeypatch.setattr(AheadOfTurn, "by_chains", known)
    monkeypatch.setattr(AheadOfTurn, "number", lambda *_: 7)
    proof.open._layouts, layout = [], proof.open.first
    cut = proof.open.cut_of(1.0, layout, Cut(1.0, (), lambda: (0,)))
    assert proof._recompute(cut, lambda _: limit_s) == []
    expected = [cut._replace(bound_s=bound_s, mean=7)] if waits else []
    assert proof.open.cuts() == expected


def test_a_cut_with_one_mix_for_each_number_is_not_mixed_freely() -> None:
    """Where all stages recompute equally many first layers; it stays open, and costs nothing."""
    proofs = {id(each[0]): each[0] for each in listed_layouts("megatron", range(3))}
    seen = 0
    for proof in proofs.values():
        bounded_closely(proof)
        for entry in [each for each in proof.open._layouts if each.variant.first]:
            cut = Cut(entry.bound_s, tuple(map(Stage, split_of(proof, entry))), tuple)
            left, asked = proof.tally.left, entry._replace(cut=cut)
            assert proof._settled_exactly(asked) == [asked]
            assert proof.tally.left == left
            seen += 1
    assert seen
