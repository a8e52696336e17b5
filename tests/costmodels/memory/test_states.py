"""Weights, gradients and states of a rank: totals of the ZeRO paper, engines by hand, laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import (
    Sharding,
    frozen_weights,
    gathered_bytes,
    kept_state,
    state_memory,
)
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Lora, Training
from meshplan.hardware_profiles.engine_schema import State
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

ZERO = State(weight_bytes=2, gradient_bytes=2, master_bytes=4, moment_bytes=8, reduce_bytes=2)
BF16_STATES = Training(seq_len=1, global_batch_size=1, optimizer_states="bf16")


def sharding(zero_stage: int, ranks: float, pipelined: float = 0.0) -> Sharding:
    return Sharding(
        zero_stage=zero_stage, dense_ranks=ranks, expert_ranks=ranks, pipelined=pipelined
    )


@pytest.mark.parametrize(
    ("zero_stage", "gigabytes"),
    [
        pytest.param(0, 120.0, id="16 bytes x 7.5e9"),
        pytest.param(1, 31.4, id="(4 + 12 / 64) x 7.5e9"),
        pytest.param(2, 16.6, id="(2 + 14 / 64) x 7.5e9"),
        pytest.param(3, 1.9, id="16 / 64 x 7.5e9"),
    ],
)
def test_states_of_the_zero_paper(zero_stage: int, gigabytes: float):
    """Published: 7.5e9 parameters over 64 ranks (1910.02054, figure 1)."""
    states = state_memory(ZERO, RankParameters(dense=7.5e9), sharding(zero_stage, 64.0))
    assert float(states.allocated) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("zero_stage", "each"),
    [
        pytest.param(0, 2 + 2 + 4, id="the weight itself, its gradient, two moments"),
        pytest.param(
            2, 2 + (2 + 2 + 4) / 8, id="whole weights beside eighths of them and the rest"
        ),
        pytest.param(3, (2 + 2 + 4) / 8, id="eighths"),
    ],
)
def test_weights_that_are_trained_in_16_bits(zero_stage: int, each: float):
    """Unsharded they are there once: FSDP2's whole weights are gathered copies of its shards."""
    states = kept_state(load_engine("accelerate").state, BF16_STATES)
    memory = state_memory(states, RankParameters(dense=8e9), sharding(zero_stage, 8.0))
    assert memory.allocated == pytest.approx(each * 8e9)


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_experts_outside_zero(zero_stage: int):
    """gpt-oss-20b's 19.1e9 weights of experts on two ranks: 8 bytes each, 71 GiB, where Halo
    allocates 78.9 in all (whitecircle/halo agent-docs/optimization/throughput-benchmarks.md).
    """
    states = kept_state(load_engine("torchtitan").state, BF16_STATES)
    held = replace(sharding(zero_stage, 8.0), expert_ranks=1.0, whole=1.0)
    experts = RankParameters(dense=0.0, expert=19.1e9 / 2)
    memory = state_memory(states, experts, held)
    parts = memory.weights + memory.optimizer, memory.gradients
    assert parts == pytest.approx(((2 + 4) * 9.55e9, 2 * 9.55e9))
    assert memory.allocated / 2**30 == pytest.approx(71.2, abs=0.1)
    assert gathered_bytes(states, experts, held) == 0


@given(
    dense=st.floats(0, 1e11), expert=st.floats(0, 1e11), ranks=st.sampled_from((1, 2, 8, 512)),
    pipelined=st.sampled_from((0.0, 1.0)),
    name=st.sampled_from(("megatron", "native", "nanotron", "deepspeed", "torchtitan")),
)  # fmt: skip
def test_a_higher_zero_stage_never_holds_more(dense, expert, ranks, pipelined, name):
    """Each ZeRO stage divides what the one below it divides, and more."""
    state, parameters = load_engine(name).state, RankParameters(dense=dense, expert=expert)
    held = [
        float(state_memory(state, parameters, sharding(zero, ranks, pipelined)).allocated)
        for zero in range(4)
    ]
    assert all(held[zero + 1] <= held[zero] * (1 + 1e-12) for zero in range(3))


