"""Ranks that do the work of whole layers: by hand, against every way to share layers out, and
against plans.
"""

import random
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.planner.bounds import whole_kinds
from meshplan.planner.bounds.whole_kinds import can_hold_whole
from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.stages.any_cut import any_cut


@pytest.mark.parametrize(
    ("layer_s", "counts", "room_s", "holds"),
    [
        pytest.param([2], [7], [8, 6], True, id="4 + 3 layers of 2 s"),
        pytest.param([2], [7], [7.9, 6], False, id="3 + 3 of 7"),
        pytest.param([0.1], [6], [0.3, 0.3], True, id="3 + 3 but for rounding"),
        pytest.param([1, 10], [6, 3], [18, 18], False, id="2 of 10 s > 18 s on one, mean 18 s"),
        pytest.param([1, 10], [6, 3], [20, 16], True, id="2 of 10 s; 1 of 10 s and 6 of 1 s"),
        pytest.param([1, 10], [7, 3], [20, 16], False, id="one of 1 s is left"),
        pytest.param([10, 1], [3, 6], [20, 16], True, id="kinds in any order"),
        pytest.param([1, 10, 11], [6, 2, 1], [20, 16], True, id="11 s counts as 10 s"),
        pytest.param([1, 2, 9], [1, 2, 2], [8, 16], False, id="a rank of 9 s too few"),
    ],
)
def test_layers_are_shared_out_whole(
    layer_s: list[float], counts: list[int], room_s: list[float], holds: bool
) -> None:
    """The ids say what each rank holds."""
    each = can_hold_whole(np.array([layer_s], float), np.array(counts), np.array([room_s], float))
    assert each.tolist() == [holds]


def test_two_kinds_are_held_where_some_way_holds_them() -> None:
    """Of all ways to share them out; both answers come up, also for several layouts at once."""
    draw, found = random.Random(0), list[bool]()
    for _ in range(60):
        ranks, counts = draw.randint(2, 3), [draw.randint(1, 4), draw.randint(1, 4)]
        layer_s = np.array([[draw.randint(1, 9), draw.randint(1, 9)] for _ in range(3)], float)
        mean_s = layer_s @ counts / ranks
        room_s = mean_s[:, None] * [[draw.uniform(0.9, 1.6) for _ in range(ranks)] for _ in mean_s]
        held = can_hold_whole(layer_s, np.array(counts), room_s)
        ways = [_ways(count, ranks) for count in counts]
        for each_s, room, answer in zip(layer_s, room_s, held.tolist(), strict=True):
            fits = any((a * each_s[0] + b * each_s[1] <= room).all() for a, b in product(*ways))
            assert answer == fits
            found.append(answer)
    assert 0.2 < np.mean(found) < 0.8


def _ways(count: int, ranks: int) -> list[np.ndarray]:
    every = product(range(count + 1), repeat=ranks)
    return [np.array(each) for each in every if sum(each) == count]


def test_many_layers_of_both_parts_are_not_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than `MOST` nothing is said."""
    case = np.array([[1.0, 10]]), np.array([6, 3]), np.array([[18.0, 18]])
    monkeypatch.setattr(whole_kinds, "MOST", 2)
    assert can_hold_whole(*case).all()


def test_no_plan_is_let_go_below_a_limit_above_its_step() -> None:
    """Below a limit in which no rank can work, it bounds all. Bounds do not fall, what is not
    below the limit is not looked at, and work is counted.
    """
    plans = 0
    for proof, variant, rows, same in listed_layouts("generic", range(4)):
        row, shape = int(rows[0]), (same.schedule, same.pp, same.vpp, int(same.m[0]))
        plan, _ = any_cut(proof.problem(row, variant)[0])
        if plan is None:
            continue
        step_s = proof.times_of(row, variant, plan.stages).step_s(plan.stages)
        layouts = ListedLayouts(proof, rows)
        for below_s, known_s, bound_s in (
            (step_s * 1.001, step_s / 10, step_s / 10),
            (step_s / 1e3, step_s / 1e4, step_s / 1e3),
            (step_s / 1e3, step_s / 2, step_s / 2),
        ):
            alike = Alike(variant, shape, rows[:1], np.array([known_s]), len(same.pattern))
            work = layouts.let_go([alike], below_s)
            assert alike.bounds.tolist() == [bound_s]
            assert alike.open_s == bound_s
            assert (work > 0) == (known_s < below_s)
        plans += 1
    assert plans


def test_ways_whose_ranks_have_other_work_are_let_go_apart() -> None:
    """Of one row, ways to run it that differ in what they replay, in ranks, in micro-batches or in
    where the head is: each below the least seconds of all ways to share its layers out, together as
    alone, whichever comes first. What is bounded by more stays so.
    """
    proof, variant, rows, same = next(
        each
        for each in listed_layouts("generic", range(8))
        if set(each[3].pattern) == {0} and len(each[2]) > 1
    )
    none, full = (replace(variant, modes=(1,), columns=(0, at, 2)) for at in (0, 2))
    ways: list[tuple[Variant, Shape]] = [
        (none, ("interleaved_1f1b", 2, 2, 4)),
        (full, ("interleaved_1f1b", 2, 2, 4)),
        (none, ("interleaved_1f1b", 3, 2, 4)),
        (none, ("interleaved_1f1b", 2, 2, 5)),
        (none, ("zb_v", 2, 2, 4)),
        (none, ("zb_v", 3, 2, 4)),
    ]
    layouts, p, row = ListedLayouts(proof, rows[:2]), proof.passes, rows[0]

    def bounds_s(some: list[tuple[Variant, Shape]], below_s: float) -> list[float]:
        """Of the row; beside another one, and each of both is bounded by more elsewhere."""
        more_s = np.array([[0, 2 * below_s], [2 * below_s, 0]])
        every = [Alike(*way, rows[:2], x.copy(), len(same.pattern)) for x in more_s for way in some]
        layouts.let_go(every, below_s)
        found = np.array([each.bounds for each in every])
        assert (found >= np.repeat(more_s, len(some), axis=0)).all()
        return list(map(float, found[: len(some), 0]))

    def least_s(way: tuple[Variant, Shape]) -> float:
        (_, ranks, _, m), column = way[1], way[0].columns[1]
        ends_s = np.zeros(ranks)
        waits_s = p.blocking_s[row]  # which both ends' seconds are without
        ends_s[0] = p.embedding_s[row].sum() + waits_s
        ends_s[0 if way[1][0] == "zb_v" else -1] += p.head_s[row].sum() + waits_s
        layer_s = p.layer_s[row, 0, column].sum()
        shares = _ways(len(same.pattern), ranks)
        return float(min((ends_s + share * layer_s).max() for share in shares) * m + p.step_s[row])

    each_s = list(map(least_s, ways))
    for way, known_s in zip(ways, each_s, strict=True):
        for part in (0.999, 1.001):
            assert (bounds_s([way], part * known_s)[0] == 0) == (part > 1)
    for one, other in permutations(range(len(ways)), 2):
        below_s = (each_s[one] + each_s[other]) / 2
        expected = [below_s * (each_s[at] > below_s) for at in (one, other)]
        assert bounds_s([ways[one], ways[other]], below_s) == expected
