"""LoRA: what is trained, computed, sent, kept and not kept beside frozen weights."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_steps import ALONE, LAYERS, LLAMA, step
from sites import site

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.operations.adapters import (
    adapter_parameters,
    adapter_weights,
    cast_bytes,
    feeds_frozen_alone,
    kept_bytes,
)
from meshplan.costmodels.operations.kinds import Communication, Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.ranks.memory import unpacked_bytes
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Lora, LoraTargets
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

SEPARATE = 8192 + 2 * 5120 + 8192  # q, k and v, o
GATED = 2 * 18432 + 18432  # gate and up, down


@pytest.mark.parametrize(
    ("targets", "engine", "tp", "trained"),
    [
        pytest.param(
            "all_linear", "generic", 1, 16 * (SEPARATE + GATED),
            id="16 (8192 q + 2 x 5120 kv + 8192 o + 3 x 18432 ffn), x 32 = PEFT's 41.9M",
        ),
        pytest.param("attention", "generic", 1, 16 * SEPARATE, id="16 (8192 + 2 x 5120 + 8192)"),
        pytest.param("qkv", "generic", 1, 16 * (8192 + 2 * 5120), id="16 (8192 + 2 x 5120)"),
        pytest.param("qv", "generic", 1, 16 * (8192 + 5120), id="16 (8192 q + 5120 v)"),
        pytest.param(
            "attention_but_key", "generic", 1, 16 * (SEPARATE - 5120), id="no 16 x 5120 of the key"
        ),
        pytest.param(
            "all_but_key", "generic", 2, 16 * (2 * 4096 + 2560 + 2048 + 4096 + 3 * 4096 + 3 * 7168),
            id="tp 2: A of q and v whole, B 2048 + 512 rows; o 2048 and whole; ffn f 7168",
        ),
        pytest.param(
            "all_but_key", "megatron-bridge", 1, 16 * (10240 + 8192 + 32768 + 18432),
            id="one adapter beside all three: nothing to leave out",
        ),
        pytest.param(
            "all_linear", "megatron-bridge", 1, 16 * (10240 + 8192 + 32768 + 18432),
            id="joined: 16 (4096 + 6144 qkv, 8192 o, 4096 + 28672 up, 18432 down)",
        ),
        pytest.param(
            "attention", "generic", 2, 16 * (3 * 4096 + 3072 + 2048 + 4096),
            id="tp 2: A of q, k, v whole, B 3072 rows; o's A 2048 rows, B whole",
        ),
    ],
)  # fmt: skip
def test_adapters_by_hand(targets: str, engine: str, tp: int, trained: int) -> None:
    """Rank x (inputs + outputs) beside each adapted weight; every weight of the model is frozen."""
    layout = replace(ALONE, tensor_parallel=tp, sequence_parallel=tp > 1)
    model = step(Lora(rank=16, targets=targets), layout, engine)
    parameters, full = model.layer_parameters(0), step(None, layout, engine).layer_parameters(0)
    assert parameters.dense == trained
    assert (parameters.expert, parameters.frozen) == (0, full.dense)
    assert parameters.adapters % 2 == 0
    assert full.adapters == 0 < parameters.adapters
    assert model.end_parameters[0].dense == model.end_parameters[1].dense == 0


@pytest.mark.parametrize(
    ("targets", "by_hand"),
    [
        pytest.param("qkv", 5120 + 33792 + 4608, id="4096 + 1024, 1024 + 64 x 512, 4096 + 512"),
        pytest.param("qv", 5120 + 33792, id="the one key, which is the value, left out"),
    ],
)
def test_adapters_of_a_low_rank_query(targets: LoraTargets, by_hand: int) -> None:
    """DeepSeek V4's query has a weight down and one up; its key has one, and is the value."""
    model = model_from_config(load_model_config("deepseek-v4-flash"), "deepseek-v4-flash")
    rank = site(model, b=1, t=1, sequence_parallel=False)
    every = layer_operations(rank, model.kinds[0])
    query_and_key = [op for op in every if op.name in ("q_down", "q_up", "qkv")]
    lora = Lora(rank=16, targets=targets)
    assert adapter_parameters(query_and_key, lora) == 16 * by_hand
    assert adapter_weights(query_and_key, lora) == (6 if targets == "qkv" else 4)


