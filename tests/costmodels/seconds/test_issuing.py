"""What the host takes to issue operations, and what of it a step sees."""

from dataclasses import replace

import numpy as np
import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import Matmul, Operation, Pointwise
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.operation import Direction, operators_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Precision, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

PRODUCT = Matmul(name="fc", m=512, k=512, n=512)


NORM = Pointwise(
    name="attention_norm", forward_bytes=0.0, backward_bytes=0.0, modules=("norm", "pointwise")
)


def test_operators_of_pytorch_cost_the_host_less_than_modules() -> None:
    """3 launches of a second each, 5 operators of 8 us forward and 7 backward."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES["bf16"])
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
    op = Pointwise(
        name="rotary", forward_bytes=0.0, backward_bytes=0.0, kernels=3, operators=(5.0, 7.0)
    )
    issued = [pricer.issued_s([op], way) for way in ("forward", "input_grad", "weight_grad")]
    assert issued == pytest.approx([3 + 5 * 8e-6, 3 + 7 * 8e-6, 0])


@pytest.mark.parametrize(
    ("cluster_name", "loops", "calls"),
    [
        pytest.param("dgx-h100", True, 32, id="GroupedLinear calls cuBLAS for each expert"),
        pytest.param("dgx-h100", False, 0, id="torch._grouped_mm is one"),
        pytest.param("mi300x-8", True, 0, id="AMD's stacks have one kernel"),
    ],
)
def test_products_of_experts_are_issued_one_by_one(
    cluster_name: str, loops: bool, calls: int
) -> None:
    """One launch of a second of a product of 32 experts in each direction, and 8 us for each call
    inside it; a graph of the whole step issues neither, and products apart are launches themselves.
    """
    cluster = load_cluster(cluster_name)
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES["bf16"])
    device = replace(device, loops_over_experts=loops)
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
    op = replace(PRODUCT, name="experts_in", groups=32, modules=("experts",))
    issued = [pricer.issued_s([op], way) for way in ("forward", "input_grad", "weight_grad")]
    assert issued == pytest.approx([1 + calls * 8e-6] * 3, rel=1e-9)
    graphed = replace(pricer, device=replace(device, tuning=Tuning(launch_s=0.0)))
    assert graphed.issued_s([op], "forward") == 0
    apart = replace(pricer, products_apart=True)
    assert apart.issued_s([op], "forward") == pytest.approx(32, rel=1e-9)
    drawn = Tuning().model_copy(update={"launch_s": np.array([0.0, 1.0])})  # two tunings at once
    several = replace(pricer, device=replace(device, tuning=drawn)).issued_s([op], "forward")
    assert several == pytest.approx([0, 1 + calls * 8e-6], rel=1e-9)


@pytest.mark.parametrize(
    ("precision", "loops", "casts", "expected"),
    [
        pytest.param("mxfp8", True, 3, (64, 64, 32), id="32 products and 32 casts of rows"),
        pytest.param("fp8", True, 12, (64, 64, 32), id="one cast of each, of however many passes"),
        pytest.param("bf16", True, 3, (32, 32, 32), id="16 bits are not cast"),
        pytest.param("mxfp8", True, 0, (32, 32, 32), id="rows arrive in 8 bits"),
        pytest.param("mxfp8", False, 3, (0, 0, 0), id="one kernel casts all experts' rows"),
    ],
)
def test_rows_of_experts_are_cast_one_expert_after_the_other(
    precision: Precision, loops: bool, casts: int, expected: tuple[int, ...]
) -> None:
    """8 us for each expert's product, and as long for the cast of its rows or their gradient."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES[precision])
    device = replace(device, loops_over_experts=loops)
    op = replace(PRODUCT, name="experts_up", groups=32, casts=casts, modules=("experts",))
    ways: tuple[Direction, ...] = ("forward", "input_grad", "weight_grad")
    found = [operators_s(op, way, (), device) for way in ways]
    assert found == pytest.approx([calls * 8e-6 for calls in expected])
    graphed = replace(op, modules=("moe", "experts"))
    assert operators_s(graphed, "forward", ("experts",), device) == 0


