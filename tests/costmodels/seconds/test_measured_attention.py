"""Seconds of attention where a machine's own kernels were measured."""

from dataclasses import replace

import pytest
from round_device import round_device

from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import AttentionPoint, Kernels
from meshplan.hardware_profiles.tunings import Tuning


@pytest.fixture(scope="module")
def device() -> Device:
    """Of round rates."""
    return round_device()


CORE = AttentionCore(
    name="core_attention", queries=1024, keys=128, all_keys=256, heads=4, head_dim=64,
    v_head_dim=64, fused=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "rate"),
    [
        pytest.param("flash2", 1e12, id="FlashAttention-2's own"),
        pytest.param("cudnn", 4e12, id="cuDNN's own"),
        pytest.param("flex", 1e12, id="what a kernel's rate is known over"),
        pytest.param("flash3", 4e12, id="which of newer ones is cuDNN's"),
        pytest.param("unfused", 2e12, id="none of them: the usual one's"),
    ],
)
def test_attention_is_priced_by_the_kernel_of_the_engine(
    device: Device, asked: str, rate: float
) -> None:
    """Three kernels were measured at four shapes each, at 1, 4 and 2 TFLOP/s."""
    points = tuple(
        AttentionPoint(
            dtype="bf16", kernel=kernel, direction="forward", batch=1, heads=4, kv_heads=4,
            head_dim=d, v_head_dim=d, seq_len=s, causal=True, flops_per_s=measured,
        )
        for kernel, measured in (("flash2", 1e12), ("cudnn", 4e12), (None, 2e12))
        for d in (64, 128) for s in (256, 1024)
    )  # fmt: skip
    update = {"attention_points": points, "conditions": {"kind": "measured"}}
    kernels = device.kernels.model_copy(update=update)
    here = replace(device, kernels=kernels, attention=asked)
    surface = here.attention_surface("bf16", "forward")
    assert surface is not None
    assert float(surface(4, 512, 64)) == pytest.approx(rate)
    wide = replace(CORE, wide=True)  # no such kernel was measured
    assert attention_s(here, wide, backward=False) == attention_s(device, wide, backward=False)


@pytest.mark.parametrize(
    ("cluster", "kernel", "measured"),
    [
        ("dgx-h100", "flex", "flash2"),
        ("dgx-h100", "flash3", "cudnn"),
        ("gb200-nvl72", "flex", "cudnn"),
    ],
)
def test_other_kernels_keep_their_ratio_where_one_was_measured(
    cluster: str, kernel: str, measured: str
) -> None:
    """A machine whose `measured` kernel is half as fast as published halves `kernel` too."""
    found = load_cluster(cluster)
    assert found.kernels is not None
    core = replace(CORE, queries=8192.0, keys=4096.0, all_keys=8192.0, head_dim=128, v_head_dim=128)

    def spent_s(name: str, kernels: Kernels, *, backward: bool) -> float:
        here = Device(found.gpu, kernels, Tuning(), RECIPES["bf16"], name)
        return float(attention_s(here, core, backward=backward))

    published = found.kernels.model_copy(update={"launch_s": 0.0})
    for backward in (False, True):
        half = core.forward_flops * (2.5 if backward else 1.0) / 2
        rate = half / spent_s(measured, published, backward=backward)
        points = tuple(
            AttentionPoint(
                dtype="bf16", kernel=measured, direction="backward" if backward else "forward",
                batch=1, heads=4, kv_heads=4, head_dim=128, v_head_dim=128, seq_len=s, causal=True,
                flops_per_s=rate,
            )
            for s in (1024, 4096, 8192, 16384)
        )  # fmt: skip
        update = {"attention_points": points, "conditions": {"kind": "measured"}}
        here = published.model_copy(update=update)
        alone = spent_s(kernel, published, backward=backward)
        assert spent_s(kernel, here, backward=backward) == pytest.approx(2 * alone, rel=1e-3)


def grown_with_length(device: Device) -> Device:
    """Attention of one width was measured: 1 TFLOP/s at 64 tokens, and twice that at twice them."""
    points = tuple(
        AttentionPoint(
            dtype="bf16", kernel="flash2", direction="forward", batch=b, heads=4, kv_heads=4,
            head_dim=64, v_head_dim=64, seq_len=s, causal=True, flops_per_s=1e12 * s / 64,
        )
        for b in (1, 4, 16) for s in (64, 128, 256, 512)
    )  # fmt: skip
    update = {"attention_points": points, "conditions": {"kind": "measured"}}
    kernels = device.kernels.model_copy(update=update)
    return replace(device, kernels=kernels, attention="flash2")


def test_chunks_of_a_sequence_cost_their_own_kernels(device: Device) -> None:
    """cp2 of 256 tokens: of the 128 keys that a query meets on the mean, 32 are in its own chunk of
    64, at the rate of 64 tokens, and 96 in earlier ones, at that of 192.
    """
    here = grown_with_length(device)
    flops = [2.0 * 1024 * keys * 4 * 128 for keys in (32, 96)]
    by_hand = flops[0] / 1e12 + flops[1] / 3e12
    apart = attention_s(here, replace(CORE, chunk=64.0), backward=False)
    assert apart == pytest.approx(by_hand, rel=0.15)  # the surface is smooth, no table
    pieces = [attention_s(here, replace(CORE, keys=keys), backward=False) for keys in (32, 96)]
    assert apart == pytest.approx(sum(pieces), rel=1e-12)


def test_the_native_kernel_widens_values(device: Device) -> None:
    """Values half as wide as queries take as long as whole ones: the kernel runs over zeros."""
    here = grown_with_length(device)
    narrow = attention_s(here, replace(CORE, v_head_dim=32), backward=False)
    assert narrow == pytest.approx(attention_s(here, CORE, backward=False), rel=1e-12)
