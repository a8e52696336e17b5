"""What is settled, shaken and open of each kind in a proof under the simulation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from every_row import every_row
from short_of_memory import question

from meshplan.costmodels.layout import Stage
from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.simulated import Passes, mean_rank_bounds
from meshplan.planner.cuts import budget
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import StagePlan, evaluate
from meshplan.planner.search import near_kinds
from meshplan.planner.search.best_simulated import _of_every_cut
from meshplan.planner.search.found import SETTLED, Kind, kind_of
from meshplan.planner.search.near_kinds import settle_near_kinds
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import space_of
from meshplan.planner.search.simulation import open_layouts
from meshplan.planner.search.simulation.free_cuts import EveryCut
from meshplan.planner.search.simulation.kind_cuts import KindCuts
from meshplan.planner.search.simulation.open_layouts import OpenLayouts, of_the_same_rows
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import parse_pins

LONG_S = 1e6
PINNED = {"micro_batch_size": "1", "virtual_stages": "2"}


@pytest.fixture(name="proof")
def proof_fixture() -> Simulated:
    """One that ended with a proof."""
    found = simulated(PINNED)
    assert math.isinf(found.prove(None))
    return found


def simulated(pinned: dict[str, str]) -> Simulated:
    """Of `qwen3.5-9b` on 8 GPUs."""
    asked = replace(question("qwen3.5-9b", 8, "hai-llm"), pins=parse_pins(pinned))
    space = space_of(asked)
    return Simulated(
        asked, space, every_row(asked, space),
        lambda layout: simulated_s(case_at(asked, layout)),
        partial(layout_of_row, space.layouts), limit_s=LONG_S,
    )  # fmt: skip


def test_other_cuts_of_every_row_are_open(proof: Simulated) -> None:
    """Where a list says how rows are cut: no lower than their bound and that of all."""
    kind, bounds = proof.kind(proof.ranked()[0]), proof.open.row_bounds
    rows = [row for row in range(len(bounds)) if kind_of(proof.space.layouts, row) == kind]
    least_s = float(bounds[rows].min())
    assert _of_every_cut(proof, math.inf, 0.0).least_s[kind] == least_s
    assert _of_every_cut(proof, math.inf, 2 * least_s).least_s[kind] == 2 * least_s
    assert not _of_every_cut(proof, float(bounds.min()), 0.0).least_s


def with_a_layer_moved(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """From each chunk to each."""
    for at, to in permutations(range(len(stages)), 2):
        layers = [each.layers - (i == at) + (i == to) for i, each in enumerate(stages)]
        yield tuple(
            Stage(n, each.full_layers, each.selective_layers)
            for n, each in zip(layers, stages, strict=True)
        )


def spoilt(proof: Simulated) -> tuple[Kind, float]:
    """The kind of the best, whose cut has a layer at the wrong place now; and its step before."""
    best = proof.ranked()[0]
    problem, _ = proof.problem(proof.row_of(best), best.variant)
    plans = (evaluate(problem, each) for each in with_a_layer_moved(best.plan.stages))
    kind, plan = proof.kind(best), next(filter(None, plans))
    proof.best[kind] = best._replace(step_s=math.inf)
    assert proof.judged_s(proof.row_of(best), best.variant, plan) > best.step_s
    return kind, best.step_s


def test_every_cut_of_a_kind_is_bounded(proof: Simulated) -> None:
    """By less than a cut that is known, and by more than its rows; of no other kind's cuts."""
    kind, step_s = spoilt(proof)
    rows = np.array([kind_of(proof.space.layouts, row) == kind for row in range(len(proof.kept))])
    assert not rows.all()
    cuts = KindCuts(proof, kind)
    proof.best[1, 1, 1, 64] = proof.best[kind]._replace(step_s=1.0)
    assert KindCuts(proof, kind).limit_s == cuts.limit_s > proof.best_s
    del proof.best[1, 1, 1, 64]
    bound_s = cuts.settled().bound_s
    assert (cuts._some == rows).all()
    assert proof.open.row_bounds[rows].min() * 1.001 < bound_s <= step_s * (1 + 2e-6)
    proof.best[kind] = proof.best[kind]._replace(step_s=proof.open.row_bounds[rows].min())
    assert math.isinf(KindCuts(proof, kind).settled().bound_s)


