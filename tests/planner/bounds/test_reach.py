"""Whether the ranks of V shapes hold all layers below a limit, against every cut: of random chains
of three ranks, and of small models that are played, also on slow collectives.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import cases
from played_layouts import Played, played, played_of
from slow_collectives import with_slow_collectives
from small_cuts import small_question

from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.folded.cuts import FoldedCuts, Terms
from meshplan.planner.bounds.folded.reach import HALVINGS, LIKELY, Reach
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.folded_layouts import fold
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.space.legal_layouts import Variant

RANKS, LAYERS, LINES = 3, 6, 2
PARTS = 5  # of the model: before, on and between the chunks of a rank, and behind


def chains(seed: int, *, in_order: bool) -> Floats:
    """[rank, line, part, layer] seconds; `in_order`: least behind, then before, between, and on the
    chunks.
    """
    found = np.random.default_rng(seed).uniform(0, 1, (RANKS, LINES, PARTS, LAYERS)).round(2)
    if in_order:
        found = np.sort(found, axis=2)[:, :, [1, 3, 2, 4, 0]]
    return found


def folded_of(every: Floats, fewest: int, times: tuple[float, ...] = (1.0,)) -> FoldedCuts:
    """What `Reach` asks of layouts with so many times these chains, and room for them alone."""

    def terms(rank: int) -> Terms:
        until = np.pad(every[rank].cumsum(axis=2), [(0, 0), (0, 0), (1, 0)])[:, :, None]
        until = until * np.array(times)[:, None]
        none = np.zeros((0, 4, len(times), LAYERS + 1))
        at = until[:, :-1] - until[:, 1:]
        return Terms(until[:, -1, :, -1], at, none[:, 0, :, 0], none)

    found = SimpleNamespace(
        layers=LAYERS, ranks=RANKS, fewest=np.full(2 * RANKS, fewest),
        runs=np.ones(len(times), bool), terms=terms, work=0,
    )  # fmt: skip
    return cast(FoldedCuts, found)


def longest_of_every_cut(every: Floats, fewest: int) -> Iterator[float]:
    """The longest chain of each cut, added up layer by layer."""
    for ends in combinations_with_replacement(range(LAYERS + 1), 2 * RANKS - 1):
        places = [0, *ends, LAYERS]
        if min(b - a for a, b in pairwise(places)) < fewest:
            continue
        yield max(
            sum(
                line[part, layer]
                for part, (a, b) in enumerate(
                    pairwise([0, *(places[at] for at in around(rank)), LAYERS])
                )
                for layer in range(a, b)
            )
            for rank in range(RANKS)
            for line in every[rank]
        )


def around(rank: int) -> tuple[int, int, int, int]:
    """Which of the ends of chunks a rank's chunks begin and end at."""
    return rank, rank + 1, 2 * RANKS - 1 - rank, 2 * RANKS - rank


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 1]), st.sampled_from([1, LINES]))
def test_chains_of_random_layers(seed: int, in_order: bool, fewest: int, lines: int) -> None:
    """All that some cut reaches is reached; nothing else where a layer takes least behind a rank
    and most on it, chunks may be empty, and each rank has one chain.
    """
    every = chains(seed, in_order=in_order)[:, :lines]
    least = min(longest_of_every_cut(every, fewest))
    most = np.full((1, RANKS), float(LAYERS))
    assert Reach(folded_of(every, fewest)).reaches(np.array([least * (1 + 1e-7)]), most)[0]
    if in_order and not fewest and lines == 1:
        assert not Reach(folded_of(every, fewest)).reaches(np.array([least * (1 - 1e-7)]), most)[0]


