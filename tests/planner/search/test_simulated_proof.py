"""The proof under the event simulation: its answers against playing everything, and pins."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from nightly import blocks, cases
from simulated_oracle import (
    fastest,
    free_of_pins,
    latent_question,
    random_question,
)

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.result import NoLayoutFits, SearchResult
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.search import search
from meshplan.planner.space.pins import parse_pins

CLOSE = 1 + 1e-9
EQUAL = 1 + 1.1e-6  # what the proof says of a step


def solved(question: Question) -> SearchResult | None:
    """The answer, None if nothing fits."""
    try:
        return solve(question, 1)
    except NoLayoutFits:
        return None


def against_oracle(
    seeds: range, draw: Callable[[int], Question] = random_question
) -> dict[str, int]:
    """How many questions ended how; raises where the answer is not what playing everything gives.

    A refusal must be one there too; OPTIMAL the least step of all; a bound is never above that.
    Where layers were moved to a cut off the list, it is no faster than every cut; what fits by
    every moment alone is held against `test_every_cut.py`.
    """
    ended = dict.fromkeys(("OPTIMAL", "FEASIBLE", "refused", "too large"), 0)
    for seed in seeds:
        question = draw(seed)
        least = fastest(question)
        if least is None:
            ended["too large"] += 1
            continue
        result = solved(question)
        if result is None:
            assert math.isinf(least), seed
            ended["refused"] += 1
            continue
        best = result.solutions[0].step_time_s
        assert result.price == "event simulation"
        assert result.bound_s <= least * CLOSE, seed
        known = least <= best * CLOSE or _moved(question, result)
        assert known or _counted(question, result), seed
        assert result.status == "FEASIBLE" or best <= least * EQUAL, seed
        ended[result.status] += 1
    return ended


def _moved(question: Question, result: SearchResult) -> bool:
    """Whether an answer faster than the list's is a cut off it, of an engine that cuts anywhere."""
    best = result.solutions[0]
    if question.engine.legality.uneven_stages != "free" or best.layout.virtual_stages == 1:
        return False
    least = fastest(question, anywhere=True)
    return least is None or least <= best.step_time_s * CLOSE


def _counted(question: Question, result: SearchResult) -> bool:
    """Whether an answer fits when every moment is counted, and not by the bound of its memory."""
    layout, counts = result.solutions[0].layout, question.engine.kernels.counts_passes
    return counts and math.isfinite(simulated_s(case_at(question, layout)))


@pytest.mark.parametrize("block", blocks(2, of=5))
def test_answers_are_those_of_playing_everything(block: int) -> None:
    """Over 40 random questions (100 nightly): the oracle shares the price of one layout alone."""
    ended = against_oracle(range(block * 20, block * 20 + 20))
    assert ended["OPTIMAL"] >= 2
    assert ended["FEASIBLE"] <= 3


def test_the_best_set_of_operations_to_recompute_is_found() -> None:
    """Over 6 random questions (20 nightly) that are short of memory, with every set of the
    engine's.
    """
    ended = against_oracle(range(20, cases(26, nightly=40)), latent_question)
    assert ended["OPTIMAL"] >= 3
    assert ended["FEASIBLE"] <= 2


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_answers_are_those_of_playing_everything_at_length(block: int) -> None:
    """Over 2,000 random questions: no mismatch, and nine of ten that fit are proved."""
    ended = against_oracle(range(10_000 + block * 100, 10_100 + block * 100))
    assert ended["OPTIMAL"] >= 9 * ended["FEASIBLE"]


def test_moves_of_layers_go_on_in_what_the_engine_recomputes() -> None:
    """torchtitan wraps all layers alike. Moves from a plan that recomputes selectively went on in
    the other schedules' variants of another mode too, and ended in a mix of both.
    """
    result = solved(random_question(10_932))
    assert result is not None
    stages = result.solutions[0].layout.stages
    assert len({(each.selective_layers, each.full_layers) > (0, 0) for each in stages}) == 1
    assert against_oracle(range(10_932, 10_933))["OPTIMAL"] == 1


def test_a_pipeline_that_fits_by_its_price_is_not_refused() -> None:
    """Of nanotron of 2024, recomputing in full: a quicker look at memory alone refused this one."""
    assert against_oracle(range(11_913, 11_914))["OPTIMAL"] == 1


