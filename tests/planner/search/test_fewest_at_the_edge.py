"""The fewest GPUs and the nearest miss where memory is what a layout just needs, to the byte."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from first_plans import Plans

from meshplan.costmodels.layout import Layout
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.problem.stage_problem import StagePlan, stage_problem
from meshplan.planner.search import checked_fit
from meshplan.planner.search.checked_fit import held_bytes
from meshplan.planner.search.footprint import fewest, nearest_miss
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import (
    Question,
    closed_form,
    price_space,
    space_of,
)
from meshplan.planner.space.pins import parse_pins

Questions = Callable[..., Question]
MIB = 2**20
ONE_GPU = {"micro_batch_size": "1"}
CHUNKS = {
    "micro_batch_size": "1", "pipeline_parallel": "2", "virtual_stages": "2",
    "schedule": "interleaved_1f1b", "recompute": "none,full",
}  # fmt: skip


def of_all(question: Question, every_plan: Plans) -> Iterator[float]:
    """The bytes that each layout needs, of every cut and mix."""
    space = space_of(question)
    prices = price_space(question, space, closed_form)
    for row in range(len(space.layouts)):
        for variant in space.variants(row):
            for stages in every_plan(stage_problem(space, prices, row, variant)):
                plan = StagePlan(stages, 0, ())
                yield need(question, layout_of_row(space.layouts, row, variant, plan))


def need(question: Question, layout: Layout) -> float:
    return held_bytes(question, layout)[0]


def with_memory(question: Question, usable_bytes: float) -> Question:
    return replace(question, cluster=with_usable(question.cluster, usable_bytes))


@pytest.mark.parametrize(
    ("engine", "gpus", "pins"),
    [
        pytest.param("generic", 1, ONE_GPU, id="one GPU"),
        pytest.param("generic", 2, CHUNKS, id="chunks of a list alone"),
        pytest.param("megatron-bridge", 1, ONE_GPU, id="one rule for all layers"),
    ],
)
def test_memory_that_the_least_layout_fills(
    engine: str, gpus: int, pins: dict[str, str], question: Questions, every_plan: Plans
) -> None:
    """It is the fewest GPUs' where it has exactly its bytes. With one less it is the nearest miss,
    which lacks one, and these GPUs are not settled; with a MiB less they surely hold nothing.
    """
    asked = question((0,) * 4, gpus, 2)
    asked = replace(asked, engine=load_engine(engine), pins=parse_pins(pins))
    least = min(of_all(asked, every_plan))
    found, _ = fewest(with_memory(asked, least), first=gpus)
    assert found is not None
    assert (found.gpus, need(asked, found.layout)) == (gpus, least)
    assert fewest(with_memory(asked, least - 1), first=gpus) == (None, (gpus,))
    miss = nearest_miss(with_memory(asked, least - 1))
    assert miss is not None
    assert miss.lacking_bytes == 1
    assert fewest(with_memory(asked, least - MIB), first=gpus) == (None, ())


@pytest.mark.parametrize("listed", [True, False])
def test_cuts_that_are_asked_one_by_one_are_held_against_their_bytes(
    listed: bool, question: Questions, every_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where each cut of a list is asked, and one that no list has."""
    asked = question((0,) * 4, 2, 2)
    asked = replace(asked, engine=load_engine("generic"), pins=parse_pins(CHUNKS))
    least = min(of_all(asked, every_plan))
    if not listed:
        monkeypatch.setattr(checked_fit._Ranks, "_lists_all", lambda *_: False)
    fits = checked_fit.checked_fit(with_memory(asked, least), 2)
    assert fits.layout is not None
    assert need(asked, fits.layout) == least
    less = checked_fit.checked_fit(with_memory(asked, least - 1), 2)
    assert less == (None, listed)


def test_where_the_fastest_mix_lacks_a_byte_a_slower_one_fits(
    question: Questions, every_plan: Plans
) -> None:
    """Of each layout's bytes but the least one less: another one is found, which settles it."""
    asked = question((0,) * 4, 1, 2)
    asked = replace(asked, engine=load_engine("generic"), pins=parse_pins(ONE_GPU))
    needs = sorted(set(of_all(asked, every_plan)))
    assert len(needs) > 4
    for each in needs[1::3]:
        found, unsettled = fewest(with_memory(asked, each - 1))
        assert found is not None
        assert need(asked, found.layout) < each
        assert unsettled == ()
