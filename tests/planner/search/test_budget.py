"""What the search under the simulation is charged, and what a deadline leaves."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
from every_row import every_row

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.cuts import budget
from meshplan.planner.cuts.budget import Tally
from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.cuts.moved_layers import MovedLayers
from meshplan.planner.cuts.recompute_chains import MeanOfChains, MixAnswer
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.search.simulation import cut_mixes
from meshplan.planner.search.simulation.cut_mixes import AheadOfTurn
from meshplan.planner.search.simulation.layer_moves import LayerMoves
from meshplan.planner.search.simulation.open_layouts import Open, OpenLayouts
from meshplan.planner.search.simulation.pace import ProofPace
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import parse_pins

HUGE = 10**12
PINNED = {"micro_batch_size": "1", "virtual_stages": "2"}


def question(layers: int) -> Question:
    """The first layers of a hybrid, in an engine that cuts anywhere."""
    model = read_model("qwen3.5-27b")[1]
    return Question(
        model=replace(model, pattern=model.pattern[:layers]), gpus=8, pins=parse_pins(PINNED),
        training=Training(seq_len=8192, global_batch_size=16), cluster=load_cluster("dgx-h100"),
        engine=load_engine("hai-llm"),
    )  # fmt: skip


QUESTION = question(20)


@pytest.fixture(name="least_s", scope="module")
def least_s_fixture() -> float:
    """The fastest step of its listed cuts that is found with nothing in the way, which is no faster
    than the least.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerMoves, "look", lambda *_, **__: None)
        found = solve(QUESTION, 1)
    assert found.listed_bound_s > 0.999 * found.solutions[0].step_time_s
    return found.solutions[0].step_time_s


def begun(**options: Any) -> Simulated:
    """A proof of the question that knows of no plan."""
    space = space_of(QUESTION)
    return Simulated(
        QUESTION, space, every_row(QUESTION, space), lambda _: math.inf,
        partial(layout_of_row, space.layouts), **options,
    )  # fmt: skip


