"""Attention kernels beside the one whose rates a GPU's profile has: how fast each is there.

A profile's `attention_*` are cuDNN's, or FlashAttention-2's where nothing is faster
(`Kernels.flash2_fraction` 1). Another kernel is priced by its rates over theirs.

Leaves out: releases of one kernel (the third FlashAttention's backward of July 2024 was slower than
the second's, Dao-AILab/flash-attention issue 1051).
"""

from typing import NamedTuple

from meshplan.hardware_profiles.schema import AttentionKernel, Gpu, Kernels
from meshplan.hardware_profiles.tunings import gpu_family

OLDER_KERNELS = {
    "flash2": (1.0, 1.0), "flash1": (0.5, 0.5), "triton": (1 / 1.4, 0.5),
    "efficient": (0.527, 0.591), "masked": (0.527, 0.591),
    "flex": (0.9, 0.85),
}  # fmt: skip
"""Rates over the second FlashAttention's on an A100, forward and backward.

flash1, triton     the second is "around 2x" as fast as the first, and "1.3-1.5x" and "around 2x" as
                   its Triton version (2307.08691, 4.1)
efficient, masked  PyTorch's memory-efficient attention, which is xformers' of CUTLASS, where heads
                   are 128 wide and no key is left out: 107.8e12 forward over 8,096 keys
                   (facebookresearch/xformers pull request 389: 49.8 ms for 160 heads), 85.4e12
                   backward over 2,048 (NVIDIA/cutlass pull request 992: 10.06 ms for 8 sequences of
                   20 heads); the second by measured/a100-80gb-sxm.toml 204.5e12 and 144.5e12.
                   `masked` has a mask as a tensor and skips no key (`AttentionCore.masked_keys`)
flex               FlexAttention, which PyTorch compiles to Triton, causal (pytorch.org, 2024-08-07:
                   pytorch/pytorch.github.io _posts/2024-08-07-flexattention.md)

Other GPUs in proportion. An H100 was measured at 256 keys alone: 144.8e12 of 229.5e12
(microsoft/onnxruntime pull request 21629).
"""

BY_FAMILY: dict[tuple[str, str], tuple[float, float] | None] = {
    ("flex", "hopper"): (1.25, 1.03), ("flex", "blackwell"): None,
}  # fmt: skip
"""What was measured of a kernel on a GPU family itself: rates over the second FlashAttention's, or
None where they are over cuDNN's.

flex  on an H100 some 25 % faster forward and 3 % backward (its authors' talk at GTC 2025: "PyTorch
      at GTC 2025", pytorch.org; without a mask 1.11 to 1.14 forward over 4,096 to 16,384 keys in
      August 2024, pytorch/benchmark pull request 2443). The talk also has 0.85 and 0.76 of the
      third's rates, by those below 1.8 of the second's: the second and third lie nearer to each
      other there
"""


class OverCudnn(NamedTuple):
    """Of cuDNN's on the same GPU: the rate of many keys, and the keys at which half of it is
    reached.
    """

    rate: float
    half: float


IN_8_BITS = "cudnn_mxfp8"
NEWER_KERNELS = {
    IN_8_BITS: (OverCudnn(1.168, 0.886), OverCudnn(1.119, 1.792)),
    "flash3": (OverCudnn(1.19, 1.53), OverCudnn(1.31, 2.29)),
    "flash4": (OverCudnn(1.165, 1.0), OverCudnn(1.23, 1.0)),
    "flex": (OverCudnn(0.515, 1.0), OverCudnn(0.596, 1.0)),
}
"""Forward and backward.

cudnn_mxfp8  cuDNN's with inputs in mxfp8 on a GB200, causal, 64 heads of 128; `WIDE_IN_8_BITS` and
        `ULTRA` have wider keys and the GB300
flash3  on an H100, bf16, causal, 4 sequences, 48 heads of 128 (meta-pytorch/tritonbench pull
        request 1267): 364, 560, 667, 685e12 forward and 182, 316, 444, 539e12 backward of 1,024 to
        8,192 tokens. R keys / (keys + half) through those of 2,048 and 8,192: R 740e12, half 329,
        and R 705e12, half 1260; cuDNN there 623e12, 215 and 539e12, 550 (measured/h100-sxm.toml).
        4,096 are then 4 and 2 % too slow, 1,024 24 and 12 % too fast
flash4  on a B200, bf16, causal, 4 sequences of 8,192, 16 heads of 128: 1418e12 forward and 1209e12
        backward (Dao-AILab/flash-attention pull request 2280), cuDNN 1265e12 and 960e12 by
        measured/b200.toml. Over flash3 on an H200 both together are then 2.20 and 1.92 times as
        fast at 8,192 and 32,768 tokens, measured apart 1.88 and 1.95 (stas00/ml-engineering@2943345
        insights/when-to-upgrade-gpus/README.md, bench_flash_attn.py)
flex    on Blackwell alone: on a GB200 flash4 is 1.6 to 3.2 times as fast as what Triton compiles
        forward, 1.85 to 2.3 times backward, with masks of documents alike ("FlexAttention +
        FlashAttention-4: Fast and Flexible", pytorch.org, 2026); the geometric means, 2.26, 2.06.
        Steps of Qwen3-4B on one B300 lie 0.305 and 1.217 s apart under both at 16,384 and 32,768
        tokens (whitecircle/halo agent-docs/optimization/flash-attention.md), by these 0.310 and
        1.215 s
"""

