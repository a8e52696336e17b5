"""The cost model of the native engine against its dry run, over every axis and compositions.

Every change runs the cases that show something first, compositions before single axes; nightly runs
all of them.
"""

from dataclasses import replace
from functools import cache
from statistics import median

import pytest
from first_shown import AXES, facts_of, first_shown
from nightly import later

from benchmarks.engine.dry_run import (
    MODELS,
    Case,
    Compared,
    compared,
    executed_flops,
    quick_cases,
    sent_bytes,
)
from meshplan.costmodels.memory.states import shards_gradients

CASES = tuple(quick_cases())
CLOSE = 0.02
STATES = ("weights", "gradients", "optimizer")


QUICK = first_shown(
    reversed(CASES),
    lambda case: facts_of(case.layout) | {("model", case.model.name), ("last rank", case.last)},
)
EACH = [
    pytest.param(case, id=case.name, marks=[] if case in QUICK else [pytest.mark.nightly])
    for case in CASES
]


@cache
def result_of(case: Case) -> Compared:
    """The case asked of both, once."""
    return compared(case)


def test_enough_layouts_over_all_axes():
    """At least sixty layouts; each axis, schedule, ZeRO stage and recompute mode among them, and
    among those that every change runs.
    """
    assert len({case.name for case in CASES}) == len(CASES) >= 60
    for cases in (CASES, QUICK):
        layouts = [case.layout for case in cases]
        assert all(max(getattr(la, f"{axis}_parallel") for la in layouts) > 1 for axis in AXES)
        assert {la.zero_stage for la in layouts} == {0, 1, 2, 3}
        assert any(la.shard_group for la in layouts)
        assert {la.recompute for la in layouts} == {"none", "selective", "full", "mixed"}
        assert {la.schedule for la in layouts} == {
            "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v",
        }  # fmt: skip
        assert {case.model.name for case in cases} == set(MODELS)


@pytest.mark.few(8)
@pytest.mark.parametrize("case", EACH)
def test_peak_memory(case: Case):
    """The peak is within 2 % of the dry run's, and weights, gradients and optimizer within 0.1 %.

    At the peak some saved tensors have just become gradients, so activations and transients are
    held to the dry run together.
    """
    result = result_of(case)
    counted = result.measured.peak_by_category
    assert result.error == pytest.approx(0, abs=CLOSE)
    for category in STATES:
        expected = float(getattr(result.memory, category))
        assert expected == pytest.approx(counted[category], rel=1e-3), category
    working = float(result.memory.activations + result.memory.transient)
    measured = counted["activations"] + counted["transient"]
    assert working == pytest.approx(measured, rel=0.04)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", [each for each in EACH if each.values[0].layout.schedule == "zb_h1"]
)
def test_what_waits_for_weight_products_is_told_apart(case: Case):
    """From I to W inputs are saved tensors and output gradients are not: activations within 6 %,
    transients within 10 %, where one chunk per rank leaves no equally full moments.
    """
    result = result_of(case)
    counted = result.measured.peak_by_category
    assert float(result.memory.activations) == pytest.approx(counted["activations"], rel=0.06)
    assert float(result.memory.transient) == pytest.approx(counted["transient"], rel=0.10)


@later(held_by="test_peak_memory")
@pytest.mark.parametrize(
    "cases", [QUICK, pytest.param(CASES, marks=pytest.mark.nightly)], ids=["quick", "all"]
)
def test_errors_stay_small(cases: tuple[Case, ...]):
    """Half of the layouts are within 0.2 %: nothing of size is forgotten everywhere."""
    errors = [abs(result_of(case).error) for case in cases]
    print(f"{len(errors)} layouts: median {median(errors):.2%}, worst {max(errors):.2%}")
    assert median(errors) < 0.002


@pytest.mark.few(8)
@pytest.mark.parametrize("case", EACH)
def test_flops(case: Case):
    """The cost model's FLOPs are exactly those that the engine executes."""
    counted = sum(result_of(case).measured.flops.values())
    assert counted == pytest.approx(executed_flops(case), rel=1e-9)