def counted(patch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Whatever that method is called with from now on, in this process."""
    found, own = list[object](), getattr(owner, name)

    def call(*arguments: Any) -> Any:
        found.append(arguments)
        return own(*arguments)

    patch.setattr(owner, name, call)
    return found


METHODS = ((Simulated, "_settle"), (AheadOfTurn, "by_chains"))


@pytest.fixture(name="often", scope="module")
def often_fixture() -> dict[str, int]:
    """How many times each of `METHODS` is called where nothing costs much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulated, "find_runners_up", lambda *_: None)  # has its own budget
        calls = {name: counted(patch, owner, name) for owner, name in METHODS}
        solve(QUESTION, 1)
    return {name: len(found) for name, found in calls.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("cost", "owner", "name"),
    [
        ("OPENED", *METHODS[0]),
        *((cost, *METHODS[1]) for cost in ("CHAINS", "CHAINED", "KNAPSACKS")),
    ],
)
def test_what_costs_more_than_is_left_is_done_once(
    cost: str, owner: type, name: str, often: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is cheap, as often as it takes."""
    assert often[name] > 1
    monkeypatch.setattr(Simulated, "find_runners_up", lambda *_: None)
    monkeypatch.setattr(budget, cost, HUGE)
    done = counted(monkeypatch, owner, name)
    solve(QUESTION, 1)
    assert len(done) == 1


def test_a_proof_in_vain_leaves_open_what_it_has_not_settled(
    least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its bound; what was found until then is kept, and runners-up are looked for."""
    monkeypatch.setattr(ProofPace, "is_in_vain", lambda *_: True)
    settled = counted(monkeypatch, Simulated, "_settle")
    found = solve(QUESTION, 1)
    assert not settled
    assert found.listed_bound_s < least_s < found.solutions[0].step_time_s * (1 + 1e-9)
    assert solve(QUESTION, 2).solutions[1].step_time_s < math.inf
    assert settled


def test_closer_bounds_are_charged_by_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that took more than is left are the last."""
    monkeypatch.setattr(Simulated, "find_runners_up", lambda *_: None)
    own = OpenLayouts.closer

    def dear(opened: OpenLayouts, limit_s: float) -> bool:
        opened.work += HUGE
        return own(opened, limit_s)

    monkeypatch.setattr(OpenLayouts, "closer", dear)
    done = counted(monkeypatch, OpenLayouts, "closer")
    solve(QUESTION, 1)
    assert len(done) == 1


def test_a_layout_whose_cuts_wait_for_a_deadline_stays_open() -> None:
    """None of its cuts is looked at any more, so nothing is known of it beyond its bound."""
    proof = begun()
    while proof.open.closer(math.inf):
        pass
    entry = proof.open.first
    proof.tally.deadline = 0.0
    (left,) = proof._settle(entry, lambda _: math.inf)
    assert (left.row, left.variant) == (entry.row, entry.variant)
    assert entry.bound_s <= left.bound_s < math.inf
    assert proof.tally.simulated == 0


@dataclass
class Distance:
    """What is left of a proof whose plan takes a second: its smallest bound."""

    least_s: float


@pytest.mark.parametrize(
    ("least_s", "left", "more", "goes_on"),
    [
        (0.5, (3, 9), (3, 9), True), (0.5, (1, 9), (5, 5), True),
        (0.5, (0, 9), (4, 5), True), (0.5, (-5, 9), (3, 1), True),
        (0.5, (-5, 4), (-1, 0), False), (0.5, (-5, 0), (-5, 0), False),
        (0.98, (0, 9), (0, 9), False), (0.98, (1, 0), (1, 0), True),
    ],
)  # fmt: skip
def test_more_of_the_budget_comes_where_the_gap_is_wide(
    least_s: float,
    left: tuple[int, int],
    more: tuple[int, int],
    goes_on: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four at a time, as long as there are some, and only once less than half as many is left;
    `left` and `more` are the budget and what may come, before and after.
    """
    monkeypatch.setattr(budget, "MORE", 4)
    proof = begun(limit_s=1.0, more=left[1])
    proof.open, proof.tally.left = Distance(least_s), left[0]  # type: ignore[assignment]
    assert (proof._goes_on(), proof.tally.left) == (goes_on, more[0])
    assert max(0, proof._more) == more[1]


@pytest.mark.parametrize(
    ("bound_s", "open_s", "left", "asked"),
    [(0.98, 0.99, 0, 0), (0.9, 0.99, 0, 1), (0.98, 1.0, 0, 1), (0.98, 0.99, 1, 1)],
)
def test_exact_mixes_are_asked_for_where_they_may_bring_the_proof(
    bound_s: float, open_s: float, left: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or narrow a wide gap: not of what is near the best, where the budget left other layouts open,
    for then it stays FEASIBLE.
    """
    entry = Open(bound_s, (0, 0, 0), 0, Variant("1f1b", 1, (0,)), Cut(bound_s, (), tuple), 0)
    done = list[Open]()

    def stays(_: Simulated, cut: Open) -> list[Open]:
        done.append(cut)
        return [cut]

    proof = begun(limit_s=1.0)
    proof.open, proof.tally.left = Distance(open_s), left  # type: ignore[assignment]
    monkeypatch.setattr(Simulated, "_settled_exactly", stays)
    proof._settle_exactly([entry])
    assert len(done) == asked


@pytest.mark.few(1)
@pytest.mark.parametrize(("part", "early"), [(1, False), (HUGE, True)])
def test_layers_are_moved_as_soon_as_a_part_of_the_budget_is_spent(
    part: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however much is spent then, before the layouts that are open are settled, and once when
    they are: with the whole budget as that part never before.
    """
    order, settle, look = list[str](), Simulated._settle, LayerMoves.look
    monkeypatch.setattr(budget, "EARLY", part)
    monkeypatch.setattr(Simulated, "find_runners_up", lambda *_: None)

    def settled(*arguments: Any) -> Any:
        order.append("settled")
        return settle(*arguments)

    def moved(*arguments: Any, **named: Any) -> None:
        order.append("moved")
        look(*arguments, **named)

    monkeypatch.setattr(Simulated, "_settle", settled)
    monkeypatch.setattr(LayerMoves, "look", moved)
    solve(QUESTION, 1)
    assert order[-1] == "moved"
    assert order.count("moved") == 1 + early
    assert not early or order.index("moved") < order.index("settled")


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [budget.EARLY, HUGE])
def test_moves_begin_beside_a_row_once(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are looked for early too, and when runners-up are looked for."""
    rows, parts = list[int](), LayerMoves._parts

    def begun_at(*arguments: Any) -> Any:
        found = parts(*arguments)
        rows.extend(each.row for some in found for each in some if not each.started)
        return found

    monkeypatch.setattr(budget, "EARLY", part)
    monkeypatch.setattr(LayerMoves, "_parts", begun_at)
    solve(question(28), 5)
    assert len(rows) == len(set(rows)) > 0


@dataclass
class Mixes:
    """A cut whose bound by its own chains is 4 s, and by the mean of another's 6 s."""

    entry: Open
    limit_s: float
    shape: ClassVar[Shape] = ("interleaved_1f1b", 2, 2, 8)

    def by_known(self, _: MeanOfChains) -> MixAnswer:
        return MixAnswer(6.0, math.inf, None, knapsacks=1)

    def by_chains(self) -> MixAnswer:
        return MixAnswer(4.0, math.inf, None, knapsacks=9, mean=MeanOfChains((), ()))


def test_a_known_mean_settles_what_it_can_before_a_mean_is_found() -> None:
    """The first cut of a shape has none to ask. Below 7 s 6 s settle nothing, but say that cuts
    with smaller bounds come first; a cut that has this bound, or was told so by the last mean of
    the three that are found here, is asked in full.
    """
    entry = Open(1.0, (0, 0, 0), 0, Variant("interleaved_1f1b", 2, (0, 2)), None, 0)
    turns = AheadOfTurn(Mixes)  # type: ignore[arg-type]

    def bound_s(limit_s: float, entry: Open = entry) -> float:
        return turns.by_chains(entry, lambda _: limit_s, lambda: []).bound_s

    assert [bound_s(5.0), bound_s(5.0), bound_s(7.0)] == [4.0, 6.0, 6.0]
    assert bound_s(7.0, entry._replace(bound_s=6.0)) == 4.0
    assert turns.number(Mixes.shape) == 2
    assert bound_s(7.0, entry._replace(mean=1)) == 6.0
    assert bound_s(7.0, entry._replace(mean=2)) == 4.0


def test_with_one_processor_nothing_is_found_ahead_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The followers are not even asked for."""
    monkeypatch.setattr(cut_mixes, "is_idle", lambda: False)
    entry = Open(1.0, (0, 0, 0), 0, Variant("interleaved_1f1b", 2, (0, 2)), None, 0)
    turns = AheadOfTurn(Mixes)  # type: ignore[arg-type]
    answer = turns.by_chains(entry, lambda _: 5.0, lambda: pytest.fail("asked for what follows"))
    assert answer == Mixes(entry, 5.0).by_chains()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "looks",
    [0, 1, 3, 6, 11, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 4, 8))],
)
def test_a_deadline_at_any_moment_leaves_a_true_bound(
    looks: int, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is looked at `looks` times in time, and then it is late: the bound is not above the
    best of the listed cuts, and no layers are moved any more.
    """
    seen, own = 0, MovedLayers.best

    def late(_: Tally) -> bool:
        nonlocal seen
        seen += 1
        return seen > looks

    def moved(*arguments: Any) -> Any:
        assert seen <= looks, "begun after the deadline"
        return own(*arguments)

    monkeypatch.setattr(Tally, "late", property(late))
    monkeypatch.setattr(MovedLayers, "best", moved)
    found = solve(QUESTION, 2)
    assert found.bound_s <= least_s * (1 + 2e-6)
