"""What the bound of every cut lets go of, and the faster cuts that it finds on its way."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from listed_layouts import listed_layouts
from small_cuts import small_question

from meshplan.costmodels.layouts import Bools, Ints
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.whole_cuts import WholeLayers
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.simulation import free_cuts
from meshplan.planner.search.simulation import listed_layouts as listed
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.free_cuts import FIRST, MORE, WIDE, FreeCutBounds
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts, looked_at
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import Pins, parse_pins

SEEDS = (2, 6, 10)
TWO_AND_FOUR = 64  # a question with V shapes of two ranks and of four


class Watched:
    """The bound of every cut, with layouts that are bounded loosely at first and closely then; and
    the least limit that layouts were let go at.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go_s, self.answers = list[float](), list[tuple[float, float]]()
        self.solved = self.loose = False
        self._below, self._bound_s = ListedLayouts.below, FreeCutBounds.bound_s
        monkeypatch.setattr("meshplan.planner.space.stage_splits.MOST_WAYS", 1)
        monkeypatch.setattr(ListedLayouts, "below", lambda *asked: self.below(*asked))
        monkeypatch.setattr(FreeCutBounds, "bound_s", lambda bounds: self.bound_s(bounds))
        monkeypatch.setattr(FreeCutBounds, "_solve", lambda *asked: self.solve(*asked))
        monkeypatch.setattr(FreeCutBounds, "_begin", lambda _, alike, at: done(alike, alike.begun))
        monkeypatch.setattr(FreeCutBounds, "_pack", lambda _, alike, *at: done(alike, alike.packed))

    def below(
        self, layouts: ListedLayouts, every: Sequence[Alike], below_s: float
    ) -> Iterator[Alike]:
        left = list(self._below(layouts, every, below_s))
        if sum(len(each.rows) for each in left) < sum(len(each.rows) for each in every):
            self.let_go_s.append(below_s)
        return iter(left)

    def bound_s(self, bounds: FreeCutBounds) -> float:
        self.solved, self.let_go_s = False, []
        bound_s = self._bound_s(bounds)
        self.answers.append((bounds._least_s, min(self.let_go_s, default=math.inf)))
        return bound_s

    def solve(self, bounds: FreeCutBounds, alike: Alike, at: int) -> None:
        """The first layout no closer than it is, and all later ones as closely as is wanted, unless
        all are `loose`.
        """
        found_s = bounds.aim_s if self.solved and not self.loose else 0.0
        self.solved = alike.solved[at] = True
        alike.bounds[at] = max(alike.bounds[at], min(found_s, bounds.aim_s))
        alike.changed()
        if alike.bounds[at] < bounds.aim_s:
            bounds.found_s = bounds.aim_s = float(alike.bounds[at])


def done(alike: Alike, what: Bools) -> None:
    """A step that bounds nothing."""
    what[:] = True
    alike.changed()


def test_what_a_loose_bound_lets_go_of_counts_when_the_bound_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best plan's layout is bounded loosely, and other layouts with larger bounds are not
    looked at. Then the wide gap is closed: no bound is above what was let go of.
    """
    watched = Watched(monkeypatch)
    for seed in SEEDS:
        solve(small_question(seed, 8), 1)
    assert len(watched.answers) == len(SEEDS)
    assert all(bound_s <= let_go_s for bound_s, let_go_s in watched.answers)


@pytest.mark.parametrize("loose", [False, True])
def test_only_what_leaves_the_gap_wide_is_shaken(
    loose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds close the gap, or stay as loose as they were."""
    shaken = list[None]()
    watched = Watched(monkeypatch)
    watched.loose = loose
    monkeypatch.setattr(FreeCutBounds, "_shake", lambda _: bool(shaken.append(None)))
    closed = list[bool]()
    for seed in SEEDS:
        shaken.clear()
        result = solve(small_question(seed, 8), 1)
        closed.append(result.bound_s >= result.solutions[0].step_time_s * SETTLED * WIDE)
        assert bool(shaken) != closed[-1]
    assert any(closed) != loose


