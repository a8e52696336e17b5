"""Whole layers of ranks where the model has few layers of a cheap kind, against every cut and mix
of small models, and against any cut that fits.
"""

from collections.abc import Iterator
from copy import copy

import numpy as np
import pytest
from listed_layouts import listed_layouts
from nightly import cases
from played_layouts import Played, played_of
from slow_collectives import with_slow_collectives
from small_cuts import small_question

from meshplan.planner.bounds import rank_layers
from meshplan.planner.bounds.packed_cuts import PackedCuts
from meshplan.planner.bounds.whole_kinds import dearer
from meshplan.planner.search.simulation import listed_layouts as listed
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.stages.any_cut import any_cut

CLOSE, LONG_S = 1 + 1e-9, 1e6
DENSE_FIRST = ("deepseek-v2-lite", "ling-mini-2.0")


@pytest.mark.parametrize(
    ("each", "found"),
    [
        pytest.param([[1, 2, 4]], [({0, 1, 2}, 7), ({1, 2}, 6), ({2}, 3)], id="1 < 2 < 4 s"),
        pytest.param(
            [[1, 2, 3], [90, 20, 70]],
            [({0, 1, 2}, 7), ({0, 2}, 4), ({2}, 3)],
            id="0.5 and 1.5, 1 and 0.33, 1.5 and 1.17 of the mean",
        ),
    ],
)  # fmt: skip
def test_kinds_are_left_out_from_the_cheapest_on(
    each: list[list[float]], found: list[tuple[set[int], float]]
) -> None:
    """By their share of what a layer of each kind takes; the model has 1, 3 and 3 of them."""
    sets = dearer(np.array(each, float), np.array([1, 3, 3]))
    assert [(set(kinds.tolist()), number) for kinds, number in sets] == found


def dense_first(seeds: range, monkeypatch: pytest.MonkeyPatch, times: float) -> Iterator[Played]:
    """Layouts of models whose first layer is dense, with collectives that take so much longer."""
    monkeypatch.setattr("small_cuts.MODELS", DENSE_FIRST)
    for seed in seeds:
        question = small_question(seed, 5)
        if len(question.model.kinds) > 1:
            yield from played_of(with_slow_collectives(question, times))


def cheapest_alone(cuts: PackedCuts, monkeypatch: pytest.MonkeyPatch) -> PackedCuts:
    """The same, of whose ranks only layers of the cheapest kind are asked."""
    found = copy(cuts)
    with monkeypatch.context() as patch:
        patch.setattr(rank_layers, "dearer", lambda *of: dearer(*of)[:1])
        found.most_layers(np.ones(1))
    return found


@pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.nightly), 1000])
def test_no_rank_is_refused_what_it_holds_beside_a_cheap_layer(
    times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest cut is held just above its step, by each rank and by all. Some ranks hold fewer
    layers than of the cheapest kind, and some layouts that hold no cut are refused by that alone.
    """
    asked, fewer, full, refused = 0, 0, 0, 0
    seeds = range(10, 10 + cases(8, nightly=60))
    for cuts, least_s, layers in dense_first(seeds, monkeypatch, times):
        limits_s = np.array([least_s * CLOSE if layers else LONG_S])
        alone = cheapest_alone(cuts, monkeypatch)
        most, own = cuts.most_layers(limits_s)[0], np.zeros(cuts.same.pp)
        fewer += bool((most < alone.most_layers(limits_s)[0]).any())
        refused += bool(alone.packed(limits_s)[0] and not cuts.packed(limits_s)[0])
        if layers:
            np.add.at(own, cuts.rank_of, layers)
            assert (own <= most).all()
            assert cuts.packed(limits_s).all()
            found_s = cuts.packing_bounds_s(np.zeros(1), 1.3 * least_s)
            assert found_s <= least_s * CLOSE
            assert cuts.packed(
                found_s + 1.3 * least_s / 2**13
            ).all()  # as near as halving brings it
            full += bool((own == most).any() and most.max() < sum(layers))
            asked += 1
    assert min(asked, fewer, full, refused) > 0


def test_what_is_dropped_at_once_fits_in_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the least that ranks hold of all kinds, and of all but the cheapest ones; some layouts by
    these alone.
    """
    dropped, by_these = 0, 0
    for proof, variant, rows, same in listed_layouts(
        "generic", range(41, 41 + cases(9, nightly=90))
    ):
        shape = same.schedule, same.pp, same.vpp, int(same.m[0])
        layouts = ListedLayouts(proof, rows)
        every = [Alike(variant, shape, rows, np.zeros(len(rows)), len(same.pattern))]
        left = {row for each in layouts.below(every, LONG_S) for row in each.rows.tolist()}
        with monkeypatch.context() as patch:
            patch.setattr(listed, "dearer", lambda *of: dearer(*of)[:1])
            more = {row for each in layouts.below(every, LONG_S) for row in each.rows.tolist()}
        for row in set(rows.tolist()) - left:
            assert any_cut(proof.problem(row, variant)[0]) == (None, True)
            dropped += 1
        by_these += len(more - left)
    assert dropped > by_these > 0
