"""Seconds that a frozen linear layer takes beside its product: its adapter, and unpacking.

    adapter   max(launches + bytes / (B e), FLOPs / rate): memory-bound, but for large ranks
    unpacked  launches + (packed + 16-bit bytes of the weight) / (B e), before each product of a
              quantised weight, forward and backward alike

The letters are those of `kernels`. Leaves out: that kernels which unpack 4 bits may reach less of
the bandwidth than others (none was measured), and LLM.int8's products in 8 bits.
"""

from collections.abc import Iterable

from meshplan.costmodels.elementwise import Number, maximum
from meshplan.costmodels.operations.adapters import (
    adapted_part,
    adapter_forward_flops,
    adapter_numbers,
    cast_bytes,
    cast_kernels,
    is_linear,
    mask_bytes,
)
from meshplan.costmodels.operations.kinds import Matmul, Operation
from meshplan.costmodels.seconds.kernels import Device, pointwise_s
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.kernel_habits import AdapterCasts

ADAPTER_KERNELS = (3, 5)
"""Forward two products, and the sum with the frozen one's output; backward two for each, and the
sum of what is passed on. Dropout is one more each way; scaling and casts: `cast_kernels`.
"""


def adapter_launches(op: Matmul, lora: Lora | None, casts: AdapterCasts, *, backward: bool) -> int:
    """Kernels that the host issues for the adapters beside a product."""
    part = adapted_part(op, lora) if lora else None
    if lora is None or part is None:
        return 0
    beside = (lora.dropout > 0) + cast_kernels(casts, backward=backward)
    return part.joined * (ADAPTER_KERNELS[backward] + beside)


def beside_frozen_s(
    device: Device,
    operations: Iterable[Operation],
    lora: Lora,
    packed_bytes: float,
    casts: AdapterCasts,
    *,
    backward: bool,
) -> Number:
    """Seconds of one direction; `packed_bytes` of a quantised number of a weight, else 0."""
    linear = [op for op in operations if isinstance(op, Matmul) and is_linear(op)]
    seconds = sum(_adapter_s(device, op, lora, casts, backward=backward) for op in linear)
    if packed_bytes:
        seconds = seconds + sum(_unpacked_s(device, op, packed_bytes) for op in linear)
    return seconds


def _unpacked_s(device: Device, op: Matmul, packed_bytes: float) -> Number:
    moved_bytes = (packed_bytes + device.recipe.itemsize) * op.k * op.n
    return pointwise_s(device, moved_bytes, op.joined)


def _adapter_s(
    device: Device, op: Matmul, lora: Lora, casts: AdapterCasts, *, backward: bool
) -> Number:
    part = adapted_part(op, lora)
    if part is None:
        return 0.0
    numbers = part.m * adapter_numbers(part, lora, backward=backward)
    launches = adapter_launches(part, lora, casts, backward=backward)
    moved_bytes = device.recipe.itemsize * numbers + mask_bytes(part, lora)
    moved_bytes = moved_bytes + part.m * cast_bytes(part, lora, casts, backward=backward)
    memory_s = pointwise_s(device, moved_bytes, launches)
    flops = adapter_forward_flops((part,), lora) * (2.0 if backward else 1.0)
    rate = device.rate_flops_per_s(device.recipe.other_dtype(device.gpu))
    return maximum(memory_s, flops / rate)
