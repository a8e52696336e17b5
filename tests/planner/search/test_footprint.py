"""What fits, from how many GPUs on, and why nothing does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO

import numpy as np
import pytest
from first_plans import has_plan
from rich.console import Console

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.fewest_gpus import NoFewer
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.report.fit import misfit_lines, print_fit
from meshplan.planner.search import checked_fit, least_memory
from meshplan.planner.search.footprint import explain, fitting_layout, minimum_gpus, sizes
from meshplan.planner.search.least_memory import LeastMemory
from meshplan.planner.search.rows.priced_space import Pricer, Question, closed_form
from meshplan.planner.space.legal_layouts import (
    Space,
    Variant,
    enumerate_space,
    reachable_sizes,
)
from meshplan.planner.space.pins import parse_pins

Questions = Callable[..., Question]
Pricers = Callable[[int, float, int], Pricer]
PATTERN = (0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize("capacity", [1.2e7, 2e7, 3e7, 4e7, 6e7])
@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
def test_it_fits_exactly_when_the_search_finds_a_layout(
    gpus: int, capacity: float, question: Questions, pricer: Pricers
) -> None:
    """The memory test alone and the whole search agree on whether anything fits."""
    asked, price = question(PATTERN, gpus, 8), pricer(4, capacity, 2)
    found = fitting_layout(asked, price)
    assert (found is not None) == has_plan(asked, price)
    assert found is None or max(found.peak_bytes) <= capacity


def test_minimum_gpus_is_the_first_size_that_fits(question: Questions, pricer: Pricers) -> None:
    """Every smaller size is refused by the search, and the one found is not."""
    asked, price = question(PATTERN, 32, 8), pricer(4, 2e7, 2)
    found = minimum_gpus(asked, price=price)
    assert found is not None
    assert found.gpus > 1
    for gpus in sizes(asked, found.gpus - 1):
        assert not has_plan(replace(asked, gpus=gpus), price)
    assert has_plan(replace(asked, gpus=found.gpus), price)


def test_a_pinned_number_of_micro_batches_says_how_large_they_are(
    question: Questions, pricer: Pricers
) -> None:
    """One of 8 sequences on one replica, 4 on two: no micro-batch holds one sequence below 8 GPUs,
    and 8 were said to be the fewest.
    """
    pins = parse_pins({"num_micro_batches": "1"})
    asked, price = replace(question(PATTERN, 8, 8), pins=pins), pricer(4, 6e7, 2)
    fits = [gpus for gpus in sizes(asked, 8) if has_plan(replace(asked, gpus=gpus), price)]
    found = minimum_gpus(asked, price=price)
    assert found is not None
    assert found.gpus == min(fits) < 8


@pytest.mark.parametrize(
    ("gpus", "fewest", "said"),
    [
        (4, NoFewer((3,)), "4 GPUs hold a training step, no smaller number does (not settled: 3)"),
        (24, NoFewer(), "24 GPUs hold a training step, no smaller number of whole nodes does"),
        (1, NoFewer(), "1 GPU holds a training step"),
        (4, None, "4 GPUs hold a training step; whether fewer do was not looked at to the end"),
    ],
)  # fmt: skip
def test_sizes_that_were_not_settled_are_named(
    gpus: int, fewest: NoFewer | None, said: str, question: Questions
) -> None:
    """Where no smaller number was found to be enough, of nodes of eight."""
    out = Console(file=StringIO(), width=200)
    print_fit(out, question(PATTERN, gpus, 8), fewest)
    assert isinstance(out.file, StringIO)
    assert out.file.getvalue().splitlines()[-1].strip() == said


def test_sizes_priced_together_have_the_layouts_of_each(question: Questions) -> None:
    """No size with a layout is left out, some without one are, and all the layouts together are
    those of each size.
    """
    asked = question(PATTERN, 32, 12)
    q, every = asked, np.arange(1, 100)

    def layouts(counts: int | list[int]) -> set[tuple[int, ...]]:
        space = enumerate_space(q.model, q.training, counts, q.engine, q.pins, 8)
        columns = [getattr(space.layouts, field.name) for field in fields(space.layouts)]
        return set(zip(*(column.tolist() for column in columns), strict=True))

    legal = [gpus for gpus in every.tolist() if layouts(gpus)]
    reached = reachable_sizes(q.model, q.training, every, q.engine, q.pins, 8).tolist()
    assert len(legal) < len(every)
    assert set(legal) <= set(reached) < set(every.tolist())
    assert layouts(legal) == set().union(*map(layouts, legal))


def test_sizes_that_are_reached_need_no_masked_arrays(
    question: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes in any order, some of them twice, each once and ascending; 97, a prime, has no
    layout of 12 layers and 32 sequences. Sets of numpy's would import `numpy.ma`.
    """
    q = question(PATTERN, 32, 12)

    def asked(_: object) -> bool:
        raise AssertionError("numpy.ma")

    monkeypatch.setattr(np.ma, "is_masked", asked)
    some, none = np.array([8, 97, 4, 8]), np.array([], np.int64)
    assert reachable_sizes(q.model, q.training, some, q.engine, q.pins, 8).tolist() == [4, 8]
    assert reachable_sizes(q.model, q.training, none, q.engine, q.pins, 8).tolist() == []


