"""Attention with heads wider than FlashAttention's and cuDNN's kernels take."""

from dataclasses import replace

import pytest

from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.training import Precision
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.tunings import Tuning


def device(gpu: str) -> Device:
    """Of a GPU as published, for PyTorch's attention."""
    return Device(
        load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], "flash2", uses_sdpa=True
    )


def causal(tokens: int, heads: int, head_dim: int = 512, *, wide: bool = True) -> AttentionCore:
    """Of one sequence."""
    return AttentionCore(
        name="core", queries=tokens, keys=tokens / 2, all_keys=float(tokens), heads=heads,
        head_dim=head_dim, v_head_dim=head_dim, fused=True, wide=wide,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "tokens", "forward_ms", "backward_ms"),
    [
        pytest.param("l20", 8192, 37.48, 190.57, id="L20"),
        pytest.param("h200", 8192, 16.76, 130.72, id="H200"),
        pytest.param("h200", 16384, 74.20, 497.01, id="H200, twice as long"),
        pytest.param("b200", 8192, 12.82, 113.14, id="B200"),
        pytest.param("b200", 16384, 49.94, 431.60, id="B200, twice as long"),
    ],
)
def test_32_heads_of_512_as_published(
    gpu: str, tokens: int, forward_ms: float, backward_ms: float
) -> None:
    """xlite-dev/ffpa-attn@16586812 bench/README.md, its column SDPA, causal, bf16: within 10 %."""
    op = causal(tokens, 32)
    for backward, measured_ms in ((False, forward_ms), (True, backward_ms)):
        predicted_ms = 1e3 * float(attention_s(device(gpu), op, backward=backward))
        assert predicted_ms == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(("tokens", "measured_ms"), [(2048, 6.53), (4096, 19.7)])
def test_gemma_4s_global_layers_as_published(tokens: int, measured_ms: float) -> None:
    """16 heads of 512 on a B300, forward and backward: whitecircle/halo@0bc3a22a
    agent-docs/models/gemma4.md.
    """
    op = causal(tokens, 16)
    both_s = [float(attention_s(device("b300"), op, backward=each)) for each in (False, True)]
    assert 1e3 * sum(both_s) == pytest.approx(measured_ms, rel=0.02)


@pytest.mark.parametrize("gpu", ["v100-32gb", "a10g", "rtx-3090", "a100-80gb-sxm", "h20", "b300"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_gpu_multiplies_faster_than_its_peak(gpu: str, precision: Precision) -> None:
    """The rates are those of 16 bits: an A100's 46e12 FLOP/s are beyond its 19.5e12 in fp32."""
    op, here = causal(8192, 16), replace(device(gpu), recipe=RECIPES[precision])
    peak = here.gpu.peak_flops_per_s[here.recipe.other_dtype(here.gpu)]
    for backward, flops in ((False, op.forward_flops), (True, 2.5 * op.forward_flops)):
        assert attention_s(here, op, backward=backward) > flops / peak


def halved(gpu: str, op: AttentionCore) -> float:
    """How much longer a GPU with half of the compute units takes backward."""
    here = device(gpu)
    units = {"compute_units": here.gpu.compute_units // 2}
    fewer = replace(here, gpu=here.gpu.model_copy(update=units))
    slow, fast = (float(attention_s(each, op, backward=True)) for each in (fewer, here))
    return slow / fast


def test_other_gpus_and_heads_keep_their_kernels() -> None:
    """Rates of wide heads are those of a compute unit of NVIDIA's; other rates are the whole GPU's:
    AMD's kernels take wide heads, and a head of 256 is not wide.
    """
    assert halved("b200", causal(4096, 16)) == pytest.approx(2, rel=1e-2)
    assert halved("mi300x", causal(4096, 16)) == 1
    assert halved("b200", causal(4096, 16, 256, wide=False)) == 1