def test_v_shapes_are_bounded_many_at_once_once_one_of_their_schedule_was_loose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its ranks: what its own program leaves below the limit asks for whole layers."""
    loose, asked = set[tuple[str, int]](), list[tuple[tuple[str, int], set[tuple[str, int]]]]()

    def fold(_: ListedLayouts, alike: Alike, aim_s: float) -> int:
        asked.append((alike.shape[:2], set(loose)))
        alike.bounds[:] = np.maximum(alike.bounds, aim_s)
        done(alike, alike.folded)
        return 1

    def of_one(whole: WholeLayers) -> float:
        same = whole.program.cuts.same
        loose.add((same.schedule, same.pp))
        return whole.below_s

    solve_one = FreeCutBounds._solve
    Watched(monkeypatch)
    monkeypatch.setattr(FreeCutBounds, "_solve", solve_one)
    monkeypatch.setattr(FreeCutBounds, "_proved_s", lambda *_: 0.0)
    monkeypatch.setattr(free_cuts, "folded_bound_s", of_one)
    monkeypatch.setattr(free_cuts, "fold", fold)
    solve(small_question(TWO_AND_FOUR, 8), 1)
    assert all(any(of == shape[0] for of, _ in known) for shape, known in asked)
    assert any(shape not in known for shape, known in asked)


def test_what_runners_up_find_changes_no_bound_of_every_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for when they are found, or a second processor has it from before them: a faster
    plan among them is not known to it on either way.
    """
    proved_s, limits_s = list[float](), list[float]()

    def faster(proof: Simulated, k: int, deadline: float | None) -> None:
        proved_s.append(proof.best_s)
        for kind, found in list(proof.best.items()):
            proof.best[kind] = found._replace(step_s=found.step_s / 2)

    def bound_s(bounds: FreeCutBounds) -> float:
        limits_s.append(bounds.limit_s)
        return math.inf

    monkeypatch.setattr(Simulated, "find_runners_up", faster)
    monkeypatch.setattr(FreeCutBounds, "bound_s", bound_s)
    found = solve(small_question(2, 8), 3)
    assert limits_s == [step_s * SETTLED for step_s in proved_s]
    assert found.solutions[0].step_time_s == proved_s[0] / 2