WIDE_IN_8_BITS = (OverCudnn(1.351, 0.886), OverCudnn(1.147, 0.832))
ULTRA = ("b300", "gb300")
ULTRA_IN_8_BITS = (OverCudnn(1.458, 1.432), OverCudnn(1.08, 1.719))
ULTRA_WIDE_IN_8_BITS = (OverCudnn(1.547, 1.095), OverCudnn(1.227, 1.037))
"""The same of keys of 192 and values of 128 (DeepSeek-V3's), and of a GB300, whose exponentials are
twice as fast: NVIDIA/cudnn-frontend@3929da2 benchmark/sdpa_benchmark_training/results (llama3.1,
dsv3; 2026-04-24, causal, not deterministic), R keys / (keys + half) through 2,048 to 32,768 tokens,
within 5 %, over that of bf16 with heads of 128 (measured/gb200.toml, gb300.toml). GB300, 8,192
tokens: 2829e12 and 1780e12 instead of 1825e12 and 1291e12. Other widths (GPT-OSS' 64) were not
measured, nor were other GPUs.
"""


def over_flash2(kernel: str, family: str) -> tuple[float, float] | None:
    """The rates of `kernel` over FlashAttention-2's on GPUs of `family`, forward and backward; None
    where they are known over cuDNN's.
    """
    return BY_FAMILY.get((kernel, family), OLDER_KERNELS.get(kernel))


def measured_as(kernel: AttentionKernel, family: str) -> AttentionKernel:
    """The kernel over which the rate of `kernel` is known."""
    if over_flash2(kernel, family) is not None:
        return "flash2"
    return "cudnn" if kernel in NEWER_KERNELS else kernel


def over_cudnn(kernel: str, gpu: str, head_dim: int, *, backward: bool) -> OverCudnn:
    """How fast one of `NEWER_KERNELS` is on a GPU, for keys of `head_dim`."""
    if kernel != IN_8_BITS:
        return NEWER_KERNELS[kernel][backward]
    wide = head_dim > 128
    if gpu in ULTRA:
        return (ULTRA_WIDE_IN_8_BITS if wide else ULTRA_IN_8_BITS)[backward]
    return (WIDE_IN_8_BITS if wide else NEWER_KERNELS[kernel])[backward]


CUDNN_FIRST_AGAIN = (2, 11)
CUDNN_FIRST_BEFORE = ((2, 5, 0), (2, 9, 0), (2, 9, 1))
"""Releases of PyTorch whose list of kernels begins with cuDNN's on Hopper and on data-centre
Blackwell. Others begin with FlashAttention-2, as all do on any other GPU of NVIDIA's.

2.5.0    2.5.1 made cuDNN's the last (pytorch pull request 138522)
2.9      check_prefer_cudnn_attention asks for cuDNN 9.9, the wheels bring 9.10.2; a minor revision
         of the chip, which B300 and GB300 have, is left out (pytorch/pytorch@5811a8d7, 2.9.1,
         aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; pull request 162073)
2.11 on  it asks for more than 9.15.0 since 2.10, because of sequences that 128 does not divide
         (issue 169849, pull request 171627). By the wheels' metadata 2.10 brings 9.10.2, 2.11
         9.19.0, 2.12 9.20.0, 2.13 too (NVIDIA/cosmos-framework pull request 153)

Leaves out: another cuDNN than that of PyPI's wheel (NGC's containers, wheels of CUDA 12), dropout
of attention that is no multiple of 1/16, which FlashAttention-2 takes, deterministic algorithms
and masks that are tensors, which cuDNN's takes (`masked` is what other releases run).
"""