@pytest.mark.parametrize(
    ("targets", "wide"),
    [
        pytest.param("all_linear", SEPARATE + GATED, id="all seven weights"),
        pytest.param("all_but_key", SEPARATE + GATED - 5120, id="less the key's 4096 + 1024"),
        pytest.param("qv", 8192 + 5120, id="query and value"),
    ],
)
def test_flops_by_hand(targets: LoraTargets, wide: int) -> None:
    """Of a frozen product 2 t k n forward and as many backward, not twice as many; the core
    attention keeps its backward; adapters compute 6 t each of their parameters.
    """
    lora, t = Lora(rank=16, targets=targets), 4096
    frozen, full = step(lora).plain_cost(0, "none"), step(None).plain_cost(0, "none")
    products = sum(
        op.forward_flops for op in step(None).operations(0) if isinstance(op, Matmul)
    )  # fmt: skip
    beside = 6 * t * 16 * wide
    assert frozen.model_flops == pytest.approx(full.model_flops - products + beside, rel=1e-12)
    assert frozen.weight_grad.total_s == 0
    assert frozen.input_grad.matmul_s == full.input_grad.matmul_s > 0
    assert frozen.input_grad.attention_s == full.input_grad.attention_s


@pytest.mark.parametrize(
    ("base", "of_linear"),
    [
        pytest.param("bf16", 2.0, id="2 bytes of each"),
        pytest.param("int8", 1.0, id="1 byte of linear layers, 2 of the ends"),
        pytest.param("nf4", 0.5 + 1 / 64 + 4 / 16384, id="4 bits, 8 a 64, 32 a 64 x 256"),
    ],
)
def test_memory_by_hand(base: str, of_linear: float) -> None:
    """Frozen weights in their bytes, trained ones in 2 and 4 and 12; nothing of what is frozen has
    a gradient or a state.
    """
    (memory,) = step(Lora(rank=16, base_precision=base)).memory()
    trained, linear = LAYERS * 16 * (SEPARATE + GATED), LAYERS * 218_103_808
    rest = model_parameters(LLAMA).total - linear
    assert memory.weights == pytest.approx(of_linear * linear + 2 * (rest + trained), rel=1e-9)
    assert memory.gradients == 4 * trained
    assert memory.optimizer == 12 * trained
    unpacked = unpacked_bytes(step(Lora(rank=16, base_precision=base)), (0,))
    assert unpacked == (0 if base == "bf16" else 2 * 4096 * 14336)  # one matrix in 16 bits


@pytest.mark.parametrize(
    ("engine", "precision", "each"),
    [
        pytest.param("mlperf", "fp8", 1, id="8 bits stay"),
        pytest.param("mlperf", "nvfp4", 2 * 9 / 16, id="twice 4 bits, a byte of scale for 16"),
        pytest.param("mlperf", "bf16", 2, id="16-bit training"),
        pytest.param("megatron", "fp8", 2, id="a 16-bit copy is kept"),
    ],
)
def test_frozen_weights_by_engine(models, engine: str, precision: str, each: float) -> None:
    """Of frozen weights one copy is held, in 8 or 4 bits where the engine keeps no other."""
    layout = Layout(stages=even_stages(8, 1))
    (memory,) = step(Lora(rank=1), layout, engine, models["dense"], precision=precision).memory()
    parameters = model_parameters(models["dense"]).total
    assert float(memory.weights) == pytest.approx(each * parameters, rel=0.01)


@pytest.mark.parametrize(
    ("targets", "spared"),
    [
        pytest.param("qv", 4096 + 14336, id="as attention: the core keeps what o reads"),
        pytest.param("all_but_key", 0, id="query and value read what the key does"),
        pytest.param("attention", 4096 + 14336, id="neither its norm (t h) nor activation (t f)"),
        pytest.param("all_linear", 0, id="adapters read all inputs"),
    ],
)
def test_frozen_products_keep_no_input(targets: str, spared: int) -> None:
    """2 bytes of each number; an adapter keeps its narrow output, 16 numbers a row and weight."""
    lora = Lora(rank=16, targets=targets)
    weights = {"qv": 2, "attention": 4, "all_linear": 7, "all_but_key": 6}[targets]
    kept = [float(step(each).plain_cost(0, "none").saved_bytes) for each in (None, lora)]
    assert kept[0] - kept[1] == pytest.approx(2 * 4096 * (spared - 16 * weights))


@pytest.mark.parametrize(
    ("targets", "gathers"),
    [
        pytest.param("attention", 1, id="the feed-forward's input is not gathered again"),
        pytest.param("all_linear", 0, id="adapters read it"),
    ],
)
def test_inputs_gathered_again(targets: str, gathers: int) -> None:
    """Sequence parallelism gathers the input of a trained weight once more in the backward; an
    all-gather takes 2 % longer than a reduce-scatter.
    """
    layout = replace(ALONE, tensor_parallel=4, sequence_parallel=True)
    full, frozen = step(None, layout), step(Lora(rank=1, targets=targets), layout)
    (once,) = (
        op for op in full.operations(0)
        if isinstance(op, Communication) and op.name == "feed_forward_input"
    )  # fmt: skip
    assert once.regathers == 1
    blunt = full.setting.engine.overlap.model_copy(update={"tensor": 0.0})
    engine = full.setting.engine.model_copy(update={"overlap": blunt})
    seen = [
        float(StepModel(replace(each.setting, engine=engine), layout)
              .plain_cost(0, "none").input_grad.tensor_s)
        for each in (full, frozen)
    ]  # fmt: skip
    tensor_calls = 2 + 1 + 2 + 1  # both halves: in (twice with the gather again), out
    assert seen[1] / seen[0] == pytest.approx(1 - gathers / tensor_calls, rel=5e-3)