@pytest.mark.parametrize(("seed", "recompute"), [(21, "selective"), (193, "full")])
def test_a_faster_cut_recomputes_what_pins_say(
    seed: int, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer, though no more memory is needed: the plan is a cut that no list has. Its step is
    the limit that bounds are wanted up to.
    """
    monkeypatch.setattr("meshplan.planner.space.stage_splits.MOST_WAYS", 2)
    offered = list[tuple[int, ...]]()
    offer = FreeCutBounds._offer

    def watched(bounds: FreeCutBounds, row: int, variant: Variant, layers: Ints) -> None:
        offered.append(variant.modes)
        before_s, known = bounds.limit_s, len(bounds._faster)
        offer(bounds, row, variant, layers)
        plans = bounds._faster[known:]
        steps = [bounds.proof.judged_s(*plan) * SETTLED for plan in plans]
        assert bounds.limit_s == min([before_s, *steps])
        assert max(bounds.found_s, bounds.aim_s) <= bounds.limit_s

    monkeypatch.setattr(FreeCutBounds, "_offer", watched)
    q = small_question(seed, 8)
    twice = {"usable_memory_bytes": 2 * q.cluster.fillable_bytes}
    pins = Pins({**q.pins.axes, **parse_pins({"recompute": recompute}).axes})
    result = solve(replace(q, cluster=q.cluster.model_copy(update=twice), pins=pins), 1)
    assert offered
    stages = result.solutions[0].layout.stages
    assert [getattr(each, f"{recompute}_layers") for each in stages] == [s.layers for s in stages]


def test_mixed_cuts_of_a_tight_v_shape_close_its_gap() -> None:
    """Four ranks that hold little, 0.6 %: without a list of cuts the gap is 2.0 %, without the game
    over cuts with their mixes 3.2 %.
    """
    arguments = Arguments(
        model="llama-3.2-3b", gpus=4, cluster="dgx-h100", engine="generic", seq_len="8192",
        global_batch=8, headroom="45%", pins={"pipeline_parallel": "4", "schedule": "zb_v"},
    )  # fmt: skip
    assert solve(ask(arguments).question, 1).gap < 0.01


def test_what_ranks_cannot_do_is_let_go_before_a_wide_gap_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where that is all there is, no layout is bounded below the limit that is wanted, though each
    alone is bounded loosely; and the budget of wide gaps pays for it.
    """
    watched, asked, left = Watched(monkeypatch), list[float](), list[int]()
    watched.loose = True

    def let_go(_: ListedLayouts, every: Sequence[Alike], below_s: float) -> int:
        for each in every:
            each.bounds[:] = each.bounds.clip(below_s)
            each.changed()
        asked.append(below_s)
        return 7

    def lets_go(bounds: FreeCutBounds) -> float:
        bound_s = watched.bound_s(bounds)
        left.append(bounds._more)
        return bound_s

    monkeypatch.setattr(ListedLayouts, "let_go", let_go)
    monkeypatch.setattr(FreeCutBounds, "bound_s", lets_go)
    for seed in SEEDS:
        solve(small_question(seed, 8), 1)
    assert [least_s for least_s, _ in watched.answers] == pytest.approx(asked)
    assert left == [MORE - 7] * len(SEEDS)


class FullUpTo:
    """A program whose ranks cannot hold all layers in steps up to `full_s`."""

    def __init__(self, full_s: float) -> None:
        self.full_s = full_s

    def overfull(self, limit_s: float) -> bool:
        """Whether they cannot below a limit."""
        return limit_s <= self.full_s


def test_a_bound_of_whole_layers_is_told_to_a_ten_thousandth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between 1 and 2 s ranks are full up to 1.7 s; nothing else is proved."""
    monkeypatch.setattr(FreeCutBounds, "_proved_s", lambda *_: 0.0)
    monkeypatch.setattr(FreeCutBounds, "_ended", False)
    bounds = FreeCutBounds.__new__(FreeCutBounds)
    found_s = bounds._halved_s(cast(FreeCutProgram, FullUpTo(1.7)), 1.0, 2.0)
    assert 1.7 * (1 - 2e-4) < found_s <= 1.7


def test_what_says_no_more_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that the budget ends may prove more the next time: here 1.1, then 1.2, of the 2 s that
    are wanted. The third proves no more, so that it is the last, and no more is wanted of others.
    """
    proof, variant, rows, _ = next(listed_layouts("generic", range(7)))
    alike = Alike(variant, proof.open.shape(int(rows[0]), variant), rows[:1], np.ones(1), 4)
    proof.limit_s = 4.0
    bounds = FreeCutBounds(proof)
    bounds._layouts = ListedLayouts(proof, rows)
    bounds.limit_s, bounds.found_s, bounds.aim_s = 4.0, 2.0, 2.0
    proved = iter((1.1, 1.2, 1.2))
    monkeypatch.setattr(FreeCutBounds, "_ended", True)
    monkeypatch.setattr(FreeCutBounds, "_proved_s", lambda *_: next(proved))
    monkeypatch.setattr(FreeCutBounds, "_whole_s", lambda *_: (0.0, True))
    for solved, aim_s in ((False, 2.0), (False, 2.0), (True, 1.2)):
        bounds._solve(alike, 0)
        assert (bool(alike.solved[0]), bounds.aim_s) == (solved, aim_s)
    alike.again(0.0, 2.0)
    assert alike.looked.tolist() == [0.0]


def test_the_pace_of_a_wide_gap_counts_once_layouts_are_begun() -> None:
    """Nothing is gained by the first units of work, and there is hope until they are spent."""
    proof, variant, rows, _ = next(listed_layouts("generic", range(7)))
    proof.limit_s = 2.0
    bounds = FreeCutBounds(proof)
    bounds._alike = [
        Alike(variant, proof.open.shape(int(rows[0]), variant), rows[:1], np.ones(1), 4)
    ]
    hopes = list[bool]()
    for spent in (0, FIRST - 1, FIRST):
        bounds._more = MORE - spent
        hopes.append(bounds._has_hope(1.0))
    assert hopes == [True, True, False]


@pytest.mark.parametrize(("late", "most", "found"), [
    pytest.param(False, 9, [2, 4, 5], id="none that keeps activations on the host"),
    pytest.param(False, 2, [2, 5], id="the smallest bounds, as many as memory allows"),
    pytest.param(True, 9, [], id="none once it is late"),
])  # fmt: skip
def test_which_rows_are_bounded_in_every_cut(
    late: bool, most: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five rows, of which two have their activations on the host."""
    monkeypatch.setattr(listed, "MOST_ROWS", most)
    bounds, offloaded = np.array([9, 1, 2, 1, 4, 3.0]), np.array([0, 0.5, 0, 1, 0, 0])
    space = SimpleNamespace(layouts=SimpleNamespace(activation_offload=offloaded))
    proof = SimpleNamespace(
        tally=SimpleNamespace(late=late), space=space, open=SimpleNamespace(row_bounds=bounds)
    )
    assert looked_at(cast(Simulated, proof), np.arange(1, 6)).tolist() == found
