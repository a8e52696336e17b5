"""Seconds of the core attention on one accelerator.

    fused      t = launches + FLOPs / (peak16 E_a w s / (s + s0)) + sinks
    unfused    t = 4 launches + FLOPs / (0.6 x the rate of products) + bytes of scores / (B e)

    E_a      sustained fraction of the dense peak       Kernels.attention_*
    w        head width: heads narrower than 128 leave part of the matrix unit idle, (d / 128)^0.4;
             less of it under FlashAttention-2, which does not use all of it anyway, ^0.2. Measured
             at 64 on an H100: 0.73 to 0.80, and 0.87 to 0.90 (A100, Perlmutter: about 0.9)
    s, s0    keys that a query meets, and those at which attention reaches half of its rate
             (Kernels.attention_half_*): on an H100 215 forward and 550 backward. Backward over keys
             that each query chose, by number, E_a and s0 are Kernels.sparse_*, where known
    sinks    what a slow kernel for attention sinks adds backward (`KernelHabits.sink_token_s`)
    B, e     memory bandwidth and the fraction of it that pointwise kernels reach

A profile measured on the machine itself replaces the first formula by its surface, with the rate of
the engine's kernel over that of the measured one.
"""

from dataclasses import replace

from meshplan.costmodels.elementwise import Number, maximum, plain, where
from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.seconds.attention_kernels import (
    NEWER_KERNELS,
    of_sdpa,
    of_wide_heads,
    over_cudnn,
    over_flash2,
)
from meshplan.costmodels.seconds.kernels import Device, aligned_rate
from meshplan.hardware_profiles.surface import Surface
from meshplan.hardware_profiles.tunings import gpu_family

NARROWNESS, NARROWNESS_FLASH2 = 0.4, 0.2


def attention_s(device: Device, op: AttentionCore, *, backward: bool) -> Number:
    """Seconds of the core attention: two products forward, five backward."""
    device = device.running(op)
    kernels, recipe = device.kernels, device.recipe
    op = replace(op, keys=op.masked_keys) if op.masked_keys else op
    beside = op.sinks_s if backward else 0.0
    dtype = recipe.other_dtype(device.gpu)
    surface = device.attention_surface(dtype, "backward" if backward else "forward")
    wide = op.wide and device.gpu.vendor == "nvidia"
    if surface is not None and op.fused and not wide:
        each = _measured_s(device, surface, op) * (2.5 if backward else 1.0)
        over = _over_measured(device, op, backward=backward)
        return beside + each / over * device.slowdown(dtype)
    efficiency, half = _of_peak(device, op, backward=backward)
    if wide:
        efficiency, half = of_wide_heads(device.gpu, backward=backward)
    met = op.keys / op.in_turn
    rate = device.gpu.peak_flops_per_s[dtype] * efficiency * met / (met + half)
    flops = op.forward_flops * (2.5 if backward else 1.0)
    if op.fused:
        return op.in_turn * kernels.launch_s + flops / rate * device.tuning.attention_scale + beside
    # two batched matmuls at matmul rate, and the scores through memory for softmax, mask and
    # dropout
    scores = 2.0 * op.queries * op.all_keys * op.heads
    aligned = aligned_rate(kernels, op.head_dim * 8, op.v_head_dim * 8)  # batched: 16 bytes do
    matmuls = op.forward_flops / aligned * (op.all_keys / op.keys) * (2.0 if backward else 1.0)
    math_s = matmuls / device.rate_flops_per_s(dtype) / 0.6
    apart_bytes = op.apart.moved[backward] * scores / 2.0 * op.softmax_apart
    moved = scores * (7.0 if backward else 6.0) + apart_bytes
    memory_s = moved / device.bandwidth_bytes_per_s
    return 4 * kernels.launch_s + (math_s + memory_s) * device.tuning.attention_scale


def _of_peak(device: Device, op: AttentionCore, *, backward: bool) -> tuple[float, float]:
    """Of the 16-bit peak what a fused kernel reaches where a query meets many keys, and the keys
    at which it reaches half of that.
    """
    kernels = device.kernels
    if backward and op.chosen and kernels.sparse_backward:
        return kernels.sparse_backward, kernels.sparse_half_backward
    triton = device.attention == "flex" and device.gpu.vendor == "amd"
    if device.uses_sdpa and (triton or device.attention == "flash2"):
        assembled = device.sdpa_by_assembly and not triton
        own = of_sdpa(kernels, device.gpu.name, assembled=assembled, backward=backward)
        if own is not None:
            return own[0] * min(1.0, op.narrowest / 128.0) ** NARROWNESS_FLASH2, own[1]
    if backward and op.v_head_dim < op.head_dim and kernels.uneven_backward:
        return kernels.uneven_backward, kernels.uneven_half_backward
    if backward and device.sums_in_16_bits and kernels.sums16_backward:
        narrow = min(1.0, op.narrowest / 128.0) ** NARROWNESS
        return kernels.sums16_backward * narrow, kernels.sums16_half_backward
    efficiency = kernels.attention_backward if backward else kernels.attention_forward
    flash = over_flash2(device.attention, gpu_family(device.gpu.name))
    if flash is not None:
        efficiency *= kernels.flash2_fraction * flash[backward]
    flash2 = flash is not None or kernels.flash2_fraction == 1.0  # nothing is better
    narrowness = NARROWNESS_FLASH2 if flash2 else NARROWNESS
    half = kernels.attention_half_backward if backward else kernels.attention_half_forward
    if device.attention in NEWER_KERNELS and not flash2:
        over = over_cudnn(device.attention, device.gpu.name, op.head_dim, backward=backward)
        efficiency, half = efficiency * over.rate, half * over.half
    return efficiency * min(1.0, op.narrowest / 128.0) ** narrowness, half


def _measured_s(device: Device, surface: Surface, op: AttentionCore) -> Number:
    """Seconds of the forward's FLOPs at the rates of a measured surface. In chunks, half a chunk of
    keys is met under a causal mask, the others in kernels of their own. The native engine's kernel
    takes values as wide as queries.
    """

    def at(keys: Number) -> Number:
        # its third side is tokens of one sequence: what a query of a causal mask meets, twice
        rates = surface(op.heads * op.queries / (2 * keys), 2 * keys, op.head_dim)
        return keys / plain(rates)

    widened = device.attention == "flash2" and op.v_head_dim < op.head_dim
    wide = 2 * op.head_dim if widened else op.head_dim + op.v_head_dim
    met = op.keys / op.in_turn
    own = where(op.chunk > 0, op.chunk / 2, met)
    earlier = met - own
    apart = at(own) + at(maximum(earlier, 0.5)) * (earlier > 0)
    return 2.0 * op.queries * op.heads * wide * apart * op.in_turn


def _over_measured(device: Device, op: AttentionCore, *, backward: bool) -> Number:
    """The rate of the engine's kernel over that of the kernel which its surface is of."""
    flash = over_flash2(device.attention, gpu_family(device.gpu.name))
    if flash is not None:
        return flash[backward]
    if device.attention not in NEWER_KERNELS:
        return 1.0
    kernels = device.kernels
    half = kernels.attention_half_backward if backward else kernels.attention_half_forward
    over = over_cudnn(device.attention, device.gpu.name, op.head_dim, backward=backward)
    return over.rate * (op.keys + half) / (op.keys + half * over.half)