def test_sizes_are_counts_within_a_node_and_then_nodes(question: Questions) -> None:
    """Nodes of eight: 1 to 8, then 16, 24, 32."""
    assert list(sizes(question(PATTERN, 32, 8), 35)) == [*range(1, 9), 16, 24, 32]


def test_the_core_is_minimal_and_each_relaxation_fits(question: Questions, pricer: Pricers) -> None:
    """Without any one pin of the core something fits, with all of them nothing does."""
    pins = parse_pins({
        "tensor_parallel": "1", "pipeline_parallel": "1", "recompute": "none",
        "micro_batch_size": "1", "expert_parallel": "1..4",
    })  # fmt: skip
    asked, price = replace(question(PATTERN, 8, 8), pins=pins), pricer(4, 3e7, 2)
    told = explain(asked, price=price)
    assert told.core
    only = parse_pins(dict(pin.split(" ", 1) for pin in told.core))
    assert fitting_layout(replace(asked, pins=only), price) is None
    for axis in only.axes:
        assert fitting_layout(replace(asked, pins=only.without(axis)), price) is not None
    assert set(told.relaxations) == set(told.core)
    for fit in told.relaxations.values():
        assert max(fit.peak_bytes) <= 3e7


PINNED_APART = [
    ({"schedule": "dualpipe_v", "data_parallel": "8", "micro_batch_size": "2"}, 2),
    ({"schedule": "zb_v", "tensor_parallel": "3", "pipeline_parallel": "1"}, 2),
    ({"recompute": "full", "tensor_parallel": "3", "micro_batch_size": "2"}, 1),
]
"""On 8 GPUs, a batch of 8, in megatron: no dualpipe_v or zb_v at all; 8 replicas have no 2
sequences each, and 3 ranks are no divisor.
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(("texts", "lifted"), PINNED_APART, ids=["schedule", "axis", "single"])
def test_pins_that_forbid_everything_each_alone_are_lifted_together(
    texts: dict[str, str], lifted: int, question: Questions
) -> None:
    """What is said to fit without some pins does with all the others, and keeps to them."""
    asked = replace(question(PATTERN, 8, 8), pins=parse_pins(texts), engine=load_engine("megatron"))
    why = explain(asked)
    assert why.relaxations
    for said, fit in why.relaxations.items():
        names = [part.split(" ")[0] for part in said.split(" and ")]
        assert len(names) == lifted
        kept = parse_pins({axis: text for axis, text in texts.items() if axis not in names})
        assert fitting_layout(replace(asked, pins=kept)) is not None
        assert all(pin.allows(getattr(fit.layout, axis)) for axis, pin in kept.axes.items())
        plural = "s" * (lifted > 1)
        assert any(f"without the pin{plural} {said}" in line for line in misfit_lines(asked, why))


def test_pins_that_no_number_of_gpus_holds_are_lifted_where_something_fits() -> None:
    """405B in four stages without recomputation and ZeRO: more replicas free nothing, and on its
    own 64 GPUs nothing fits without the pins either, so none of them was named.
    """
    pins = {"pipeline_parallel": "4", "zero_stage": "0", "recompute": "none"}
    asked = Arguments(
        model="llama-3.1-405b", gpus=64, cluster="dgx-h100", global_batch=64, pins=pins
    )
    q = ask(asked).question
    assert fitting_layout(replace(q, pins=parse_pins({}))) is None
    why = explain(q, most_gpus=256)
    assert not why.core
    assert why.enough is None
    for lifted, fit in why.relaxations.items():
        axes = [each.split()[0] for each in lifted.split(" and ")]
        kept = {axis: text for axis, text in pins.items() if axis not in axes}
        assert fit.gpus == fit.layout.world_size
        assert fitting_layout(replace(q, gpus=fit.gpus, pins=parse_pins(kept))) is not None
        assert fitting_layout(replace(q, gpus=fit.gpus)) is None
    (line,) = (each for each in misfit_lines(q, why) if "without the pins" in each)
    assert f"one fits on {fit.gpus} GPUs: " in line


def test_no_other_number_of_processes_is_asked_of_one_cpu(
    question: Questions, pricer: Pricers
) -> None:
    """What 2 GPUs do not hold more do; processes of a CPU share its memory, however many."""
    asked, price = question(PATTERN, 2, 8), pricer(4, 1.2e7, 2)
    assert explain(asked, price=price, most_gpus=16).enough is not None
    gpu = asked.cluster.gpu.model_copy(update={"vendor": "cpu"})
    on_cpu = replace(asked, cluster=asked.cluster.model_copy(update={"gpu": gpu}))
    told = explain(on_cpu, price=price, most_gpus=16)
    assert (told.enough, told.fewer) == (None, None)


def test_the_nearest_miss_lacks_what_would_do(question: Questions, pricer: Pricers) -> None:
    """With the missing bytes added something fits, with 2 % less of them nothing does."""
    asked, capacity = question(PATTERN, 2, 8), 1.2e7
    told = explain(asked, price=pricer(4, capacity, 2))
    assert told.core == ()
    assert told.nearest is not None
    enough = capacity + told.nearest.lacking_bytes
    assert fitting_layout(asked, pricer(4, enough + 2048, 2)) is not None
    assert fitting_layout(asked, pricer(4, enough * 0.98, 2)) is None
    assert told.enough is None or told.enough.gpus > 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "chunks", "said"),
    [
        pytest.param("torchtitan", "2", True, id="any cut, of which some are tried"),
        pytest.param("torchtitan", "1", False, id="one chunk per rank: every cut"),
        pytest.param("megatron-bridge", "2", False, id="no other cut is legal"),
    ],
)
def test_a_refusal_says_where_other_cuts_might_fit(engine: str, chunks: str, said: bool) -> None:
    """Of several chunks per rank cuts of a list alone are tried, so one beside it may fit."""
    asked = Question(
        model=read_model("qwen2.5-72b")[1], training=Training(seq_len=8192, global_batch_size=8),
        gpus=8, cluster=load_cluster("dgx-h100"), engine=load_engine(engine),
        pins=parse_pins({"virtual_stages": chunks, "pipeline_parallel": "2"}),
    )  # fmt: skip
    lines = misfit_lines(asked, explain(asked, most_gpus=8))
    assert any("another split of the layers may fit" in line for line in lines) == said


@pytest.mark.few(1)
def test_no_cut_is_looked_for_where_ranks_cannot_hold_all_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the priced memory of a row, of which the lists have no cut either: it settles nothing, as
    ranks may need less than is priced.
    """
    asked = Question(
        model=read_model("qwen3.5-122b-a10b")[1], cluster=load_cluster("dgx-h100"), gpus=32,
        training=Training(seq_len=131072, global_batch_size=256), engine=load_engine("generic"),
        pins=parse_pins({"micro_batch_size": "1"}),
    )  # fmt: skip
    monkeypatch.setattr(checked_fit, "any_cut", lambda *_: pytest.fail("CP-SAT was asked"))
    assert checked_fit.checked_fit(asked, 32) == (None, False)


