"""One operation in one direction: the device's seconds, and what else is asked of any kind."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number, anywhere, where
from meshplan.costmodels.operations.kinds import (
    AttentionCore,
    Communication,
    Matmul,
    Operation,
    Pointwise,
    Scan,
)
from meshplan.costmodels.precision import Recipe
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.cost import Collective, Computing
from meshplan.costmodels.seconds.kernels import Device, pointwise_s, scan_s
from meshplan.costmodels.seconds.padded_products import product_s

OPERATOR_S = 8e-6
"""Of the host for one operator of PyTorch's own: a sum of 512 x 512 numbers on an A100
(flagos-ai/Torch-FL pull request 27). An nn.Linear with its module takes 13.5 us on a DGX H100, one
of Transformer Engine's 90 on a Grace host (NVIDIA/TransformerEngine issue 2053): `launch_s`, learnt
of runs, is the mean of what modules issue.
"""

JOINED_NORMS = ("attention_norm", "feed_forward_norm")

SENDING = ("experts_up", "experts_down")
"""Products whose kernels may send rows (`costmodels.operations.exchanging_products`)."""

Direction = Literal["forward", "input_grad", "weight_grad"]


def matmul_pass_s(device: Device, op: Operation, direction: Direction) -> Number:
    """Of a matrix product; 0 for any other operation."""
    if not isinstance(op, Matmul):
        return 0.0
    if direction == "forward":
        return product_s(device, op, op.m, op.n, op.k)
    if direction == "input_grad":
        return product_s(device, op, op.m, op.k, op.n, "NN")
    return product_s(device, op, op.k, op.n, op.m, "NT")


def attention_pass_s(device: Device, op: Operation, direction: Direction) -> Number:
    """Of a core attention or a scan; 0 for any other operation."""
    if not isinstance(op, (AttentionCore, Scan)) or direction == "weight_grad":
        return 0.0
    if isinstance(op, Scan):
        return scan_s(device, op, backward=direction == "input_grad")
    return attention_s(device, op, backward=direction == "input_grad")


def memory_pass_s(device: Device, op: Operation, direction: Direction) -> Number:
    """Of kernels bound by memory, casts among them; 0 for any other operation."""
    if isinstance(op, Matmul) and device.recipe.cast_bytes:
        return _cast_s(device, op, direction)
    if not isinstance(op, Pointwise) or direction == "weight_grad":
        return 0.0
    if direction == "forward":
        return pointwise_s(device, op.forward_bytes, op.kernels, op.measured_as[0])
    return pointwise_s(device, op.backward_bytes, op.kernels, op.measured_as[1])


def of_dense_layer(op: Operation) -> bool:
    """Whether a module of a dense layer issues it: its product, or a norm that is joined to it."""
    if isinstance(op, Matmul):
        return op.recipe and "experts" not in op.modules
    return op.name in JOINED_NORMS and "layernorm" not in op.modules


def scale_of(device: Device, op: Operation) -> float:
    """By which an operation's seconds are multiplied: `Tuning.expert_scale` of experts'."""
    return device.tuning.expert_scale if "moe" in op.modules else 1.0


def device_s(device: Device, op: Operation, direction: Direction) -> Computing:
    """The device's own seconds of an operation; 0 of one that sends."""
    scale = scale_of(device, op)
    if isinstance(op, Matmul):
        cast_s = scale * memory_pass_s(device, op, direction) if device.recipe.cast_bytes else 0.0
        return Computing(scale * matmul_pass_s(device, op, direction), 0.0, cast_s)
    if isinstance(op, Pointwise):
        return Computing(0.0, 0.0, scale * memory_pass_s(device, op, direction))
    return Computing(0.0, attention_pass_s(device, op, direction), 0.0)


def summed(each: Iterable[Computing]) -> Computing:
    """Of several operations; a column of layouts is not added to the 0 that most have of a kind."""
    matmul_s: Number = 0.0
    attention_s: Number = 0.0
    pointwise_s: Number = 0.0
    for one in each:
        if not isinstance(one[0], float) or one[0]:
            matmul_s = matmul_s + one[0]
        if not isinstance(one[1], float) or one[1]:
            attention_s = attention_s + one[1]
        if not isinstance(one[2], float) or one[2]:
            pointwise_s = pointwise_s + one[2]
    return Computing(matmul_s, attention_s, pointwise_s)


def _cast_s(device: Device, op: Matmul, direction: Direction) -> Number:
    """Casting the input of a linear layer forward, and the gradient of its output backward."""
    if direction == "weight_grad" or not op.recipe or op.in_16_bit:
        return 0.0
    mine, gradient = op.cast_shares
    elements = op.m * op.groups * (mine * op.k if direction == "forward" else gradient * op.n)
    return pointwise_s(device, op.casts * elements * device.recipe.cast_bytes, op.casts)


def core_kernels(op: AttentionCore | Scan) -> tuple[Number, Number]:
    """That the host issues for the core attention or a scan forward and backward: of attention one
    and three, more where scale, mask and softmax are kernels of their own (`softmax_apart`), and
    as many again for each hop of PyTorch's ring (`in_turn`).
    """
    if isinstance(op, Scan):
        return op.kernels, op.backward_kernels
    forward, backward = op.apart.kernels
    apart, turns = op.softmax_apart, op.in_turn
    return turns * (1 + forward * apart), turns * (3 + backward * apart)