def test_what_adapters_read_and_write_by_hand() -> None:
    """Beside t x k by k x n of j weights j k + 6 n + 2 j r numbers a row forward and 5 j k + 4 n +
    4 j r backward, 4 launches of each weight forward and 6 backward, the scaling among them.
    """
    found = step(Lora(rank=16)), step(None)
    sides = ((4096, 6144, 3), (4096, 4096, 1), (4096, 28672, 2), (14336, 4096, 1))
    device = found[0].pricer.device
    for direction, numbers, launches in (
        ("forward", sum(j * k + 6 * n + 32 * j for k, n, j in sides), 4 * 7),
        ("input_grad", sum(5 * j * k + 4 * n + 64 * j for k, n, j in sides), 6 * 7),
    ):
        with_it, without = (
            getattr(each.plain_cost(0, "none"), direction).pointwise_s for each in found
        )
        moving_s = 2.0 * 4096 * numbers / device.bandwidth_bytes_per_s
        launching_s = launches * device.kernels.launch_s
        assert with_it - without == pytest.approx(launching_s + moving_s, rel=1e-9)


def test_what_adapters_launch_is_issued_once_backward() -> None:
    """With the gradient of the input; a frozen weight has none. Of a second each."""
    found = [step(lora) for lora in (Lora(rank=16), None)]
    slow = replace(found[0].pricer.device, tuning=Tuning(launch_s=1.0))
    with_it, without = (replace(each.pricer, device=slow) for each in found)
    operations = found[0].operations(0)
    launched = with_it.issued_s(operations, "input_grad") - without.issued_s(
        operations, "input_grad"
    )
    assert launched == pytest.approx(6 * 7)
    assert with_it.issued_s(operations, "weight_grad") == 0


def test_adapters_scaled_beside_another_kernel_copy_nothing() -> None:
    """They keep, and drop, what those with a kernel of its own for the scaling do, and move 2 n
    numbers of 2 bytes less each way.
    """
    product = Matmul(name="output", m=8, k=32, n=16)
    for dropout in (0.0, 0.1):
        lora = Lora(rank=4, dropout=dropout)
        kept = [kept_bytes(product, lora, casts, 2.0) for casts in ("fused", "none")]
        assert kept[0] == kept[1]
        for backward in (False, True):
            assert cast_bytes(product, lora, "fused", backward=backward) == -2 * 2.0 * 16


def test_dropout_before_adapters_by_hand() -> None:
    """Each adapter drops its own copy of its input: 2 bytes read, 2 written and 1 of the mask each
    way, one launch more; the copy and its mask are kept, what was copied is not.

    Of a row q, k, v, o, gate and up copy h = 4096, down f = 14336; kept before were h (once for q,
    k and v), h (for gate and up) and f, and o's input, which attention keeps itself.
    """
    dry, wet = (step(Lora(rank=16, dropout=each)) for each in (0.0, 0.05))
    device, rows, copied = dry.pricer.device, 4096, 6 * 4096 + 14336
    costs = [each.plain_cost(0, "none") for each in (dry, wet)]
    moved_s = 5.0 * rows * copied / device.bandwidth_bytes_per_s
    for direction in ("forward", "input_grad"):
        before, after = (getattr(each, direction).pointwise_s for each in costs)
        assert after - before == pytest.approx(moved_s + 7 * device.kernels.launch_s, rel=1e-9)
    kept = float(costs[1].saved_bytes) - float(costs[0].saved_bytes)
    assert kept == rows * (3 * copied - 2 * (2 * 4096 + 14336))
    assert costs[1].model_flops == costs[0].model_flops
    assert wet.layer_parameters(0) == dry.layer_parameters(0)


def test_unpacking_by_hand() -> None:
    """Before each product of a quantised weight its 4 bits are read and 16 written: in both
    directions, of 218,103,808 weights of seven matrices.
    """
    plain, packed = (
        step(Lora(rank=16, base_precision=base)).plain_cost(0, "none") for base in ("bf16", "nf4")
    )
    device = step(None).pricer.device
    bytes_each = 2 + 0.5 + 1 / 64 + 4 / 16384
    each_s = bytes_each * 218_103_808 / device.bandwidth_bytes_per_s + 7 * device.kernels.launch_s
    for name in ("forward", "input_grad"):
        more = getattr(packed, name).pointwise_s - getattr(plain, name).pointwise_s
        assert more == pytest.approx(each_s, rel=1e-9)


