"""Rates of Blackwell's kernels against the tables that they come from."""

import pytest

from meshplan.hardware_profiles.built_in import gpu_names, load_gpu, load_kernels
from meshplan.hardware_profiles.schema import Dtype

TOKENS = (2048, 4096, 8192, 16384, 32768)
CUDNN = {
    ("gb200", "forward"): (1097, 1408, 1574, 1708, 1622),
    ("gb200", "backward"): (885, 1148, 1332, 1328, 1226),
    ("gb300", "forward"): (1373, 1703, 1856, 1915, 1953),
    ("gb300", "backward"): (967, 1248, 1435, 1507, 1490),
}
"""TFLOP/s, causal, heads of 128: NVIDIA/cudnn-frontend@3929da2."""
LONG_RUN = {"forward": 592 / 644, "backward": 475 / 541}
"""At 8,192 tokens h100-sxm's rates in a long run over the same benchmark's H200."""
NARROWER: tuple[tuple[Dtype, Dtype], ...] = (("fp8", "bf16"), ("mxfp8", "bf16"), ("nvfp4", "fp8"))


@pytest.mark.parametrize(("gpu", "direction"), CUDNN)
def test_attention_meets_the_published_curve(gpu: str, direction: str) -> None:
    """A causal query meets half of the tokens. Power, which slows the longest sequences of the
    table, is not in the formula.
    """
    kernels, peak = load_kernels(gpu), load_gpu(gpu).peak_flops_per_s["bf16"]
    rate = peak * getattr(kernels, f"attention_{direction}")
    half = getattr(kernels, f"attention_half_{direction}")
    for tokens, measured in zip(TOKENS, CUDNN[gpu, direction], strict=True):
        keys = tokens / 2
        published = measured * 1e12 * LONG_RUN[direction]
        assert rate * keys / (keys + half) == pytest.approx(published, rel=0.15)


def test_gb200_multiplies_8_bits_as_fast_as_after_ten_thousand_products() -> None:
    """2.83e15 to 2.91e15 from 4,096 to 32,768 a side, Azure/AI-benchmarking-guide@2a370be."""
    rate = (
        load_gpu("gb200").peak_flops_per_s["fp8"] * load_kernels("gb200").matmul_efficiency["fp8"]
    )
    assert 2.8e15 < rate < 2.95e15


@pytest.mark.parametrize("pair", NARROWER)
@pytest.mark.parametrize("gpu", gpu_names())
def test_narrower_numbers_reach_no_more_of_their_peak(gpu: str, pair: tuple[Dtype, Dtype]) -> None:
    """What holds a matrix unit back, power and what moves, holds back the faster format more."""
    narrow, wide = pair
    efficiency = load_kernels(gpu).matmul_efficiency
    if narrow in efficiency and wide in efficiency:
        assert efficiency[narrow] <= efficiency[wide]
