"""Seconds of single kernels: the roofline by hand, quantisation, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from round_device import round_device

from meshplan.costmodels.operations.kinds import AttentionCore, Matmul
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import TILES, Device, matmul_s, pointwise_s
from meshplan.hardware_profiles.schema import AttentionPoint, MatmulPoint


@pytest.fixture(scope="module")
def device() -> Device:
    """Of round rates."""
    return round_device()


def square(rows: float, columns: float, inner: float, **traits: object) -> Matmul:
    return Matmul(name="linear", m=rows, n=columns, k=inner, **traits)  # type: ignore[arg-type]


def seconds(device: Device, op: Matmul) -> float:
    return float(matmul_s(device, op, op.m, op.n, op.k))


def test_large_matmul_by_hand(device: Device):
    """2560 x 1280 is 100 tiles of 256 x 128, one full wave: 2 m n k / peak x (k + 170) / k."""
    op = square(2560, 1280, 4096)
    math_s = 2 * 2560 * 1280 * 4096 / 100e12 * (1 + 170 / 4096)
    assert seconds(device, op) == pytest.approx(1e-5 + math_s, rel=1e-12)


def test_a_tile_too_many_costs_a_wave(device: Device):
    """101 tiles of 256 x 128 take two waves, so other tiles win: 202 of 128 x 128 take three.

    Filled: 101/200 at rate 1, 202/300 x 0.96, 404/500 x 0.87: the last, 0.703.
    """
    op = square(256 * 101, 128, 4096)
    filled = 404 / 500 * TILES[2][2]
    math_s = 2 * op.m * op.n * op.k / 100e12 / filled * (1 + 170 / 4096)
    assert seconds(device, op) == pytest.approx(1e-5 + math_s, rel=1e-12)


def test_thin_matmul_is_bound_by_memory(device: Device):
    """One row against 8192 x 8192: 134 MB of weights at 1 TB/s."""
    op = square(1, 8192, 8192)
    moved = 2 * (8192 + 8192 * 8192 + 8192)
    assert seconds(device, op) == pytest.approx(1e-5 + moved / 1e12, rel=1e-12)


@pytest.mark.parametrize(
    ("units", "by_index", "kernel", "gb_per_s"),
    [
        pytest.param(100, True, "permute", 570.0, id="100 units x 5.7 GB/s"),
        pytest.param(400, True, "permute", 1000.0, id="400 units: the memory's 1 TB/s"),
        pytest.param(100, False, "permute", 1000.0, id="kernels made for it: the memory's"),
        pytest.param(100, True, "copy", 1000.0, id="a copy: the memory's"),
        pytest.param(100, False, "bias_gradient", 570.0, id="rows added up to their expert's"),
    ],
)
def test_rows_taken_by_number(
    device: Device, units: int, by_index: bool, kernel: str, gb_per_s: float
) -> None:
    """PyTorch's indexing is bound by the units that issue it, where the memory is faster."""
    gpu = device.gpu.model_copy(update={"compute_units": units})
    indexing = replace(device, gpu=gpu, permutes_by_index=by_index)
    moving_s = float(pointwise_s(indexing, 1e9, 0, kernel))
    assert moving_s == pytest.approx(1.0 / gb_per_s)


@pytest.mark.parametrize(("kernel", "gb_per_s"), [("permute", 1000.0), ("permute_sum", 570.0)])
def test_rows_added_up_by_number(device: Device, kernel: str, gb_per_s: float) -> None:
    """A compiler fuses rows that are taken; those that it leaves to PyTorch are added by index."""
    gpu = device.gpu.model_copy(update={"compute_units": 100})
    adding = replace(device, gpu=gpu, sums_by_index=True)
    assert float(pointwise_s(adding, 1e9, 0, kernel)) == pytest.approx(1.0 / gb_per_s)


@pytest.mark.parametrize(("precision", "longer"), [("bf16", 1 / 0.69), ("fp8", 1.0)])
def test_pytorchs_grouped_product(device: Device, precision: str, longer: float) -> None:
    """Of 16 bits it has a rate of its own; other products and number formats have not."""
    kernels = device.kernels.model_copy(update={"grouped_mm_fraction": 0.69})
    gpu = device.gpu.model_copy(update={"memory_bandwidth_bytes_per_s": 1e30})
    plain = Device(gpu, kernels, device.tuning, RECIPES[precision])
    own = replace(plain, uses_grouped_mm=True)
    dense = square(4096, 4096, 4096)
    experts = replace(dense, name="experts_up", groups=2)
    launch_s = kernels.launch_s
    slow, fast = (seconds(each, experts) - launch_s for each in (own, plain))
    assert slow == pytest.approx(longer * fast)
    assert seconds(own, dense) == seconds(plain, dense)


def test_recipe_chooses_the_rate(device: Device):
    """Under fp8 a layer's product runs at the fp8 peak, the head at the 16-bit one."""
    fp8 = Device(device.gpu, device.kernels, device.tuning, RECIPES["fp8"])
    linear, head = square(2560, 1280, 65536), square(2560, 1280, 65536, recipe=False)
    slow, fast = seconds(fp8, head) - 1e-5, seconds(fp8, linear) - 1e-5
    assert slow == pytest.approx(2 * fast, rel=1e-9)
    assert seconds(device, linear) == seconds(fp8, head)


