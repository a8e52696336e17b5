"""Memory at its edge: what a search says holds to the byte, though it sums memory in whole KiB."""

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.layout import Layout, Stage
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.answer import case_at, needed_bytes, simulation_of, solve
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.search import both_roundings
from meshplan.planner.search.both_roundings import faster_exactly
from meshplan.planner.search.progress import Fastest, Progress
from meshplan.planner.search.result import NoLayoutFits, SearchEnded, SearchResult, Solution
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.search import search
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.space.words import Cuts

Questions = Callable[..., Question]
BUDGET = 10**9


def need_of(question: Question, layout: Layout) -> float:
    return needed_bytes(stage_memory(step_model_of(case_at(question, layout))))


def with_memory(question: Question, usable_bytes: float) -> Question:
    return replace(question, cluster=with_usable(question.cluster, usable_bytes))


def dense(question: Questions, layers: int, gpus: int, batch: int) -> Question:
    """Memory is summed in KiB, not counted by moments, and no sum of it is a whole KiB."""
    return replace(question((0,) * layers, gpus, batch), engine=load_engine("generic"))


@pytest.mark.parametrize(("layers", "gpus", "batch"), [(4, 1, 1), (8, 2, 4)])
def test_memory_filled_to_the_byte(layers: int, gpus: int, batch: int, question: Questions) -> None:
    """The plan of ample memory stays the plan where a GPU has exactly the bytes that it needs. With
    one byte less it is not offered, and another is not called optimal: it is bounded by the first.
    """
    asked = dense(question, layers, gpus, batch)
    ample = solve(asked, 1).solutions[0]
    need = need_of(asked, ample.layout)
    exact = solve(with_memory(asked, need), 1)
    assert (exact.status, exact.solutions[0].step_time_s) == ("OPTIMAL", ample.step_time_s)
    less = solve(with_memory(asked, need - 1), 1)
    assert need_of(asked, less.solutions[0].layout) <= need - 1
    assert less.bound_s == pytest.approx(ample.step_time_s, rel=1e-6)
    assert less.status == "FEASIBLE"
    assert less.gap == 1 - less.bound_s / less.solutions[0].step_time_s


def test_a_refusal_at_the_edge_says_that_none_was_found(question: Questions) -> None:
    """The only layout is found where it fills the memory. A byte less: rounded down it may fit, so
    no proof is claimed. Far less is a proof.
    """
    asked = replace(dense(question, 4, 1, 1), pins=parse_pins({"recompute": "none"}))
    only = solve(asked, 1).solutions[0].layout
    need = need_of(asked, only)
    assert solve(with_memory(asked, need), 1).solutions[0].layout == only
    for usable_bytes, proved in ((need - 1, False), (need / 2, True)):
        with pytest.raises(NoLayoutFits) as refused:
            solve(with_memory(asked, usable_bytes), 1)
        assert refused.value.proved == proved
        assert ("was found that fits" in str(refused.value)) != proved


def test_what_memory_buys_is_told_to_the_byte(question: Questions) -> None:
    """What may be faster than a slower step: the plan where it fills the memory; with a byte less
    what fits, under a bound that leaves the first open.
    """
    asked = dense(question, 4, 1, 1)
    ample = solve(asked, 1).solutions[0]
    need, limit_s = need_of(asked, ample.layout), ample.step_time_s * 1.2

    def bought(usable_bytes: float) -> tuple[Layout, float, float]:
        more = with_memory(asked, usable_bytes)
        found = faster_exactly(more, simulation_of(more), limit_s, BUDGET)
        assert found.layout is not None
        return found.layout, found.step_s, found.bound_s

    assert bought(need) == (ample.layout, ample.step_time_s, ample.step_time_s)
    layout, step_s, bound_s = bought(need - 1)
    assert need_of(asked, layout) <= need - 1
    assert bound_s == pytest.approx(ample.step_time_s, rel=1e-6)
    assert bound_s < step_s


def interrupted_searches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each search that begins rounds up; Ctrl-C comes while runners-up are looked for."""
    begun = list[bool]()

    def counted(question: Question, *given: Any, **options: Any) -> SearchResult:
        begun.append(question.rounds_up)
        return search(question, *given, **options)

    monkeypatch.setattr(both_roundings, "search", counted)
    monkeypatch.setattr(Simulated, "find_runners_up", lambda *_: signal.raise_signal(signal.SIGINT))
    return begun


def test_ctrl_c_begins_no_second_search(
    question: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what the first has does not fit, Ctrl-C leaves nothing; it was kept to itself by the
    part of the search that it ended.
    """
    asked = dense(question, 8, 2, 4)
    best = solve(asked, 1).solutions[0].layout
    asked = replace(asked, pins=parse_pins({"pipeline_parallel": str(best.pipeline_parallel)}))
    less = with_memory(asked, need_of(asked, best) - 1)
    begun = interrupted_searches(monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SearchEnded):
        solve(less, 2)
    assert begun == [False]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("found", [True, False])
