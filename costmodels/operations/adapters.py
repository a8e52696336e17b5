"""LoRA: the narrow products beside frozen linear layers, and the work that frozen weights save.

Beside a frozen t x k by k x n product of j weights (three of query, key and value, two of gate and
up, one where the engine adapts them as one), rank r each:

    parameters  r (j k + n)           A: k x r of each of the j; B: r x n of all together
    FLOPs       2 t r (j k + n)       forward, and twice that backward
    forward     j k + 6 n + 2 j r     numbers a row, read and written: the input, the narrow output,
                                      the wide one, that scaled, and the sum of both paths
    backward    5 j k + 4 n + 4 j r   the gradient of the output scaled, the input and it for the
                                      gradients of A and B, what is passed on, and its sum
    saved       j r                   numbers a row: the narrow output

Dropout before A makes a copy of the input for each of the j adapters and a mask of one byte a
number, both kept in place of the input itself:

    each way    2 j k                 numbers a row more (read, and written dropped), and j k bytes
    saved       j k                   numbers a row more, and j k bytes

A compiler makes scaling one kernel with the sum, and AutoModel scales the narrow output: 2 n
numbers less each way (`AdapterCasts` "fused").

PEFT keeps adapters in fp32 beside a 16-bit model (autocast_adapter_dtype, since 0.11: pull request
1706) and casts their input to the dtype of their weights (`AdapterCasts`). Under FSDP1 with
use_orig_params a unit's weights are fp32 shards until its own forward, whatever they are gathered
in; adapters in a layer's unit are not.
Bytes a row beyond those above, j k and n of an input's and the output's numbers:

    inputs   12 j k each way, with dropout 4 j k more: under autocast the input is cast to fp32 and
             back to 16 bits, and dropped in fp32
    all      8 j k + 16 n forward and 10 j k + 20 n backward, with dropout 4 j k more each way:
             without autocast products, scaling and the sum are fp32 too, and what leaves is cast
    saved    2 j k (the copy in 16 bits) and 4 j k (that in fp32), with dropout 0 and 2 j k more

A frozen product needs no gradient of its weight, so nothing keeps its input unless an adapter reads
it, nor gathers it again over tensor-parallel ranks in the backward.

Source: LoRA (2106.09685, section 4); huggingface/peft@5d602fd src/peft/tuners/lora/layer.py
(Linear.forward: lora_B(lora_A(dropout(x))) * scaling, of the input in the dtype of lora_A's weight;
the result is cast back), torch's native_dropout. torchtune's LoRALinear.forward scales the wide
output too, and NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/peft/utils.py ParallelLinearAdapter;
NVIDIA-NeMo/Automodel@36044ad3 nemo_automodel/components/_peft/lora.py does not. LoRA of Llama 3 8B
at rank 16 under autocast, with 4 and 16 sequences of 4,096 tokens, then holds 23.1 and 46.9 GiB,
22.7 and 45.4 without the copies, 23.2 and 47.4 measured (foundation-model-stack/fms-acceleration
@876e2ed).
Leaves out: the narrow output's bytes in fp32, its own collectives, and that Megatron cuts A over
the tensor-parallel ranks where B follows it (elsewhere, and here, it is whole on each); that an
adapter's input stays in 16 bit in 8-bit training.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import Number, maximum
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.kernel_habits import AdapterCasts

_FEEDS_ATTENTION = ("attention_norm", "attention_input")
_FEEDS_FEED_FORWARD = ("feed_forward_norm", "activation", "feed_forward_input", "shared_input")
_QKV = ("qkv", "q_down", "q_up", "kv_down", "kv_up")
_FEEDS_HEAD = ("head_input",)


class _Cast(NamedTuple):
    """Bytes beyond those in 16 bits of a number of the input, and of the output, forward and
    backward; of the input that are kept, of which dropout keeps 2 anyway; and kernels forward and
    backward.
    """

    inputs: tuple[float, float]
    outputs: tuple[float, float]
    kept: float
    kernels: tuple[int, int]


_CASTS: dict[AdapterCasts, _Cast] = {
    "fused": _Cast((0.0, 0.0), (-4.0, -4.0), 0.0, (0, 0)),
    "none": _Cast((0.0, 0.0), (0.0, 0.0), 0.0, (1, 1)),
    "inputs": _Cast((12.0, 12.0), (0.0, 0.0), 2.0, (3, 3)),
    "all": _Cast((8.0, 10.0), (16.0, 20.0), 4.0, (3, 4)),
}
_DROPPED_IN_FP32 = 4.0


def is_linear(op: Operation) -> bool:
    """Whether it is a dense linear layer of a block: no routed expert, router or head."""
    return isinstance(op, Matmul) and op.recipe and "moe" not in op.modules


def adapted_part(op: Operation, lora: Lora) -> Matmul | None:
    """The part of a product that has adapters: all of its weights, or all but the key's; None
    without any.
    """
    if not (isinstance(op, Matmul) and is_linear(op) and _is_target(op, lora)):
        return None
    if not (lora.but_key and np.any(op.key_columns)):
        return op
    if op.joined == 1:  # the key alone
        return None
    return replace(op, n=op.n - op.key_columns, joined=op.joined - 1, key_columns=0)


def _is_target(op: Matmul, lora: Lora) -> bool:
    if lora.with_key == "qkv":
        return op.name in _QKV
    of_attention = {"mlp", "shared_experts"}.isdisjoint(op.modules)
    return lora.with_key == "all_linear" or of_attention


def feeds_frozen_alone(op: Operation, lora: Lora, casts: AdapterCasts = "none") -> bool:
    """Whether only frozen products, or the copies that dropout or a cast makes, read its output."""
    if isinstance(op, Communication) and op.name in _FEEDS_HEAD:
        return True
    dropped = lora.dropout > 0 or _copies(casts)
    feeds = _FEEDS_ATTENTION if dropped else ()
    if dropped or lora.with_key != "all_linear":
        feeds = *feeds, *_FEEDS_FEED_FORWARD
    if op.name not in feeds:
        return False
    return isinstance(op, Communication) or (isinstance(op, Pointwise) and op.kernels == 1)


def adapter_parameters(operations: Iterable[Operation], lora: Lora) -> Number:
    """Trained beside these operations on one rank."""
    return sum(_width(op) * lora.rank for op in _adapted(operations, lora))


def adapter_weights(operations: Iterable[Operation], lora: Lora) -> Number:
    """How many weights those are: two beside each adapted one."""
    return sum(2 * op.joined for op in _adapted(operations, lora))


def adapter_forward_flops(operations: Iterable[Operation], lora: Lora) -> Number:
    """Of the narrow products; as much again for the gradients of inputs, and of A and B."""
    return sum(2.0 * op.m * _width(op) * lora.rank for op in _adapted(operations, lora))


def adapter_numbers(op: Matmul, lora: Lora, *, backward: bool) -> Number:
    """Read and written for each row of the input, in one direction."""
    dropped = 2 * op.joined * op.k if lora.dropout else 0
    if backward:
        return 5 * op.joined * op.k + 4 * op.n + 4 * op.joined * lora.rank + dropped
    return op.joined * op.k + 6 * op.n + 2 * op.joined * lora.rank + dropped


def cast_kernels(casts: AdapterCasts, *, backward: bool) -> int:
    """Beside the products and the sum: the scaling, and casts of rows where there are any; those of
    the adapters' own weights, small as they are, are left out.
    """
    return _CASTS[casts].kernels[backward]


def _copies(casts: AdapterCasts) -> bool:
    """Whether what an adapter reads is a copy in another number format."""
    return _CASTS[casts].kept > 0


def cast_bytes(op: Matmul, lora: Lora, casts: AdapterCasts, *, backward: bool) -> Number:
    """Moved for each row of the input beyond `adapter_numbers` of 16 bits, in one direction."""
    each = _CASTS[casts]
    dropped = _DROPPED_IN_FP32 if lora.dropout and _copies(casts) else 0.0
    return (each.inputs[backward] + dropped) * op.joined * op.k + each.outputs[backward] * op.n


def kept_bytes(op: Matmul, lora: Lora, casts: AdapterCasts, itemsize: float) -> Number:
    """What the backward pass needs of the adapter beside a product: the narrow output for the
    gradient of B, what dropout hands to A with its mask, and A's input as it was cast, beyond what
    dropout keeps of it in 16 bits.
    """
    part = adapted_part(op, lora)
    if part is None:
        return 0.0
    numbers = part.m * part.joined * (lora.rank + (part.k if lora.dropout else 0))
    more = _CASTS[casts].kept - (2.0 if lora.dropout and _copies(casts) else 0.0)
    copies = more * part.m * part.joined * part.k
    return itemsize * numbers + copies + mask_bytes(part, lora)


def mask_bytes(op: Matmul, lora: Lora) -> Number:
    """Of dropout's masks: written forward, kept, and read backward."""
    return op.m * op.joined * op.k if lora.dropout else 0.0


def quantised_parameters(operations: Iterable[Operation], lora: Lora) -> Number:
    """Of the frozen weights of these operations, those that are kept in fewer bits."""
    if lora.base_precision == "bf16":
        return 0.0
    return sum(op.k * op.n for op in operations if isinstance(op, Matmul) and is_linear(op))


def largest_weight(operations: Iterable[Operation]) -> Number:
    """Numbers of the largest of their linear layers' weights."""
    most: Number = 0.0
    for op in operations:
        if isinstance(op, Matmul) and is_linear(op):
            most = maximum(most, op.k * op.n / op.joined)
    return most


def _adapted(operations: Iterable[Operation], lora: Lora) -> Iterable[Matmul]:
    return (part for op in operations if (part := adapted_part(op, lora)) is not None)


def _width(op: Matmul) -> Number:
    return op.joined * op.k + op.n