def test_pointwise_by_hand(device: Device):
    """3 kernels of 10 us and 2 GB at 1 TB/s."""
    assert pointwise_s(device, 2e9, 3) == pytest.approx(3e-5 + 2e-3)


@given(m=st.integers(1, 20000), n=st.integers(1, 20000), k=st.integers(1, 20000))
def test_matmul_is_never_above_the_roofline(device: Device, m: int, n: int, k: int):
    """No product beats the peak or the memory bandwidth."""
    time_s = seconds(device, square(m, n, k))
    assert time_s >= 1e-5 + 2.0 * m * n * k / 100e12
    assert time_s >= 1e-5 + 2.0 * (m * k + k * n + m * n) / 1e12


@given(m=st.integers(1, 20000), n=st.integers(1, 20000), k=st.integers(1, 20000))
def test_a_longer_inner_size_is_never_faster(device: Device, m: int, n: int, k: int):
    """The same tiles with more to add up take longer."""
    assert seconds(device, square(m, n, k + 1)) >= seconds(device, square(m, n, k))


def test_a_kernel_moves_at_the_rate_of_its_number_format(device: Device) -> None:
    """1e9 bytes of bf16 at 0.1 TB/s 10 ms, where fp32 would take 4 ms and bf16 was measured too."""
    rates = {"rms_norm": 0.25e12, "rms_norm_bf16": 0.1e12}
    update = {"pointwise_bytes_per_s": rates, "conditions": {"kind": "measured"}}
    here = replace(device, kernels=device.kernels.model_copy(update=update))
    assert here.recipe.base_dtype == "bf16"
    assert pointwise_s(here, 1e9, 0, "rms_norm") == pytest.approx(10e-3)
    wide = replace(here, recipe=replace(here.recipe, base_dtype="fp32"))
    assert pointwise_s(wide, 1e9, 0, "rms_norm") == pytest.approx(4e-3)


def test_a_kernel_moves_at_its_own_rate_where_the_machine_was_measured(device: Device) -> None:
    """1e9 bytes: at the norm's own 0.25 TB/s 4 ms, at the mean 1 TB/s 1 ms; published: 1 ms."""
    rates = {"pointwise_bytes_per_s": {"rms_norm": 0.25e12}}
    for kind, norm_s in (("measured", 4e-3), ("published", 1e-3)):
        update = rates | {"conditions": {"kind": kind}}
        here = replace(device, kernels=device.kernels.model_copy(update=update))
        assert pointwise_s(here, 1e9, 0, "rms_norm") == pytest.approx(norm_s)
        assert pointwise_s(here, 1e9, 0, "rope") == pytest.approx(1e-3)


def test_a_machine_that_others_use_too_takes_longer_in_proportion(device: Device) -> None:
    """Products of bf16 take 1.5 times what the measured points say, fp32's as they say; memory 1.2
    times, attention as the products of its format.
    """
    points = tuple(
        MatmulPoint(dtype=dtype, m=m, n=m, k=k, flops_per_s=1e12)
        for dtype in ("bf16", "fp32") for m in (64, 512) for k in (64, 512)
    )  # fmt: skip
    attention = tuple(
        AttentionPoint(
            dtype="bf16", direction="forward", batch=1, heads=4, kv_heads=4, head_dim=d,
            v_head_dim=d, seq_len=s, causal=True, flops_per_s=1e12,
        )
        for d in (64, 128) for s in (256, 1024)
    )  # fmt: skip
    update = {
        "matmul_points": points, "attention_points": attention, "conditions": {"kind": "measured"},
    }  # fmt: skip
    alone = replace(device, kernels=device.kernels.model_copy(update=update))
    shared = {"bf16": 1.5, "memory": 1.2}
    with_others = replace(
        device, kernels=alone.kernels.model_copy(update={"shared_slowdown": shared})
    )
    product = square(512, 512, 64)
    core = AttentionCore(
        name="attention", queries=512.0, keys=256.0, all_keys=512.0, heads=4, head_dim=64,
        v_head_dim=64, fused=True,
    )  # fmt: skip
    assert seconds(with_others, product) == pytest.approx(1.5 * seconds(alone, product))
    assert attention_s(with_others, core, backward=False) == pytest.approx(
        1.5 * attention_s(alone, core, backward=False)
    )
    assert pointwise_s(with_others, 1e9, 0) == pytest.approx(1.2 * pointwise_s(alone, 1e9, 0))


def test_units_that_communicate_do_not_compute(device):
    """112 of 132 SMs are left: a product large enough to fill either takes 132 / 112 as long."""
    op = Matmul(name="up", m=112 * 132 * 128, n=128, k=1024)
    left = replace(
        device, gpu=device.gpu.model_copy(update={"compute_units": 132}).without_units(20)
    )
    whole = replace(device, gpu=device.gpu.model_copy(update={"compute_units": 132}))
    overhead_s = device.kernels.launch_s
    slow, fast = (seconds(each, op) - overhead_s for each in (left, whole))
    assert slow / fast == pytest.approx(132 / 112, rel=1e-6)