@pytest.mark.parametrize(("engine", "loops"), [("megatron-bridge", True), ("torchtitan", False)])
def test_an_engine_says_whether_it_loops_over_experts(engine: str, loops: bool) -> None:
    model = model_from_config(load_model_config("mixtral-8x7b"), "m")
    training = Training(seq_len=4096, global_batch_size=8)
    setting = Setting.fitted(model, training, load_cluster("dgx-h100"), load_engine(engine))
    layout = Layout(data_parallel=8, stages=even_stages(model.num_layers, 1))
    assert Rank(setting, layout).device.loops_over_experts == loops


def test_a_plain_module_is_issued_in_its_share_of_a_launch() -> None:
    """3 launches of a quarter of a second, and operators at their own rate."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES["bf16"])
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(
        device, cluster, alone, overlap=load_engine("megatron").overlap, launch_share=0.25
    )
    op = Pointwise(
        name="rotary", forward_bytes=0.0, backward_bytes=0.0, kernels=3, operators=(5.0, 7.0)
    )
    assert pricer.issued_s([op], "forward") == pytest.approx(0.75 + 5 * 8e-6)


@pytest.mark.parametrize(
    ("precision", "op", "share"),
    [
        ("bf16", PRODUCT, 0.25),
        ("fp8", PRODUCT, 1.0),
        ("bf16", replace(PRODUCT, modules=("experts",)), 1.0),
        ("bf16", replace(PRODUCT, recipe=False), 1.0),
        ("bf16", NORM, 0.25),
        ("bf16", replace(NORM, name="feed_forward_norm"), 0.25),
        ("bf16", replace(NORM, modules=("norm", "layernorm")), 1.0),
        ("bf16", replace(NORM, name="final_norm"), 1.0),
    ],
    ids=[
        "dense",
        "8 bits",
        "experts",
        "head or router",
        "its norm",
        "its other norm",
        "norm apart",
        "last norm",
    ],
)
def test_a_dense_layer_in_16_bits_is_issued_in_its_share(
    precision: Precision, op: Operation, share: float
) -> None:
    """Its product and the norm joined to it, of a launch of a second each."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES[precision])
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    overlap = load_engine("megatron").overlap
    usual, light = (
        Pricer(device, cluster, alone, overlap=overlap, product_share=each).issued_s(
            [op], "forward"
        )
        for each in (1.0, 0.25)
    )
    assert light == pytest.approx(share * usual)


def test_a_slower_host_issues_kernels_and_operators_as_much_later() -> None:
    """3 launches and 5 operators at 2.5 times; kernels themselves take what they took."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    slow = cluster.model_copy(update={"host_slowdown": 2.5})
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pointwise = Pointwise(
        name="rotary", forward_bytes=0.0, backward_bytes=0.0, kernels=3, operators=(5.0, 7.0)
    )
    wide = Matmul(name="fc", m=65536, k=8192, n=8192)
    for launch_s in (1.0, 1e-6):
        device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=launch_s), RECIPES["bf16"])
        pricer = Pricer(device, slow, alone, overlap=load_engine("megatron").overlap)
        issued_s = pricer.issued_s([pointwise], "forward")
        assert issued_s == pytest.approx(2.5 * (3 * launch_s + 5 * 8e-6))
        usual = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
        behind = pricer.cost([wide]).forward.total_s == usual.cost([wide]).forward.total_s
        assert behind == (launch_s < 1)


@pytest.mark.parametrize(
    ("launch_s", "seen_s"),
    [pytest.param(1.0, (2.0, 3.0), id="slow"), pytest.param(1e-7, (0.0, 3e-7), id="fast")],
)
def test_a_host_that_waits_for_each_kernel_hides_nothing(
    launch_s: float, seen_s: tuple[float, float]
) -> None:
    """3 launches beside a kernel of a second: what is longer than it, or all of them."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=launch_s), RECIPES["bf16"])
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    usual = Pricer(device, cluster, alone, overlap=load_engine("megatron").overlap)
    op = Pointwise(name="copy", forward_bytes=1e12, backward_bytes=0.0, kernels=3)
    device_s = float(usual.cost([op]).forward.pointwise_s)
    op = replace(op, forward_bytes=1e12 / device_s)
    for pricer, expected_s in zip(
        (usual, replace(usual, launches_block=True)), seen_s, strict=True
    ):
        assert pricer.cost([op]).forward.host_s == pytest.approx(expected_s, rel=1e-4)
