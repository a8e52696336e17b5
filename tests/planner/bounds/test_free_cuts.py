"""Bounds of every cut of several chunks per rank, against every cut and mix of small models."""

import math
import random
from copy import copy
from itertools import chain, islice

import numpy as np
import pytest
from nightly import cases
from played_layouts import played

from meshplan.planner.bounds.asked_prices import AskedPrices
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.bounds.free_cuts import Drift, FreeCuts, Multipliers
from meshplan.planner.cuts import free_cut_program
from meshplan.planner.cuts.free_cut_program import Answer, FreeCutProgram

CLOSE = 1 + 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("block", range(2))
def test_no_cut_is_faster_than_its_bounds(block: int) -> None:
    """By whole layers of ranks below a limit, by programs with all chains that they learn, and by
    the same multipliers under other limits of whole layers; some bounds are close. Where those of
    the order of kinds count, most say as much with prices of memory that are scaled.
    """
    closest, nearest, asked, refused, in_order = 0.0, 0.0, 0, 0, list[bool]()
    number = cases(6, nightly=60)
    for seed in range(block * number, (block + 1) * number):
        for cuts_of, least_s, _ in played(seed):
            known = first_lines(*FreeCutProgram(cuts_of, 1.0, ()).shape)
            reached_s = least_s if math.isfinite(least_s) else 100.0
            for limit_s in (reached_s * 0.97, reached_s, reached_s * 1.3):
                packed_s = cuts_of.packing_bounds_s(np.zeros(1), limit_s)[0]
                assert packed_s <= min(least_s, limit_s) * CLOSE, seed
                program = FreeCutProgram(cuts_of, limit_s, known)
                found_s = 0.0
                for answer in program.answers(limit_s):
                    assert min(answer.bound_s, limit_s) <= min(least_s, limit_s) * CLOSE, seed
                    found_s = max(found_s, answer.bound_s, packed_s)
                    own_s = own_prices_s(cuts_of, program, answer)
                    if answer.by and answer.by.order.any():
                        in_order.append(own_s * CLOSE >= answer.bound_s)
                    assert min(own_s, limit_s) <= min(least_s, limit_s) * CLOSE, seed
                    nearest = max(nearest, min(own_s, least_s) / least_s)
                asked += 1
                refused += math.isinf(least_s) and found_s >= limit_s
                if math.isfinite(least_s):
                    closest = max(closest, min(found_s, least_s) / least_s)
    assert asked > 30
    assert refused > 0
    assert closest > 0.97
    assert nearest > 0.97
    assert sum(in_order) > 0.8 * len(in_order) > 10


def own_prices_s(cuts_of: FreeCuts, program: FreeCutProgram, answer: Answer) -> float:
    """The bound by an answer's chains and its order of kinds, with factors of its prices of memory;
    0 without an answer.
    """
    if answer.by is None:
        return 0.0
    price, lines = answer.by.memory * program.limit_s, program.lines[: len(answer.by.lines)]
    price, order = price / cuts_of.same.prices.cap_kib, answer.by.order * program.limit_s
    return float(AskedPrices(cuts_of, answer.by.lines, price, lines, order).bounds_s(math.inf)[0])


def test_weights_of_another_layout_are_a_bound_too() -> None:
    """Those that a program finds for one layout, of others of the same schedule and ranks,
    whatever their chunks and micro-batches; some are close.
    """
    known, asked, nearest = dict[tuple[str, int], tuple[Multipliers, float]](), 0, 0.0
    for cuts_of, least_s, _ in chain.from_iterable(map(played, range(cases(11, nightly=60)))):
        limit_s = least_s * 1.3 if math.isfinite(least_s) else 100.0
        same = cuts_of.same
        like, cap = (same.schedule, same.pp), same.prices.cap_kib
        if like in known:
            by, of_limit_s = known[like]
            price = by.memory * of_limit_s / cap
            bound_s = AskedPrices(cuts_of, by.lines, price).bounds_s(math.inf)[0]
            assert bound_s <= least_s * CLOSE
            nearest, asked = max(nearest, bound_s / least_s), asked + math.isfinite(least_s)
        lines = first_lines(same.schedule, same.pp, same.vpp, int(same.m[0]))
        answer = FreeCutProgram(cuts_of, limit_s, lines).answer()
        if answer.by:
            known[like] = answer.by, limit_s
    assert asked > 20
    assert nearest > 0.95


