"""Seconds of one kernel on one accelerator.

    matmul     t = launch + max(2 m n k g / (peak E q k / (k + k0)), 2 g (m k + k n + m n) / (B e))
    attention  t = launch + FLOPs / (peak16 E_a w s / (s + s0))
    pointwise  t = launches + bytes / (B e)

    g        groups (experts) in one kernel
    E, E_a   sustained fraction of the dense peak       Kernels.matmul_efficiency, attention_*
    q        tile and wave quantisation: the best of three tile shapes, each with the fraction of the
             accelerator's compute units that its last wave leaves busy
    k0       inner size at which a matmul reaches half of E: 170, the median of two fits to published
             cuBLAS tables (B200 190, A100 170; median error 6.5 % and 2.6 % of 514 and 183 shapes)
    w        head width: heads narrower than 128 leave part of the matrix unit idle, min(1, d / 128)^(1/2)
    s0       query length at which attention reaches half of its rate, 256
    B, e     memory bandwidth and the fraction of it that pointwise kernels reach

Leaves out: clock changes within a step, cache reuse between kernels.
"""

import math
from dataclasses import dataclass
from typing import Literal

from costmodels.elementwise import Number, ceil, maximum
from costmodels.operations import AttentionCore, Matmul
from costmodels.precision import Recipe
from hardware_profiles.schema import Dtype, Gpu, Kernels
from hardware_profiles.tunings import Tuning

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.96), (128.0, 64.0, 0.87))
HALF_RATE_K = 170.0
HALF_RATE_QUERIES = 256.0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as kernels see it: datasheet, measured efficiencies, corrections, number formats."""

    gpu: Gpu
    kernels: Kernels
    tuning: Tuning
    recipe: Recipe
    attention: Literal["unfused", "flash2", "cudnn"] = "cudnn"

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What pointwise kernels reach of the memory bandwidth."""
        return self.gpu.memory_bandwidth_bytes_per_s * self.kernels.memory_efficiency

    def rate_flops_per_s(self, dtype: Dtype, *, grouped: bool = False) -> float:
        """Sustained rate of a large matmul in `dtype`."""
        table = self.kernels.matmul_efficiency
        efficiency = table[dtype] if dtype in table else table[self.recipe.other_dtype(self.gpu)]
        if grouped:
            efficiency = self.kernels.grouped_efficiency.get(dtype, efficiency)
        return self.gpu.peak_flops_per_s[dtype] * efficiency


def matmul_s(device: Device, op: Matmul, rows: Number, columns: Number, inner: Number) -> Number:
    """Seconds of `op.groups` products (rows x inner) @ (inner x columns)."""
    dtype = (
        device.recipe.matmul_dtype(device.gpu)
        if op.recipe
        else device.recipe.other_dtype(device.gpu)
    )
    grouped = op.name.startswith("experts")
    flops = 2.0 * rows * columns * inner * op.groups
    rate = device.rate_flops_per_s(dtype, grouped=grouped)
    filled = _filled_units(rows, columns, op.groups, device.gpu.compute_units)
    math_s = flops / (rate * filled) * (1 + HALF_RATE_K / inner)
    moved = 2.0 * op.groups * (rows * inner + inner * columns + rows * columns)
    memory_s = moved / device.bandwidth_bytes_per_s
    tuning = device.tuning
    return device.kernels.launch_s + maximum(math_s * tuning.matmul_scale, memory_s)


def attention_s(device: Device, op: AttentionCore, *, backward: bool) -> Number:
    """Seconds of the core attention; its backward makes five products where the forward makes two."""
    kernels, recipe = device.kernels, device.recipe
    efficiency = kernels.attention_backward if backward else kernels.attention_forward
    if device.attention == "flash2":
        efficiency *= kernels.flash2_fraction
    width = math.sqrt(min(1.0, min(op.head_dim, op.v_head_dim) / 128.0))
    rate: Number = device.gpu.peak_flops_per_s[recipe.other_dtype(device.gpu)] * efficiency * width
    rate = rate * op.keys / (op.keys + HALF_RATE_QUERIES / 2)
    flops = op.forward_flops * (2.5 if backward else 1.0)
    if op.fused:
        return kernels.launch_s + flops / rate * device.tuning.attention_scale
    # two batched matmuls at matmul rate, and the scores through memory for softmax, mask and dropout
    scores = 2.0 * op.queries * op.all_keys * op.heads
    matmuls = op.forward_flops * (op.all_keys / op.keys) * (2.0 if backward else 1.0)
    math_s = matmuls / device.rate_flops_per_s(recipe.other_dtype(device.gpu)) / 0.6
    memory_s = scores * (7.0 if backward else 6.0) / device.bandwidth_bytes_per_s
    return 4 * kernels.launch_s + (math_s + memory_s) * device.tuning.attention_scale


def pointwise_s(device: Device, moved_bytes: Number, kernels: int) -> Number:
    """Seconds of `kernels` memory-bound kernels that move `moved_bytes` together."""
    moving_s = moved_bytes / device.bandwidth_bytes_per_s * device.tuning.pointwise_scale
    return kernels * device.kernels.launch_s + moving_s


def _filled_units(rows: Number, columns: Number, groups: Number, units: int) -> Number:
    """Fraction of the compute units kept busy over all waves, with the best of `TILES`."""
    best: Number = 0.0
    for height, width, rate in TILES:
        tiles = ceil(rows / height) * ceil(columns / width) * groups
        waves = tiles / units
        best = maximum(best, rate * waves / ceil(waves))
    return best