def sending_s(device: Device, sent: Communication, operations: Iterable[Operation]) -> Number:
    """Of the product among these whose own kernel sends it, in either direction; else 0."""
    if sent.hidden_by not in SENDING:
        return 0.0
    own = (op for op in operations if op.name == sent.hidden_by)
    return sum(device_s(device, op, "forward").matmul_s for op in own)


def room_s(sent: Collective, beside: Computing, context_ranks: Number) -> Number:
    """Of the computing in its direction, that under which a collective may run."""
    op = sent.op
    if op.hidden_by in SENDING:
        return sent.product_s
    if op.hidden_by == "linear":
        return beside.matmul_s / 2
    if op.hidden_by == "attention":
        return beside.attention_s
    if op.hidden_by == "first_chunk":
        return beside.attention_s / context_ranks
    return beside.total_s / 2 if op.hidden_by == "expert" else 0.0


def cast_calls(recipe: Recipe, op: Matmul, direction: Direction) -> int:
    """Calls that cast the tokens of experts, those of all experts of a rank together: in 8 bits a
    layer of Transformer Engine takes the host more than twice as long as in 16
    (NVIDIA/TransformerEngine issue 761). Of dense layers that is in `launch_s`.
    """
    in_8_bit = recipe.cast_bytes > 0 and op.recipe and not op.in_16_bit
    experts = "experts" in op.modules and direction != "weight_grad"
    return op.casts if in_8_bit and experts else 0


def part_of_layer(op: Operation) -> str:
    """What of a layer it is part of, as `KernelHabits.graphed` names it."""
    if op.name in ("router", "top_k") or "shared_experts" in op.modules:
        return "router"
    if not {"moe", "moe_act"}.isdisjoint(op.modules):
        return "experts"
    return "mlp" if "mlp" in op.modules and "norm" not in op.modules else "attention"


def operators_s(
    op: Operation, direction: Direction, graphed: tuple[str, ...], device: Device | None
) -> Number:
    """Seconds of PyTorch's own operators that the host issues one by one, but in a graph; each
    expert's product counts as one, and the cast of its rows as another, where `device` is given and
    its engine loops over them.
    """
    if graphed and part_of_layer(op) in graphed:
        return 0.0
    if isinstance(op, Matmul):
        if "experts" not in op.modules or device is None:
            return 0.0
        each_expert = 1 + (cast_calls(device.recipe, op, direction) > 0)
        return OPERATOR_S * op.groups * each_expert * issues_each_expert(device)
    if not isinstance(op, Pointwise) or direction == "weight_grad":
        return 0.0
    return OPERATOR_S * op.operators[direction != "forward"]


def issues_each_expert(device: Device) -> Condition:
    """Whether the host issues experts' products one by one inside one call. A torch.mm takes the
    host of an SM100 9.7 us (flashinfer-ai/flashinfer pull request 4674), a torch operator
    `OPERATOR_S`; eight of Transformer Engine's in NVFP4 take 267 us (its pull request 3134). On
    AMD's GPUs it is one kernel for all experts: Primus has its own (use_turbo_grouped_gemm of
    AMD-AGI/Primus@fd1eeabb examples/megatron/configs); ROCm's Transformer Engine would loop too,
    unless NVTE_USE_CK_GROUPED_GEMM is set. A graph of a whole step issues none.

    Rows are cast in the same way, one expert after the other, and their scales put in order for all
    experts at once (NVIDIA/TransformerEngine@d0067d0d transformer_engine/pytorch/csrc/extensions
    cast.cpp multi_tensor_quantize_impl, gemm.cpp multi_tensor_swizzle_scaling_factors).

    Leaves out one kernel for the casts of many experts (delayed scaling), two for each expert's
    (current scaling), two more that put scales in order (its releases before 2.8), and the one
    kernel that releases since 2026 have for experts in mxfp8.
    """
    loops = device.gpu.vendor == "nvidia" and device.loops_over_experts
    return (device.tuning.launch_s > 0) & loops


def count_of(op: Communication, direction: Direction) -> Number:
    """How many of a collective there are in one direction."""
    if direction == "weight_grad":
        return 0.0
    return op.forward_count if direction == "forward" else op.backward_count


def is_sent(op: Communication, direction: Direction, ranks: Number) -> Number:
    """1 where several ranks meet in a collective of this direction, else 0."""
    several = np.asarray(ranks) > 1
    return where(several & (np.asarray(count_of(op, direction)) > 0), 1.0, 0.0)


def forward_flops_of(op: Operation, *, full: bool = False) -> Number:
    """Of any operation; `full`: of attention, those behind the causal mask too."""
    if isinstance(op, AttentionCore):
        return op.full_forward_flops if full else op.forward_flops
    return 0.0 if isinstance(op, Communication) else op.forward_flops


def mean_flops_of(op: Operation, *, full: bool = False) -> Number:
    """Forward FLOPs of the mean rank, where the operation is the busiest one's."""
    flops = forward_flops_of(op, full=full)
    if isinstance(op, Matmul) and anywhere(op.imbalance > 1):
        return flops / op.imbalance
    return flops


def is_kept_cast(op: Operation) -> bool:
    """Whether 8-bit training keeps the output in 8 bits: the cast input of a product, mostly."""
    if isinstance(op, Communication):
        return op.kept_cast
    if not isinstance(op, (Matmul, Pointwise)) or op.in_16_bit:
        return False
    feeds_matmul = isinstance(op, Pointwise) and op.name.endswith(("norm", "activation"))
    return feeds_matmul or op.kept_cast