def sdpa_kernel(order: str, gpu: str, head_dim: int, v_head_dim: int) -> AttentionKernel | None:
    """What `scaled_dot_product_attention` runs on a GPU, in the order of a release of PyTorch
    ("2.13"), or with cuDNN's kernel first ("cudnn") or not at all ("flash"); None on AMD's, which
    have a kernel of their own. cuDNN's takes heads of 256 on Hopper, on Blackwell of 128 or keys of
    192 beside values of 128.
    """
    family = gpu_family(gpu)
    if family.startswith("cdna"):
        return None
    listed = order == "cudnn" if order.isalpha() else _lists_cudnn(order, gpu)
    first = listed and family in ("hopper", "blackwell")
    widest = 256 if family == "hopper" or (head_dim, v_head_dim) == (192, 128) else 128
    return "cudnn" if first and max(head_dim, v_head_dim) <= widest else "flash2"


def _lists_cudnn(release: str, gpu: str) -> bool:
    wanted = (*map(int, release.split(".")), 0)[:3]
    minor = gpu.split("-")[0] in ULTRA and wanted[:2] == (2, 9)
    return wanted >= CUDNN_FIRST_AGAIN or (wanted in CUDNN_FIRST_BEFORE and not minor)


ASSEMBLED = ("cdna3", "cdna4")
"""Families of AMD's for which AITER has a backward in assembly (gfx942, gfx950)."""


def of_sdpa(
    kernels: Kernels, gpu: str, *, assembled: bool, backward: bool
) -> tuple[float, float] | None:
    """The rate of many keys and the keys of half of it of PyTorch's own kernel, where it has one
    that is not FlashAttention-2.
    """
    if backward and assembled and gpu_family(gpu) in ASSEMBLED:
        return kernels.attention_backward, kernels.attention_half_backward
    if backward and kernels.sdpa_backward:
        return kernels.sdpa_backward, kernels.sdpa_half_backward
    if not backward and kernels.sdpa_forward:
        return kernels.sdpa_forward, kernels.sdpa_half_forward
    return None


class WideRate(NamedTuple):
    """Of one compute unit: FLOP/s of many keys, and the keys at which half of it is reached."""

    flops_per_s: float
    half: float


WIDE_HEADS = {
    "ampere": (WideRate(0.43e12, 0.0), WideRate(0.23e12, 424.0)),
    "hopper": (WideRate(1.0e12, 120.0), WideRate(0.36e12, 540.0)),
    "blackwell": (WideRate(1.243e12, 286.0), WideRate(0.389e12, 1060.0)),
    "any": (WideRate(0.641e12, 0.0), WideRate(0.348e12, 424.0)),
}
"""PyTorch's memory-efficient kernel where heads are wider than the other kernels take, forward and
backward, by GPU family. Whatever the width: an L20 has 54 to 63e12 forward of 320 to 1,024.

xlite-dev/ffpa-attn@16586812 bench/README.md, its column SDPA: bf16, 32 heads of 512, PyTorch 2.11,
8,192 and 16,384 tokens, causal; without a mask in brackets.

    L20 (any)           59, (59) forward, 29, (31) backward [1e12 FLOP/s], 92 units, at 8,192 alone
    H200 (hopper)       131, 119, (135, 123); 42, 44, (46, 47), 132 units
    B200 (blackwell)    172, 176, (184, 182); 49, 51, (52, 53), 148 units

and for Blackwell's backward forward and backward together of 16 heads on a B300, 6.53 and 19.7 ms
of 2,048 and 4,096 tokens (whitecircle/halo@0bc3a22a agent-docs/models/gemma4.md). All within 9 %.
An A30 reaches 25e12 forward (@137225d7 docs/benchmark/README.md); its backward [assumed] as much
slower as an L20's. An H20's 62e12 forward are priced 21 % too fast, its 27e12 backward 7 % too
slow, an RTX 5090's 36e12 backward (issue 235) 48 % too fast. Leaves out that keys and values are
copied for each query head.
"""


def of_wide_heads(gpu: Gpu, *, backward: bool) -> tuple[float, float]:
    """Of the peak what NVIDIA's `gpu` reaches where heads are too wide for FlashAttention and a
    query meets many keys, and the keys at which it reaches half of that. In fp32 [assumed] the same
    share of its peak as in the 16 bits that were measured.
    """
    rate, half = WIDE_HEADS.get(gpu_family(gpu.name), WIDE_HEADS["any"])[backward]
    return rate * gpu.compute_units / gpu.peak_flops_per_s[gpu.format_16_bit], half