def beside(case: Case, axis: str) -> float:
    """Bytes on an axis that the cost model does not price, less those that it prices and a dry run
    does not send, for the stated reasons.

    tp  the loss adds up three fp32 numbers per token over the vocabulary's parts (each micro-batch)
    ep  ranks tell each other how many tokens each expert gets, which a dry run knows: 8 bytes each
    """
    step, total = case.step, 0.0
    shard, la = step.site.shard, case.layout
    if axis == "tp" and la.tensor_parallel > 1 and step.rank_of(len(la.stages) - 1) == case.pp_rank:
        total += 12.0 * float(shard.tokens)
    if axis == "ep" and la.expert_parallel > 1:
        for index, counts in enumerate(step.stage_counts):
            for (kind, mode), count in counts.items():
                experts = case.model.kinds[kind].experts
                if experts and step.rank_of(index) == case.pp_rank:
                    times = 2 if mode == "full" else 1
                    total -= count * times * 8.0 * experts.experts
    return total * step.m


DEGREES = {"cp": "context_parallel", "ep": "expert_parallel", "tp": "tensor_parallel"}
SENT = [
    pytest.param(axis, each.values[0], id=f"{axis}: {each.id}", marks=each.marks)
    for axis, degree in DEGREES.items()
    for each in EACH
    if getattr(each.values[0].layout, degree) > 1
]


@pytest.mark.parametrize(("axis", "case"), SENT)
def test_bytes_sent(axis: str, case: Case):
    """Bytes of a layer's collectives are the cost model's, with what it leaves out named.

    Beside these, tensor ranks add up the gradients of what all of them hold once per step, in fp32.
    """
    sent = result_of(case).measured.comm_bytes
    counted = sum(size for name, size in sent.items() if name.startswith(f"{axis}."))
    once = sent.get("tp.all_reduce", 0.0) - beside(case, "tp") if axis == "tp" else 0.0
    expected = sent_bytes(case, axis) + beside(case, axis) + once
    assert counted == pytest.approx(expected, rel=1e-9)
    assert 0 <= once < 0.04 * counted  # norms, routers, latent down projections


def sent_by_data_parallel(case: Case) -> dict[str, float]:
    """Bytes of the collectives that `costmodels.weights.traffic` prices, by kind."""
    step, rank, m = case.step, case.pp_rank, case.step.m
    traffic, state = step.traffic, step.setting.engine.state
    stages = [i for i in range(len(case.layout.stages)) if step.rank_of(i) == rank]
    ends = [end for end, stage in enumerate((0, len(case.layout.stages) - 1)) if stage in stages]
    sent = dict.fromkeys(("reduce_scatter", "all_gather", "all_reduce"), 0.0)
    for part, sharers in (("dense", traffic.dense), ("expert", traffic.expert)):
        held = float(getattr(step.rank_parameters[rank], part))
        of_ends = sum(float(getattr(step.end_parameters[end], part)) for end in ends)
        gathers = 2 * m * held - m * of_ends if case.layout.zero_stage == 3 else held
        if sharers.shard.size > 1:
            reductions = m if shards_gradients(state, traffic.sharding) else 1
            sent["reduce_scatter"] += state.reduce_bytes * held * reductions
            sent["all_gather"] += state.weight_bytes * gathers
        if sharers.copies.size > 1:
            sent["all_reduce"] += state.reduce_bytes * held / float(sharers.shard.size)
    return sent


def shards(case: Case) -> bool:
    """Whether data parallelism sends shards; one tied table that completes at both ends does not
    count: it is not what `sent_by_data_parallel` adds up.
    """
    la = case.layout
    at_both_ends = case.model.tied and la.zero_stage >= 2 and la.pipeline_parallel == 1
    return la.data_parallel * la.context_parallel > 1 and la.zero_stage > 0 and not at_both_ends


@pytest.mark.parametrize("case", [each for each in EACH if shards(each.values[0])])
def test_gradients_and_weights_sent(case: Case):
    """Data parallel: fp32 gradients once or in each micro-batch, over shards and over copies;
    16-bit weights after the update, or twice per layer and once per table of each micro-batch.
    """
    measured = result_of(case).measured.comm_bytes
    for kind, size in sent_by_data_parallel(case).items():
        assert measured.get(f"dp.{kind}", 0.0) == pytest.approx(size, rel=1e-3), kind


FP32 = [case for case in CASES if case.model.name in ("llama", "moe")][::3]  # all 43 hold


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.nightly] if at % 5 else [])
        for at, case in enumerate(FP32)
    ],
)
def test_peak_memory_of_fp32(case: Case):
    """In fp32 weights are their own master copy and activations twice as large: within 2 % too."""
    result = compared(replace(case, training=replace(case.training, precision="fp32")))
    assert result.error == pytest.approx(0, abs=CLOSE)