@pytest.mark.parametrize(
    ("engine", "precision", "more"),
    [
        pytest.param("megatron", "fp8", 2 * 32 * 218_112_000, id="32 layers, 2 bytes a parameter"),
        pytest.param("megatron", "bf16", 0, id="16 bits: none"),
        pytest.param("megatron-bridge", "fp8", 0, id="the weight itself is in 8 bits: none"),
    ],
)
def test_8_bit_copies_stay_beside_16_bit_weights(engine: str, precision: str, more: int):
    """A layer of Llama 3.1 8B: 2 x 4096 x (4096 + 1024) + 3 x 4096 x 14336 + 2 x 4096 parameters;
    embedding and head stay in 16 bits.
    """
    model = model_from_config(load_model_config("llama-3.1-8b"), "8B")
    cluster, stages = load_cluster("dgx-h100"), even_stages(32, 1)
    la = Layout(data_parallel=8, tensor_parallel=1, pipeline_parallel=1, zero_stage=1,
                micro_batch_size=1, stages=stages)  # fmt: skip
    kept = []
    for precise in (precision, "bf16"):
        training = Training(seq_len=8192, global_batch_size=8, precision=precise)  # type: ignore[arg-type]
        setting = Setting(model, training, cluster, load_engine(engine), Tuning())
        kept.append(StepModel(setting, la).memory()[0].weights)
    assert kept[0] - kept[1] == pytest.approx(more, rel=1e-6)


def test_zero_3_gathers_one_layer_at_a_time():
    """While a layer of 1e9 parameters computes, 2 + 2 bytes of each are whole; below it none."""
    billion = RankParameters(dense=1e9)
    assert gathered_bytes(ZERO, billion, sharding(3, 64.0)) == 4e9
    assert gathered_bytes(ZERO, billion, sharding(2, 64.0)) == 0


@pytest.mark.parametrize(
    ("pipelined", "zero", "expected"),
    [
        pytest.param(0.0, 3, 4 / 8, id="each micro-batch's are scattered: 4 / 8"),
        pytest.param(1.0, 3, 4, id="whole until the last micro-batch: 4"),
        pytest.param(1.0, 2, 4, id="as in stage 2"),
    ],
)
def test_gradients_wait_whole_under_pytorchs_pipelines(
    pipelined: float, zero: int, expected: float
):
    """Bytes of a parameter on one of 8 ranks. AutoModel keeps shards in 16 bits and adds up in 32;
    the native engine's do not wait.
    """
    billion = RankParameters(dense=1e9)
    for engine, narrower in (("torchtitan", 1.0), ("automodel", 1.0 if pipelined else 0.5)):
        held = state_memory(load_engine(engine).state, billion, sharding(zero, 8.0, pipelined))
        assert float(held.gradients) == narrower * expected * 1e9
    native = state_memory(load_engine("native").state, billion, sharding(3, 8.0, pipelined))
    assert float(native.gradients) == 4 / 8 * 1e9


@pytest.mark.parametrize(("zero", "ranks", "each"), [
    pytest.param(3, 4, 4 / 4, id="fp32 in shards"),
    pytest.param(2, 4, 2 + 4 / 4, id="and 16 bits whole"),
    pytest.param(2, 1, 4, id="one rank: its shard is all of it"),
])  # fmt: skip
def test_frozen_weights_in_fp32_shards(zero: int, ranks: int, each: float) -> None:
    """Bytes of a frozen number where an engine gathers 16 bits of 32, torchtitan's adapters."""
    parameters = RankParameters(dense=0.0, frozen=1e9)
    state, training = (
        load_engine("torchtitan").state,
        Training(seq_len=2048, global_batch_size=8, lora=Lora(rank=8)),
    )
    frozen = frozen_weights(state, training)
    sharding = Sharding(zero_stage=zero, dense_ranks=ranks, expert_ranks=ranks, pipelined=0)
    assert float(state_memory(state, parameters, sharding, frozen).weights) == each * 1e9
    narrow = replace(training, optimizer_states="bf16")
    assert frozen_weights(state, narrow).shard == 0.0
    assert frozen_weights(load_engine("automodel").state, training).shard == 0.0


@pytest.mark.parametrize(
    ("zero_stage", "gigabytes"),
    [
        pytest.param(1, 4.0, id="4 x 1e9, as ever"),
        pytest.param(2, 2.0, id="2 x 1e9 whole, in the reduction's format"),
        pytest.param(3, 2.0, id="the same, not 4 / 8 x 1e9"),
    ],
)
def test_gradients_that_are_summed_before_they_are_reduced(zero_stage: int, gigabytes: float):
    """FSDP's no_sync keeps them whole over the micro-batches of a step."""
    state = ZERO.model_copy(update={"gradient_bytes": 4.0, "sums_before_reducing": True})
    held = state_memory(state, RankParameters(dense=1e9), sharding(zero_stage, 8.0))
    assert float(held.gradients) == gigabytes * 1e9


def test_sums_that_wait_may_have_a_format_of_their_own() -> None:
    """FSDP1 reduces in 4 bytes and adds up in the 2 of what computed: 2 x 1e9."""
    said = {"gradient_bytes": 4.0, "reduce_bytes": 4.0, "sums_before_reducing": True}
    state = ZERO.model_copy(update=said | {"sum_bytes": 2.0})
    held = state_memory(state, RankParameters(dense=1e9), sharding(3, 8.0))
    assert float(held.gradients) == 2e9
