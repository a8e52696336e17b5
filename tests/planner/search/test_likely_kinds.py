"""Kinds that the search for runners-up left open, though they are nearly as fast as the best."""

import math
from dataclasses import replace
from functools import partial

import pytest
from every_row import every_row
from short_of_memory import question

from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.search import likely_kinds
from meshplan.planner.search.found import Kind, kind_of
from meshplan.planner.search.likely_kinds import Likely, settle_likely_kinds
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import space_of
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
        asked, space, every_row(asked, space),
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


@pytest.mark.few(1)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_likely_kind_without_a_plan_gets_one(proof: Simulated, is_open: bool) -> None:
    """If something of it is open."""
    kind, step_s = second(proof)
    del proof.best[kind]
    proof.open_kinds.least_s = {kind: 0.9 * step_s} if is_open else {}
    settle_likely_kinds(proof, TOP, math.inf)
    assert (kind in proof.best) == is_open
    assert not is_open or proof.best[kind].step_s <= step_s * 1.001


@pytest.mark.few(1)
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
    assert (proof.open_kinds.settled_s.get(kind) == proof.best[kind].step_s) == settled


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


def test_only_what_may_be_shown_is_likely(proof: Simulated) -> None:
    """Open below the limit, and expected near it at most; nothing where of the best kind nothing
    is expected.
    """
    layouts, best = proof.space.layouts, proof.kind(proof.ranked()[0])
    kinds = {kind_of(layouts, row) for row in range(len(layouts))}
    most_s = 1.02 * max(each.step_s for each in proof.ranked()[:2])
    proof.open_kinds.least_s = dict.fromkeys(kinds, 0.0)
    every = [each.kind for each in likely_kinds._likely(proof, LONG_S, any_cut=False)]
    near = list(likely_kinds._likely(proof, most_s, any_cut=False))
    assert 0 < len(near) < len({*every} & {each.kind for each in of_rows(proof, most_s)})
    assert max(each.expected_s for each in near) < most_s * likely_kinds.NEAR
    proof.open_kinds.least_s = dict.fromkeys(kinds, most_s)
    assert not list(likely_kinds._likely(proof, most_s, any_cut=False))
    others = [each for each in of_rows(proof, LONG_S) if each.kind != best]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likely_kinds, "_estimated", lambda *_: others)
        assert not list(likely_kinds._likely(proof, LONG_S, any_cut=True))


def of_rows(proof: Simulated, most_s: float) -> list[Likely]:
    """Kinds with rows below the limit, in the scale of the estimate."""
    return likely_kinds._estimated(proof, most_s)


def test_what_is_shown_at_most(proof: Simulated) -> None:
    """As slow as the last of the best; 5 % behind the first where that is slower, or none yet."""
    kind, best_s = second(proof)[0], proof.best_s
    for slower, most in ((1.01, 1.01), (1.2, 1.05)):
        proof.best = {kind: proof.best[kind]._replace(step_s=slower * best_s)} | {
            proof.kind(each): each for each in proof.ranked()[:1]
        }
        assert proof.shown_below_s(2) == pytest.approx(most * best_s)
        assert proof.shown_below_s(3) == pytest.approx(1.05 * best_s)
        far = Likely(kind, 0, proof.best[kind].variant, 1.1 * best_s)
        assert not list(likely_kinds._stand_ins(proof, [far], 2))


@pytest.mark.parametrize(("late", "planned", "settled"), [(False, 6, 2), (True, 0, 0)])
def test_a_few_are_looked_at_while_there_is_time(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch, late: bool, planned: int, settled: int
) -> None:
    """Those without a plan, and stand-ins."""
    kind, best = second(proof)[0], proof.ranked()[0]
    new = [Likely((1, 1, 1, 100 + n), 0, best.variant, 0.0) for n in range(10)]
    known = Likely(kind, 0, best.variant, 0.0)
    seen = {"_plan": list[Kind](), "settle_kind": list[Kind]()}
    monkeypatch.setattr(likely_kinds, "_likely", lambda *_, **__: [*[known] * 3, *new])
    monkeypatch.setattr(likely_kinds, "_plan", lambda _, each: seen["_plan"].append(each.kind))
    monkeypatch.setattr(
        likely_kinds, "settle_kind", lambda _, kind: seen["settle_kind"].append(kind)
    )
    proof.open_kinds.least_s = {kind: 0.0}
    proof.tally.deadline = 0.0 if late else None
    settle_likely_kinds(proof, TOP, math.inf)
    assert seen["_plan"] == [each.kind for each in new[:planned]]
    assert seen["settle_kind"] == [kind] * settled


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("found_part", "open_part", "settled"),
    [
        pytest.param(1.0, 0.9, False, id="settled before"),
        pytest.param(1.1, 0.9, True, id="a faster one found since"),
        pytest.param(1.1, 1.2, False, id="nothing listed may be shown"),
    ],
)
def test_a_kind_is_settled_where_that_may_show_it(
    proof: Simulated,
    monkeypatch: pytest.MonkeyPatch,
    found_part: float,
    open_part: float,
    *,
    settled: bool,
) -> None:
    """Not twice from the same plan, and not where its list is bounded above what is shown."""
    (kind, step_s), asked = second(proof), list[Kind]()
    most_s = proof.shown_below_s(TOP)
    proof.open_kinds.settled_s = {kind: found_part * step_s}
    proof.open_kinds.least_s, proof.open_kinds.rest_s = {kind: open_part * most_s}, math.inf
    monkeypatch.setattr(likely_kinds, "settle_kind", lambda _, kind: asked.append(kind))
    likely_kinds._look_at(proof, kind, most_s)
    assert asked == [kind] * settled


def test_an_interrupt_leaves_what_was_found(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends what looks further, not the answer."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = dict(proof.best)
    monkeypatch.setattr(Simulated, "shown_below_s", interrupted)
    settle_likely_kinds(proof, TOP, math.inf)
    assert proof.best == before


def test_only_what_has_a_plan_and_cuts_of_no_list_is_looked_at_for_them(proof: Simulated) -> None:
    """In engines that cut anywhere."""
    kind, _ = second(proof)
    found = likely_kinds._off_list(proof, LONG_S)
    assert kind in found
    assert found <= proof.best.keys()
    del proof.best[kind]
    assert likely_kinds._off_list(proof, LONG_S) == found - {kind}
    listed = proof.space.legality.model_copy(update={"uneven_stages": "ends"})
    proof.space = replace(proof.space, legality=listed)
    assert not likely_kinds._off_list(proof, LONG_S)


def test_the_likeliest_kinds_come_first(proof: Simulated) -> None:
    """Each kind once, but for that of the best."""
    layouts = proof.space.layouts
    kinds = {kind_of(layouts, row) for row in range(len(layouts))}
    proof.open_kinds.least_s = dict.fromkeys(kinds, 0.0)
    likely = list(likely_kinds._likely(proof, LONG_S, any_cut=False))
    assert {each.kind for each in likely} <= kinds - {proof.kind(proof.ranked()[0])}
    assert len({each.kind for each in likely}) == len(likely) > 1
    assert sorted(likely, key=lambda each: each.expected_s) == likely