def pinned_and_free(seeds: range) -> int:
    """How many of the questions have a layout with a pin more, none of them faster than without it:
    neither than the free question's bound, nor than its answer where that was proved.
    """
    compared = 0
    for seed in seeds:
        draw, free = random.Random(seed), free_of_pins(random_question(seed))
        answer = solved(free)
        axis, text = draw.choice((
            ("pipeline_parallel", "2"), ("pipeline_parallel", "1"), ("micro_batch_size", "1"),
            ("micro_batch_size", "2"), ("zero_stage", "..1"), ("recompute", "none"),
            ("schedule", "1f1b"), ("virtual_stages", "1"), ("data_parallel", "1,2"),
            *_pinned_kinds(free.engine), ("modules_apart", "off"), ("sequence_parallel", "off"),
        ))  # fmt: skip
        own = {name: pin.text for name, pin in free.pins.axes.items()}
        pinned = solved(replace(free, pins=parse_pins({**own, axis: text})))
        if pinned is None:
            continue
        assert answer is not None, seed
        best = pinned.solutions[0].step_time_s
        assert best * CLOSE >= answer.bound_s, (seed, axis, text)
        if answer.status == "OPTIMAL":
            assert best * EQUAL >= answer.solutions[0].step_time_s, (seed, axis, text)
        compared += 1
    return compared


def _pinned_kinds(engine: Engine) -> list[tuple[str, str]]:
    """Each kind of exchange that is chosen without a pin."""
    rules = engine.legality
    kinds = [("context_kind", kind) for kind in rules.context_kinds]
    return kinds + [("dispatcher", kind) for kind in rules.usual_dispatchers]


@pytest.mark.parametrize("block", blocks(1, of=7))
def test_a_pin_never_finds_a_faster_layout(block: int) -> None:
    """Over 6 random questions of all engines."""
    assert pinned_and_free(range(5000 + block * 6, 5006 + block * 6)) >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_a_pin_never_finds_a_faster_layout_at_length(block: int) -> None:
    """Over 1,000 random questions."""
    assert pinned_and_free(range(20_000 + block * 50, 20_050 + block * 50)) >= 15


def test_the_answer_is_what_it_simulates() -> None:
    """Step and bound of a proved answer are the simulated step of its layout, to the digit."""
    question = random_question(3)
    result = solved(question)
    assert result is not None
    best = result.solutions[0]
    assert best.step_time_s == simulated_s(case_at(question, best.layout))


@pytest.mark.few(1)
@pytest.mark.parametrize("network", ["10Gb/s", "400Gb/s"])
def test_no_schedule_that_is_pinned_is_faster(network: str) -> None:
    """GPipe too, which on a slow network waits for no gradient to come back before it goes on."""
    asked = Arguments(
        model="llama-3.2-1b", gpus=4, gpu="h100-sxm", gpus_per_node=1, network=network,
        global_batch=16, engine="native", pins={"pipeline_parallel": "4"},
    )  # fmt: skip
    free = solve(ask(asked).question, 1)
    assert free.listed_bound_s >= free.solutions[0].step_time_s
    steps = {}
    for schedule in ("gpipe", "1f1b", "zb_h1"):
        pins = {**asked.pins, "schedule": schedule}
        found = solve(ask(replace(asked, pins=pins)).question, 1).solutions[0]
        steps[schedule] = found.step_time_s
    assert free.solutions[0].step_time_s <= min(steps.values()) * EQUAL
    assert (steps["gpipe"] < steps["1f1b"] * 0.9) == (network == "10Gb/s")


def test_sequence_parallelism_is_searched_where_links_are_slow() -> None:
    """It gathers a layer's input again backward: 5 halves of what all-reduces send instead of 4,
    which over PCIe takes longer than the norms and sums that all ranks then repeat.
    """
    asked = Arguments(
        model="qwen2.5-7b", gpus=8, cluster="l40s-8", seq_len="8192", global_batch=64,
        engine="generic", pins={"tensor_parallel": "4", "pipeline_parallel": "1"},
    )  # fmt: skip
    found, *pinned = (
        solve(ask(replace(asked, pins={**asked.pins, **pin})).question, 1).solutions[0]
        for pin in ({}, {"sequence_parallel": "on"}, {"sequence_parallel": "off"})
    )
    assert not found.layout.sequence_parallel
    assert found.step_time_s == pinned[1].step_time_s < pinned[0].step_time_s


def test_where_no_plan_fits_in_the_simulation_it_is_said() -> None:
    """Then nothing is known to be faster than, and at first nothing is bounded closely."""
    asked = Arguments(
        model="qwen2.5-0.5b", gpus=2, cluster="dgx-h100", global_batch=8,
        pins={"pipeline_parallel": "1"},
    )  # fmt: skip
    with pytest.raises(NoLayoutFits, match="in the simulation"):
        search(ask(asked).question, lambda layout: math.inf)