def test_plan_that_fits_stays_where_a_runner_up_does_not(
    found: bool, question: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of one byte less than the runner-up needs: the plan stays, optimal, also where nothing
    is found rounded up, and it is told once that it is the fastest. No layout of the runner-up's
    kind, or of one that is left out, is proved slower than the runner-up that does not fit.
    """
    pins = parse_pins({"pipeline_parallel": "1", "context_parallel": "1"})
    asked = replace(dense(question, 8, 2, 16), pins=pins)
    best, second, *_ = solve(asked, 3).solutions
    need, told = need_of(asked, second.layout), list[Fastest]()
    assert need_of(asked, best.layout) < need - 1

    def both(question: Question, *given: Any, **options: Any) -> SearchResult:
        if question.rounds_up and not found:
            raise NoLayoutFits("")
        return search(question, *given, **options)

    def tell(progress: Progress) -> None:
        told.extend(filter(None, [progress.fastest]))

    monkeypatch.setattr(both_roundings, "search", both)
    result = solve(with_memory(asked, need - 1), 2, progress=tell)
    assert (result.status, result.solutions[0].layout) == ("OPTIMAL", best.layout)
    assert [each.layout for each in told] == [best.layout]
    assert len(result.solutions) == 1 + found
    assert result.kinds_bound_s is not None
    assert result.kinds_bound_s <= second.step_time_s
    for other in result.solutions[1:]:
        assert need_of(asked, other.layout) <= need - 1
        assert other.kind_bound_s is not None
        assert other.kind_bound_s <= second.step_time_s


def test_plan_that_does_not_fit_is_not_told(question: Questions) -> None:
    """Others begin work for the layout that they are told of."""
    asked, told = dense(question, 8, 2, 4), list[Fastest]()
    need = need_of(asked, solve(asked, 1).solutions[0].layout)

    def tell(progress: Progress) -> None:
        told.extend(filter(None, [progress.fastest]))

    result = solve(with_memory(asked, need - 1), 2, progress=tell)
    assert [each.layout for each in told] == [result.solutions[0].layout]


def solved(*found: tuple[int, float, float | None], bound_s: float, cuts: Cuts) -> SearchResult:
    """Solutions of these pipeline ranks, each with its step and the bound of its kind."""
    solutions = tuple(
        Solution(Layout(pipeline_parallel=pp, stages=(Stage(4),) * pp), step_s, (), True, kind_s)
        for pp, step_s, kind_s in found
    )
    return SearchResult(
        price="event simulation", status="FEASIBLE", cuts=cuts, solutions=solutions,
        bound_s=bound_s, listed_bound_s=bound_s, kinds_bound_s=9.0, gap=0.0, candidates=7, priced=7,
        misfits=0, cpsat_solves=1, simulated=10, wall_s=1.0, dropped={},
    )  # fmt: skip


@pytest.mark.parametrize("in_time", [True, False])
def test_answer_is_the_best_of_both_under_the_bounds_of_the_first(
    in_time: bool, question: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded down: 2 ranks, whose layout does not fit, 4 and 8. Rounded up: 4 ranks slower, 2 and
    1. The kind of 2 ranks is bounded by 2.5 s still, that of 1 rank, which the first leaves out,
    by the bound of all. Without time for the second search the first's plans that fit are told.
    """
    first = solved((2, 3.0, 2.5), (4, 4.0, 3.5), (8, 6.0, 5.5), bound_s=2.0, cuts="all")
    second = solved((4, 4.5, 4.5), (2, 4.8, 4.8), (1, 5.0, 5.0), bound_s=4.0, cuts="listed")
    answers = {False: first, True: second}
    monkeypatch.setattr(both_roundings, "search", lambda asked, *_, **__: answers[asked.rounds_up])
    step_s = {each.layout: each.step_time_s for each in first.solutions[1:]}
    found = both_roundings.search_exactly(
        question((0,) * 8, 8, 8), lambda layout, *_: step_s.get(layout, math.inf),
        k=3, time_limit_s=None if in_time else 0.0,
    )  # fmt: skip
    told = [
        (each.layout.pipeline_parallel, each.step_time_s, each.kind_bound_s, each.proved)
        for each in found.solutions
    ]
    assert told[0] == (4, 4.0, 3.5, False)
    others = [(2, 4.8, 2.5, False), (1, 5.0, 2.0, False)] if in_time else [(8, 6.0, 5.5, False)]
    assert told[1:] == others
    assert (found.status, found.bound_s, found.gap) == ("FEASIBLE", 2.0, 0.5)
    assert found.kinds_bound_s == 2.5
    assert (found.cuts, found.simulated) == (("listed", 20) if in_time else ("all", 10))
