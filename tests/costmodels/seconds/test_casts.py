"""Casts of the inputs of matrix products to 8 bits: who casts how much, and what is gathered."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.operations.kinds import Communication, Matmul
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.setting import kernels_of
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Lora, Precision, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


@pytest.mark.parametrize("casts", [1, 3])
def test_casts_to_fp8_by_hand(casts: int) -> None:
    """4 bytes for each of 2 x 1000 x 4096 inputs, or x 512 gradients, and a launch, per cast; no
    cast for the weight gradient, nor in 16 bit.
    """
    cluster = load_cluster("dgx-h100")
    kernels = cluster.kernels
    assert kernels is not None
    device = Device(cluster.gpu, kernels, Tuning(), RECIPES["fp8"])
    op = Matmul(name="linear", casts=casts, m=1000.0, n=512.0, k=4096.0, groups=2)
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
    cost = pricer.cost([op])
    for found, elements in ((cost.forward, 2 * 1000 * 4096), (cost.input_grad, 2 * 1000 * 512)):
        moving_s = 4 * elements / device.bandwidth_bytes_per_s
        assert found.pointwise_s == pytest.approx(casts * (moving_s + kernels.launch_s))
    assert cost.weight_grad.pointwise_s == 0
    plain = replace(pricer, device=replace(device, recipe=RECIPES["bf16"])).cost([op])
    assert plain.forward.matmul_s > 0
    assert plain.forward.pointwise_s == 0


@pytest.mark.parametrize(
    ("precision", "casts", "gathered"),
    [
        pytest.param("fp8", True, 0.5, id="fp8: half the bytes"),
        pytest.param("bf16", True, 1.0, id="bf16: nothing to cast"),
        pytest.param("mxfp8", True, 1.0, id="mxfp8: not with a scale for each block"),
        pytest.param("fp8", False, 1.0, id="the engine casts what it has gathered"),
    ],
)
def test_tensor_parallel_gathers_what_was_cast(
    models, precision: Precision, casts: bool, gathered: float
) -> None:
    """tp 4: of inputs of qkv and up, and gradients of the outputs of the two other layers, a rank
    casts its quarter and gathers 8 bits; what is reduced stays 16 bits wide.
    """
    engine = load_engine("torchtitan")
    habits = engine.kernels.model_copy(update={"gathers_cast": casts, "saves_gathered": False})
    engine = engine.model_copy(update={"kernels": habits})
    training = Training(seq_len=512, global_batch_size=1, precision=precision)
    setting = Setting(models["dense"], training, load_cluster("dgx-h100"), engine, Tuning())
    layout = Layout(tensor_parallel=4, sequence_parallel=True, stages=even_stages(8, 1))
    operations = {op.name: op for op in StepModel(setting, layout).operations(0)}
    for name in ("attention_input", "feed_forward_input"):
        entering = operations[name]
        assert isinstance(entering, Communication)
        assert (entering.forward_count, entering.backward_count) == (gathered, 1 + gathered)
    for name in ("attention_output", "feed_forward_output"):
        leaving = operations[name]
        assert isinstance(leaving, Communication)
        assert (leaving.forward_count, leaving.backward_count) == (1, gathered)
    share = 0.25 if gathered < 1 else 1.0
    for name in ("qkv", "attention_out", "up", "down"):
        linear = operations[name]
        assert isinstance(linear, Matmul)
        enters = name in ("qkv", "up")
        assert linear.cast_shares == ((share, 1.0) if enters else (1.0, share))


@pytest.mark.parametrize(
    ("engine", "lora", "casts"),
    [
        ("megatron-bridge", None, True),
        ("mlperf", None, True),
        ("mlperf", Lora(rank=16), False),
        ("nemo", None, False),
    ],
)
def test_adapters_read_what_is_gathered_in_16_bits(
    models, engine: str, lora: Lora | None, casts: bool
) -> None:
    """NVIDIA's recipes gather fp8 as it was cast, but with adapters in 16 bits."""
    training = Training(seq_len=512, global_batch_size=1, precision="fp8", lora=lora)
    cluster, habits = load_cluster("dgx-h100"), load_engine(engine)
    setting = Setting(models["dense"], training, cluster, habits, Tuning())
    assert kernels_of(setting).gathers_cast == casts


def test_a_rank_casts_its_share() -> None:
    """A quarter of the inputs, half of the gradients."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(), RECIPES["fp8"])
    op = Matmul(name="linear", m=1000.0, n=512.0, k=4096.0, cast_shares=(0.25, 0.5))
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
    cost, launch_s = pricer.cost([op]), cluster.kernels.launch_s
    each_s = 4 / device.bandwidth_bytes_per_s
    assert cost.forward.pointwise_s - launch_s == pytest.approx(250 * 4096 * each_s)
    assert cost.input_grad.pointwise_s - launch_s == pytest.approx(500 * 512 * each_s)