def test_chains_between_two_cuts_lead_where_those_of_the_answer_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cutting planes of the answer alone (Kelley 1960) end at the same least step."""
    asked = 0
    for cuts_of, least_s, _ in chain.from_iterable(map(played, range(cases(6, nightly=30)))):
        limit_s = least_s * 1.2 if math.isfinite(least_s) else 100.0
        ends_s = list[float]()
        for between in (free_cut_program.BETWEEN, ()):
            monkeypatch.setattr(free_cut_program, "BETWEEN", between)
            monkeypatch.setattr(free_cut_program, "ROUNDS", 500)
            monkeypatch.setattr(free_cut_program, "IN_VAIN", 100)
            known = first_lines(*FreeCutProgram(cuts_of, limit_s, ()).shape)
            program = FreeCutProgram(cuts_of, limit_s, known)
            ends_s.append(max(answer.bound_s for answer in program.answers(limit_s)))
            monkeypatch.undo()
        assert ends_s[0] == pytest.approx(ends_s[1], rel=2 * free_cut_program.ENOUGH)
        asked += 1
    assert asked > 10


def test_no_rank_of_the_fastest_cut_holds_more_layers_than_its_lines_say() -> None:
    """Below a limit just above its step; some rank could not hold one layer more. A line by itself
    has the seconds that it has among others.
    """
    full, asked = 0, 0
    for cuts_of, least_s, layers in chain.from_iterable(map(played, range(12))):
        lines = first_lines(*FreeCutProgram(cuts_of, 1.0, ()).shape)
        together, rest_s = cuts_of.seconds_of_each(lines)
        for at, line in enumerate(lines):
            alone, fixed_s = cuts_of.seconds_of([line], np.ones(1))
            runs = np.broadcast_to(cuts_of.runs[:, None], alone.shape)
            assert together[at][runs] == pytest.approx(alone[runs])
            assert rest_s[at] == pytest.approx(fixed_s)
        if not layers:
            continue
        most, own = cuts_of.most_layers(np.array([least_s * CLOSE]))[0], np.zeros(cuts_of.same.pp)
        np.add.at(own, cuts_of.rank_of, layers)
        assert (own <= most).all()
        full += bool((own == most).any() and most.max() < sum(layers))
        asked += 1
    assert asked > 20
    assert full > 0


def test_chains_count_what_no_pass_hides_of_a_reduction() -> None:
    """With 100 s more for each layer that a rank reduces late, a chain through the rank is at least
    100 s longer for each of its layers.
    """
    found = 0
    for cuts_of, *_ in islice(chain.from_iterable(map(played, range(6))), 8):
        slow = copy(cuts_of)
        slow.late_s = cuts_of.late_s + 100.0
        for line in first_lines(*FreeCutProgram(cuts_of, 1.0, ()).shape):
            own = cuts_of.rank_of == line.rank
            with_more, as_it_is = (each.seconds_of([line], np.ones(1)) for each in (slow, cuts_of))
            longer = with_more[0] - as_it_is[0]
            assert longer[:, own] == pytest.approx(100.0)
            assert longer[:, ~own] == pytest.approx(0.0)
            found += 1
    assert found > 8


def test_a_kind_is_as_far_ahead_of_its_share_as_its_place_says() -> None:
    """By hand: of the layers a, a, b a third is b, so before places 1 and 2 it is a third and two
    thirds of a layer behind, and never ahead.
    """
    drift = Drift.of([0, 0, 1], [0, 1])
    assert drift.share == pytest.approx([2 / 3, 1 / 3])
    assert drift.least == pytest.approx([0, -2 / 3])
    assert drift.most == pytest.approx([2 / 3, 0])


@pytest.mark.parametrize("seed", range(20))
def test_prices_of_the_order_take_off_no_more_than_they_add(seed: int) -> None:
    """Of any layers cut anywhere, each chunk with its first layers in the modes that recompute
    most: whatever the multipliers, what is taken off is not less than what is added.
    """
    draw = random.Random(seed)
    kinds, layers, chunks = draw.choice((2, 3)), draw.randint(4, 20), draw.randint(2, 5)
    pattern = [*range(kinds), *(draw.randrange(kinds) for _ in range(layers - kinds))]
    drift = Drift.of(pattern, list(range(kinds)))
    for _ in range(50):
        order = np.zeros(chunks * 3 * kinds)
        order[draw.randrange(len(order))] = draw.uniform(-1, 1)
        off, added = drift.prices(order.reshape(chunks, 3, kinds))
        ends = sorted(draw.randint(0, layers) for _ in range(chunks * 3 - 1))
        taken, first = 0.0, 0
        for segment, end in enumerate([*ends, layers]):
            chunk, mode = segment // 3, 2 - segment % 3
            taken += sum(off[chunk, kind, mode] for kind in pattern[first:end])
            first = end
        assert taken >= added - 1e-9


def test_the_order_of_kinds_raises_the_bound_of_some_layouts() -> None:
    """Whose ranks would else hold the kinds that suit them; and lowers it of none."""
    raised, asked = 0, 0
    for seed in range(12):
        for cuts_of, least_s, _ in played(seed):
            if len(cuts_of.kinds) > 1 and math.isfinite(least_s):
                known = first_lines(*FreeCutProgram(cuts_of, least_s, ()).shape)
                with_order, without = (
                    FreeCutProgram(cuts_of, least_s, known, in_order=each).answer().bound_s
                    for each in (True, False)
                )
                assert with_order >= without * (1 - 1e-6)
                assert with_order <= least_s * CLOSE
                raised, asked = raised + (with_order > without * 1.001), asked + 1
    assert asked > 5
    assert raised > 0
