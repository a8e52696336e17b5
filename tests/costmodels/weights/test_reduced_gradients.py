"""How often gradients are reduced, in how many bits, and by which collective."""

from dataclasses import replace

import pytest
from sent_weights import BILLION, four_a_node, setting_of, traffic, trained

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import NONE_FROZEN
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Precision
from meshplan.costmodels.weights.traffic import weight_traffic
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.schema import Cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """4 GPUs a node; 1 us and 100 GB/s inside, 10 us and 200 GB/s a node outside."""
    return four_a_node()


@pytest.mark.parametrize(
    ("engine", "precision", "gigabytes"),
    [
        ("megatron-deepspeed", "bf16", 2), ("megatron-deepspeed-flash", "bf16", 2),
        ("gpt-neox", "bf16", 4), ("gpt-neox", "fp16", 2),
    ],
)  # fmt: skip
def test_sums_of_bf16_gradients_are_cast_before_they_are_sent(
    cluster: Cluster, engine: str, precision: Precision, gigabytes: int
):
    """Two replicas in a node: 1 us + 1/2 of it over 100 GB/s, whole all-reduced without sums."""
    layout = Layout(data_parallel=2, zero_stage=0, stages=even_stages(8, 1))
    bf16, said = precision == "bf16", load_engine(engine)
    sent = weight_traffic(layout, cluster, said, 1.0, NONE_FROZEN, trained(precision))
    once_s = 1e-6 + 0.5 * gigabytes / 100 if bf16 else 2 * (1e-6 + 0.5 * gigabytes / 100)
    assert sent.once_s(BILLION) == pytest.approx(once_s, rel=1e-12)
    assert sent.refresh_s(BILLION) == pytest.approx(bf16 * (1e-6 + 0.5 * 2 / 100), rel=1e-12)


@pytest.mark.parametrize(
    ("engine", "zero", "pp", "each"),
    [
        pytest.param("megatron", 0, 1, False, id="zero 0: no_sync until the last"),
        pytest.param("megatron", 1, 1, False, id="zero 1: no_sync until the last"),
        pytest.param("deepspeed", 1, 1, False, id="deepspeed zero 1: at the boundary"),
        pytest.param("deepspeed", 2, 1, True, id="deepspeed zero 2: kept in shards"),
        pytest.param("torchtitan", 2, 1, True, id="fsdp2: kept in shards"),
        pytest.param("torchtitan", 2, 4, False, id="fsdp2 in a pipeline: kept whole"),
        pytest.param("native", 2, 4, True, id="native: kept in shards in a pipeline too"),
        pytest.param("deepspeed", 3, 1, True, id="zero 3"),
    ],
)
def test_how_often_gradients_are_reduced(
    cluster: Cluster, engine: str, zero: int, pp: int, each: bool
):
    """After each micro-batch where they are kept in shards, else once per step: never both."""
    sent = traffic(cluster, engine, data_parallel=8, zero_stage=zero, pipeline_parallel=pp)
    assert (sent.backward_s(BILLION, again=False) > 0) == each
    assert (sent.once_s(BILLION) > 0) == (not each)


@pytest.mark.parametrize(
    ("zero", "reductions"),
    [
        pytest.param(1, 1, id="zero 1: 10 collectives once"),
        pytest.param(2, 16, id="zero 2: 10 collectives in each of 16 micro-batches"),
    ],
)
def test_gradients_of_accumulation_by_hand(models, cluster: Cluster, zero: int, reductions: int):
    """With nothing hidden: twice (n-1)/n of the gradients' bytes over the network's rate, as each
    bucket is summed on all ranks, and a tree's 2 (1 + log2 n) hops, which are fewer than a ring's.
    """
    setting = setting_of(models, cluster, 8 * 16, hides=0.0)
    step = StepModel(setting, Layout(data_parallel=8, zero_stage=zero, stages=even_stages(8, 1)))
    held = float(step.rank_parameters[0].dense)
    wire_s = reductions * 2 * 7 / 8 * 2.0 * held / 100e9  # 200 GB/s a node, held to 100 inside
    hops_s = 8 * 10e-6 * (16 * 10 if zero == 2 else 1)  # 8 layers and both ends, or one buffer
    assert step.time().data_s == pytest.approx(wire_s + hops_s, rel=1e-9)


def test_zero_2_pays_for_accumulation(models, cluster: Cluster):
    """The same tokens in more micro-batches: exposed communication grows with them from ZeRO-2."""
    layout = Layout(data_parallel=8, stages=even_stages(8, 1))
    seen = {
        (zero, m): StepModel(
            setting_of(models, cluster, 8 * m, hides=0.0), replace(layout, zero_stage=zero)
        ).time().data_s
        for zero in (1, 2) for m in (1, 8)
    }  # fmt: skip
    assert seen[2, 8] == pytest.approx(8 * seen[2, 1], rel=1e-9)
    assert seen[1, 8] == pytest.approx(seen[1, 1], rel=1e-9)


SCATTERED_S = 7 * 10e-6 + 7 / 8 * 2 / 100
"""2 GB over 8 ranks on two nodes, 100 GB/s each: a ring's 7 hops."""
SUMMED_S = 2 * (1 + 3) * 10e-6 + 2 * 7 / 8 * 2 / 100
"""The same by all_reduce: a tree's hops, and twice the bytes."""


@pytest.mark.parametrize(
    ("engine", "zero", "expected_s"),
    [
        pytest.param("deepspeed", 1, SUMMED_S, id="zero 1"),
        pytest.param("deepspeed", 2, SUMMED_S, id="zero 2"),
        pytest.param("deepspeed", 3, SCATTERED_S, id="zero 3 scatters"),
        pytest.param("megatron-deepspeed-flash", 1, SUMMED_S, id="a fork of DeepSpeed's time"),
        pytest.param("megatron-deepspeed", 1, SCATTERED_S, id="and one from before"),
    ],
)
def test_buckets_that_are_summed_on_all_ranks(
    cluster: Cluster, engine: str, zero: int, expected_s: float
):
    """DeepSpeed all-reduces the buckets of ZeRO-1 and 2, and scatters those of ZeRO-3."""
    sent = traffic(cluster, engine, data_parallel=8, zero_stage=zero)
    spent_s = sent.once_s(BILLION) + sent.backward_s(BILLION, again=False)
    assert float(spent_s) == pytest.approx(expected_s, rel=1e-12)
