"""Engines that cut anywhere, against every cut and mix of small models that are short of memory."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from nightly import blocks, cases
from small_cuts import faster_than, small_question

from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.answer import solve
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Question

EQUAL = 1 - 1.1e-6  # what the proof says of a step


def ended(question: Question, seed: int) -> str:
    """How one question ended; raises where anything that fits is faster than what was proved."""
    try:
        result = solve(question, 1)
    except NoLayoutFits:
        result = None
    best_s = result.solutions[0].step_time_s * EQUAL if result else math.inf
    least_s = faster_than(question, best_s)
    if least_s is None:
        return "too large"
    if result is None:
        assert math.isinf(least_s), (seed, question.engine.name, least_s)
        return "refused"
    assert result.bound_s <= least_s / EQUAL, (seed, result.bound_s, least_s)
    if result.cuts == "listed":
        return "listed"
    if result.status == "OPTIMAL":
        assert least_s == best_s, (seed, question.engine.name, best_s / least_s - 1)
    return result.status


def questions(seeds: range, most_layers: int) -> Iterator[str]:
    """How they ended."""
    return (ended(small_question(seed, most_layers), seed) for seed in seeds)


@pytest.mark.parametrize("block", blocks(1, of=2))
def test_no_cut_of_a_small_model_is_faster(block: int) -> None:
    """Of 4 or 5 layers."""
    found = Counter(questions(range(10 + block * 7, 17 + block * 7), 5))
    assert found["OPTIMAL"] >= 2
    assert found["FEASIBLE"] <= 1
    assert not found["listed"]


def of_native(seeds: range, most_layers: int, chunks: str) -> Iterator[str]:
    """How they ended in `native`, whose plans fit by every moment."""
    native = load_engine("native")
    for seed in seeds:
        yield ended(replace(small_question(seed, most_layers, chunks), engine=native), seed)


@pytest.mark.few(1)
@pytest.mark.parametrize("chunks", ["1..", "2.."])
def test_no_plan_that_fits_by_every_moment_is_faster(chunks: str) -> None:
    """Of 4 layers, on ranks of one chunk and of several, by the memory that `check` says."""
    found = Counter(of_native(range(4), 4, chunks))
    assert found["OPTIMAL"] >= 1
    assert found["FEASIBLE"] <= 1


def over_lists(seeds: range, most_layers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How they ended where no cuts of several chunks are few enough to be all on the list."""
    monkeypatch.setattr("meshplan.planner.space.stage_splits.MOST_WAYS", 0)
    return questions(seeds, most_layers)


def test_a_bound_beside_a_list_holds_for_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come from a list of cuts and moves of layers; what is faster off it is bounded, and
    where the bound is the plan's step, that is the least of every cut.
    """
    found = Counter(over_lists(range(40, 40 + cases(6, nightly=200)), 5, monkeypatch))
    assert found["OPTIMAL"] >= 1
    assert found["listed"] >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("chunks", ["1..", "2.."])
@pytest.mark.parametrize("block", range(5))
def test_no_plan_that_fits_by_every_moment_is_faster_at_length(block: int, chunks: str) -> None:
    """Of 4 to 6 layers."""
    found = Counter(of_native(range(100 + block * 20, 120 + block * 20), 6, chunks))
    assert found["OPTIMAL"] >= found["FEASIBLE"]


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_no_cut_of_a_small_model_is_faster_at_length(block: int) -> None:
    """Of 4 to 8 layers."""
    found = Counter(questions(range(1000 + block * 20, 1020 + block * 20), 8))
    assert found["OPTIMAL"] >= found["FEASIBLE"]