def test_what_is_sent_by_hand() -> None:
    """ZeRO-3 on 8 ranks gathers a layer's frozen weights and its adapters; only the latter's
    gradients are reduced and only they are updated.
    """
    layout = replace(ALONE, data_parallel=8, zero_stage=3)
    model = step(Lora(rank=16), layout)
    parameters, traffic = model.layer_parameters(0), model.traffic
    trained = 16 * (SEPARATE + GATED)
    bus = model.setting.cluster.node.bus_bandwidth
    frozen = parameters.frozen
    assert traffic.forward_s(parameters) == pytest.approx(
        7 / 8 * 2 * (frozen + trained) / bus.all_gather, rel=0.03
    )
    latency_s = traffic.latencies.backward_s(parameters, again=False)
    reduced_s = traffic.backward_s(parameters, again=False) - latency_s
    assert reduced_s == pytest.approx(7 / 8 * 4 * trained / bus.reduce_scatter)
    assert traffic.updated(parameters) == trained / 8
    late = replace(ALONE, data_parallel=8, zero_stage=1)
    sent = step(Lora(rank=16), late)
    whole = step(None, late)
    parts = [each.layer_parameters(0) for each in (sent, whole)]
    assert float(sent.traffic.once_s(parts[0])) < 0.05 * float(whole.traffic.once_s(parts[1]))
    assert sent.traffic.forward_s(parts[0]) == 0


LAYOUTS = [
    ALONE,
    replace(ALONE, data_parallel=8, zero_stage=1),
    replace(ALONE, data_parallel=8, zero_stage=3),
    replace(ALONE, tensor_parallel=4, sequence_parallel=True, data_parallel=2),
    replace(ALONE, pipeline_parallel=4, stages=even_stages(LAYERS, 4)),
]


@settings(max_examples=20, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS), engine=st.sampled_from(("generic", "megatron-bridge")),
    targets=st.sampled_from(get_args(LoraTargets)),
    ranks=st.tuples(st.integers(1, 64), st.integers(1, 64)),
)  # fmt: skip
def test_laws(layout: Layout, engine: str, targets: str, ranks: tuple[int, int]) -> None:
    """A higher rank never takes less memory or time; up to 64 no rank takes more memory than
    training all weights; fewer bits of the frozen weights never more memory, nor less computing.
    """
    low, high = (step(Lora(rank=r, targets=targets), layout, engine) for r in sorted(ranks))
    full = step(None, layout, engine)
    packed = step(Lora(rank=min(ranks), targets=targets, base_precision="nf4"), layout, engine)
    assert low.time().step_time_s <= high.time().step_time_s * (1 + 1e-12)
    assert low.time().compute_s <= packed.time().compute_s
    for few, many, all_, bits in zip(
        *(each.memory() for each in (low, high, full, packed)), strict=True
    ):
        assert few.allocated <= many.allocated * (1 + 1e-12)
        assert many.allocated < all_.allocated
        assert bits.allocated < few.allocated


def test_routed_experts_have_no_adapters(models) -> None:
    """Beside experts only attention is adapted, and no expert has a gradient."""
    layout = Layout(data_parallel=8, expert_parallel=8, zero_stage=1, stages=(Stage(8),))
    every, some = (
        step(Lora(rank=16, targets=targets), layout, model=models["moe"])
        for targets in ("all_linear", "attention")
    )
    kind = models["moe"].pattern[-1]
    assert models["moe"].kinds[kind].experts
    assert every.layer_parameters(kind).expert == 0
    assert every.layer_parameters(kind).frozen_expert > 0
    shared = models["moe"].kinds[kind].experts.shared_ffn
    more = every.layer_parameters(kind).dense - some.layer_parameters(kind).dense
    assert more == 16 * (3 * models["moe"].hidden + 3 * shared) * (shared > 0)


@pytest.mark.parametrize(("name", "fed"), [("activation", True), ("context_merge", False)])
def test_kernels_may_be_a_column_where_frozen_products_are_not_fed(name: str, fed: bool) -> None:
    """As many as context parallelism has ranks: what merges outputs feeds a product that trains."""
    kernels = 1 if fed else np.array([0.0, 5.0])
    op = Pointwise(name=name, forward_bytes=1.0, backward_bytes=1.0, kernels=kernels)
    assert feeds_frozen_alone(op, Lora(rank=8, targets="attention")) is fed