def test_a_kind_that_was_overtaken_is_bounded_too(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a runner-up, which it is then; each kind once, and none when it is late."""
    proof.find_runners_up(2, None)
    first, second = (proof.kind(each) for each in proof.ranked())
    proof.best[first] = proof.best[first]._replace(step_s=1.0)
    proof.best[second] = proof.best[second]._replace(step_s=1.01)
    asked = list[Kind]()

    def settled(own: KindCuts) -> EveryCut:
        asked.append(kind := kind_of(proof.space.layouts, int(np.flatnonzero(own._some)[0])))
        proof.best[kind] = proof.best[kind]._replace(step_s=0.99 - len(asked) / 1000)
        return EveryCut(math.inf)

    monkeypatch.setattr(KindCuts, "settled", settled)
    settle_near_kinds(proof, 2, 0.5)  # then next to no kind is bounded any higher
    assert not asked
    settle_near_kinds(proof, 2, 0.98)
    assert asked == [second, first]
    proof.tally.end()
    settle_near_kinds(proof, 2, 0.98)
    assert asked == [second, first]


@pytest.mark.parametrize("two", [False, True])
def test_near_kinds_are_bounded_at_once_where_another_processor_is_idle(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch, two: bool
) -> None:
    """Neither knows what is found of the other; one whose step was found meanwhile, of which that
    says nothing, is bounded anew. The proof is told what is faster.
    """
    proof.find_runners_up(2, None)
    first, second = (proof.kind(each) for each in proof.ranked())
    known, third = proof.best[second], (1, 1, 1, 64)
    proof.best[first] = known._replace(step_s=1.0)
    proof.best[second], proof.best[third] = (known._replace(step_s=s) for s in (1.01, 1.02))
    at_once, asked = list[list[Kind]](), list[tuple[Kind, float]]()

    def settled(own: KindCuts) -> EveryCut:
        step_s = own.limit_s / SETTLED
        kind = next(kind for kind in (second, third) if own.proof.best[kind].step_s == step_s)
        asked.append((kind, round(step_s, 3)))
        own.proof.best.clear()  # of its own
        faster = ((proof.row_of(known), known.variant, known.plan),) if kind == second else ()
        return EveryCut(0.5 * step_s, faster)

    def done_of_each(work: Callable[[Kind], EveryCut], kinds: list[Kind]) -> list[EveryCut]:
        at_once.append(kinds)
        return [work(kind) for kind in kinds]

    def judged_s(row: int, variant: Variant, plan: StagePlan | None) -> float:
        assert (row, variant, plan) == (proof.row_of(known), known.variant, known.plan)
        proof.best[third] = proof.best[third]._replace(step_s=1.015)
        return 1.005

    monkeypatch.setattr(KindCuts, "settled", settled)
    monkeypatch.setattr(near_kinds, "is_idle", lambda: two)
    monkeypatch.setattr(near_kinds, "done_of_each", done_of_each)
    monkeypatch.setattr(proof, "judged_s", judged_s)
    monkeypatch.setattr(
        proof, "kind", lambda each: {1.0: first, 1.01: second}.get(each.step_s, third)
    )
    settle_near_kinds(proof, 3, 0.98)
    assert at_once == [[second, third]] * two
    assert asked == [(second, 1.01), *[(third, 1.02)] * two, (third, 1.015)]
    assert proof.open_kinds.every_cut_s == {second: 0.505, third: 0.5075}


@pytest.mark.few(1)
@pytest.mark.parametrize(("open_part", "known_part"), [(None, 1.0), (0.95, 0.95), (0.8, 0.9)])
def test_what_was_settled_is_no_faster_than_the_best(
    proof: Simulated, open_part: float | None, known_part: float
) -> None:
    """Runners-up go on from there, not from its first bound; but from a cut that stays open."""
    entry = proof._settled[0]._replace(bound_s=0.9 * proof.best_s)
    proof._settled = [entry]
    if open_part:
        proof._left = [entry._replace(bound_s=open_part * proof.best_s)]
    (known,) = proof._slower()
    assert known.bound_s == known_part * proof.best_s


@pytest.mark.parametrize(("proved", "part"), [(1.0, 1), (0.98, budget.OPEN)])
def test_an_open_proof_leaves_runners_up_a_part_of_the_budget(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch, proved: float, part: int
) -> None:
    """The rest of it would go on with what the proof could not settle."""
    left = list[int]()
    monkeypatch.setattr(Simulated, "settle_below", lambda own, *_: left.append(own.tally.left))
    proof.proved_s = proved * proof.best_s
    proof.find_runners_up(3, None)
    assert left == [budget.RUNNERS // part]


def test_what_is_left_open_is_rows_crowds_and_layouts(proof: Simulated) -> None:
    """Its least bound is that of all that is open, whichever of these holds it; and of what is not
    below its own limit there is none.
    """
    opened, holders = OpenLayouts(proof.space, proof.prices, proof.passes), set[int]()
    while math.isfinite(opened.least_s):
        holders.add([opened._row_s, opened._crowd_s, opened.first_s].index(opened.least_s))
        assert opened.asked()[1].min() == opened.least_s
        if not opened.closer(math.inf):
            opened.pop()
    assert holders == {0, 1, 2}
    anew = OpenLayouts(proof.space, proof.prices, proof.passes)
    anew.reopen([], lambda rows: np.zeros(len(rows)))
    assert not len(anew.asked()[0])
    assert anew.least_s < math.inf


def test_rows_bounded_roughly_together_are_bounded_as_alone() -> None:
    """What is looked up once for all variants of the same rows is what each would look up."""
    proof = simulated({"micro_batch_size": "1"})
    opened = OpenLayouts(proof.space, proof.prices, proof.passes)
    groups = proof.space.by_variant(np.arange(len(proof.space.layouts)))
    parts = of_the_same_rows(groups)
    assert sorted(at for part in parts for at in part) == list(range(len(groups)))
    assert max(map(len, parts)) > 1
    for part in parts:
        together = opened._roughly([groups[at] for at in part], math.inf)
        for at, bounds in zip(part, together, strict=True):
            variant, rows = groups[at]
            same = run_as(proof.space, proof.prices, rows, variant)
            bound = bounds_of_any_split if variant.virtual_stages > 1 else mean_rank_bounds
            alone = bound(same, Passes.of(proof.passes, rows, same))
            assert (bounds == np.maximum(alone, opened.row_bounds[rows])).all()


@pytest.mark.parametrize(("few", "begins_here"), [(0, False), (10**9, True)])
def test_many_rows_are_divided_from_the_first(
    few: int, begins_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What surely takes longer than a fork is not begun in one process alone, and bounds are the
    same.
    """
    proof, begun = simulated({"micro_batch_size": "1"}), list[str]()
    for name in ("done_of_each", "done_of_many"):
        monkeypatch.setattr(open_layouts, name, _told(begun, name))
    opened, plainly = (OpenLayouts(proof.space, proof.prices, proof.passes) for _ in range(2))
    monkeypatch.setattr(open_layouts, "FEW_ROUGH", few)
    opened.closer(math.inf)
    assert begun == ["done_of_many" if begins_here else "done_of_each"]
    monkeypatch.undo()
    plainly.closer(math.inf)
    assert [crowd.bounds.tolist() for crowd in opened._crowds] == [
        crowd.bounds.tolist() for crowd in plainly._crowds
    ]


def _told(begun: list[str], name: str) -> Callable[..., list[Any]]:
    """A function of `open_layouts` that says its name."""
    work = getattr(open_layouts, name)

    def told(*pieces: Any) -> list[Any]:
        begun.append(name)
        return list(work(*pieces))

    return told