@given(st.integers(0, 2**32), st.floats(0.2, 1.6), st.floats(0.0, 1.0))
def test_bounds_of_random_chains(seed: int, limit: float, known: float) -> None:
    """The limit where no cut is below it, else between the known one and the least cut, and, where
    what is reached is exact, so near to this as halving brings it.
    """
    every = chains(seed, in_order=True)[:, :1]
    least = min(longest_of_every_cut(every, 0))
    low, high = least * limit * known, least * limit
    most = np.full((1, RANKS), float(LAYERS))
    found = Reach(folded_of(every, 0)).bounds_s(np.array([low]), high, most)[0]
    if least > high * (1 + 1e-7):
        assert found == high
    if least < high * (1 - 1e-7):
        assert low <= found <= max(low, least * (1 + 1e-7))
        assert found >= min(least, high) * (1 - 1e-7) - (high - low) / 2**HALVINGS


@pytest.mark.parametrize("part", [1 - 1e-7, 1 + 1e-7])
def test_what_others_take_says_nothing_of_a_layout(part: float) -> None:
    """Beside layouts that take 1e10 times as long, whose sums have no such digits."""
    every = chains(0, in_order=True)[:, :1]
    folded = folded_of(every, 0, (1e10, 1.0, 1e10, 1.0))
    limit_s = min(longest_of_every_cut(every, 0)) * part
    found = Reach(folded).reaches(np.full(4, limit_s), np.full((4, RANKS), float(LAYERS)))
    assert found.tolist() == [False, part > 1, False, part > 1]


def slowed(seed: int, times: int) -> Iterator[Played]:
    """Layouts of V shapes whose collectives take so much longer, of a small batch."""
    question = with_slow_collectives(small_question(seed, 5), times)
    training = replace(question.training, global_batch_size=4, seq_len=4096)
    return played_of(replace(question, gpus=4, training=training), V_SHAPED)


@pytest.mark.few(2)
@pytest.mark.parametrize("times", [1, 30, 1_000])
def test_no_cut_is_faster_than_what_is_not_reached(times: int) -> None:
    """Where memory is as it is, and where it just holds some plan or none. What is not reached has
    no way by all ways of ranks either, and mostly what has none is not reached.
    """
    refused, have_none = 0, 0
    for seed in range(cases(16, nightly=150)):
        every = played(seed, V_SHAPED) if times == 1 else slowed(seed, times)
        for cuts, least_s, _ in every:
            for part in (0.8, 0.95, 1 + 1e-7):
                limit_s = part * (least_s if math.isfinite(least_s) else 100.0)
                most = cuts.most_layers(np.full(1, limit_s))
                bound_s = FoldedCuts(cuts).bounds_s(limit_s, most)[0]
                have_none += bound_s >= limit_s
                if not Reach(FoldedCuts(cuts, LIKELY)).reaches(np.full(1, limit_s), most)[0]:
                    assert least_s >= limit_s, seed
                    assert bound_s >= limit_s, seed
                    refused += 1
                low_s = Reach(FoldedCuts(cuts, LIKELY)).bounds_s(np.zeros(1), limit_s, most)[0]
                assert low_s <= least_s, seed
    assert refused > have_none / 2 > 1


def test_a_fold_bounds_no_layout_above_its_fastest_cut() -> None:
    """It raises what ranks do not reach to what is wanted, and charges for it."""
    raised = 0
    for seed in range(cases(16, nightly=80)):
        for cuts, least_s, _ in played(seed, V_SHAPED):
            same, layouts = cuts.same, SimpleNamespace(cuts=lambda *_, found=cuts: found)
            shape = same.schedule, same.pp, same.vpp, int(same.m[0])
            for part in (0.9, 1 + 1e-7):
                aim_s = part * (least_s if math.isfinite(least_s) else 100.0)
                alike = Alike(
                    cast(Variant, None), shape, np.zeros(1, int), np.zeros(1), len(same.pattern)
                )
                alike.most = cuts.most_layers(np.full(1, aim_s))
                assert fold(cast(ListedLayouts, layouts), alike, aim_s) > 0
                assert alike.folded.all()
                assert alike.bounds[0] <= min(aim_s, least_s), seed
                raised += alike.bounds[0] == aim_s
    assert raised > 1