@pytest.mark.parametrize(
    ("axis", "text", "said"),
    [
        pytest.param("zero_stage", "2", "legal there: 0, 1, 3", id="Megatron-Bridge has no ZeRO-2"),
        pytest.param("tensor_parallel", "3", "legal there: 1, 2, 4, 8", id="32 heads in 3"),
        pytest.param("expert_parallel", "2", "legal there: 1)", id="a dense model"),
        pytest.param("virtual_stages", "40", "fits: ", id="no single number of a row"),
    ],
)
def test_a_pin_that_nothing_obeys_is_told_what_would(axis: str, text: str, said: str) -> None:
    """Where no layout is legal, each pin that forbids them is shown its axis's legal values."""
    _, model = read_model("llama-3.1-8b")
    asked = Question(
        model=model, training=Training(seq_len=4096, global_batch_size=64), gpus=8,
        cluster=load_cluster("dgx-h100"), engine=load_engine("megatron-bridge"),
        pins=parse_pins({axis: text}),
    )  # fmt: skip
    (line,) = [line for line in misfit_lines(asked, explain(asked)) if "without the pin" in line]
    assert said in line


def test_sizes_looked_at_together_are_those_looked_at_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which numbers of GPUs may hold a step, of a model with layers of several kinds, does not
    depend on how many are looked at in one space.
    """
    given = Arguments(model="nemotron-h-56b", gpus=64, cluster="dgx-h800", engine="bigscience")
    asked = ask(replace(given, seq_len="8192", global_batch=64)).question
    counts = [*range(1, 9), *range(16, 65, 8)]
    together = checked_fit._that_may_fit(asked, counts)
    monkeypatch.setattr(checked_fit, "ROWS_TOGETHER", 1)
    monkeypatch.setattr(checked_fit, "SIZES_TOGETHER", 1)
    assert checked_fit._that_may_fit(asked, counts) == together
    assert 0 < len(together) < len(counts)


@pytest.mark.parametrize("pins", [
    pytest.param({}, id="lists of cuts"),
    pytest.param({"pipeline_parallel": "1"}, id="the only cut of one rank"),
])  # fmt: skip
def test_rows_that_lack_memory_are_asked_once(
    pins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row's cuts need at least is told at once, so that the bisection for the nearest miss
    asks it again only where that is less than a capacity.
    """
    asked, priced = Counter[int](), least_memory.stage_problem

    def noted(space: Space, prices: Coefficients, row: int, variant: Variant) -> StageProblem:
        asked[row] += 1
        return priced(space, prices, row, variant)

    monkeypatch.setattr(least_memory, "stage_problem", noted)
    arguments = Arguments(model="deepseek-v3", gpus=24, cluster="dgx-h100", engine="nanotron")
    question = ask(replace(arguments, global_batch=96, pins=pins)).question
    assert LeastMemory(question, closed_form).nearest_miss() is not None
    ways = min(asked.values())
    assert sum(times > ways for times in asked.values()) <= max(1, len(asked) // 10)


def test_the_nearest_miss_is_that_of_the_way_to_run_it_that_needs_least() -> None:
    """What one way needs says nothing of another: without a pin it lacks what it lacks with that
    which pins the way it has.
    """
    arguments = Arguments(model="jamba-v0.1", gpus=4, cluster="l40s-8", engine="nanotron")
    lacking = []
    for recompute in ({}, {"recompute": "full"}):
        question = ask(replace(arguments, global_batch=12, pins=recompute)).question
        miss = LeastMemory(question, closed_form).nearest_miss()
        assert miss is not None
        lacking.append(miss.lacking_bytes + miss.capacity_bytes)
    assert lacking[0] == pytest.approx(lacking[1], rel=0.01)


def test_what_did_not_fit_in_less_is_told_as_if_never_asked() -> None:
    """What a row lacks with one number of chunks per rank, or one way to run them, says nothing of
    another: more memory, asked for behind less, holds what it holds when asked for alone.
    """
    asked = ask(
        Arguments(model="llama-3.1-70b", gpus=8, cluster="dgx-h100", engine="megatron",
                  global_batch=64, pins={"pipeline_parallel": "4", "virtual_stages": "2,20"})
    )  # fmt: skip
    memory = LeastMemory(asked.question, closed_form)
    capacities = [round(times * memory.capacity_kib) for times in (2.2, 2.25, 2.32, 2.4)]
    behind = [memory.within(capacity) is not None for capacity in capacities]
    alone = [
        LeastMemory(asked.question, closed_form).within(each) is not None for each in capacities
    ]
    assert behind == alone == [False, False, True, True]
