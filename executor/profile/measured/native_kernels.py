"""Calls of the native engine's own kernels, each with the bytes that the cost model counts for it.

The loss is several kernels everywhere, on a CPU most of the others are too, and in bf16 they cast
to fp32 and back, so that no copy or add says how fast they move their bytes.

    rms_norm, rope, swiglu    2, 2 and 3 tensors; backward 3, 2 and 5
    weighed_swiglu            the same: of experts, each row times its router's weight
    cross_entropy             as `costmodels.operations.embedding_head` counts it, both directions
    gradient_add              a product read, the fp32 buffer of gradients read and written
    permute                   rows taken by number, and added to others by number: 2 tensors each

Grouped products count FLOPs, not bytes: see `matmul`.
"""

from collections.abc import Callable
from functools import partial

import torch

from meshplan.costmodels.operations.embedding_head import loss_bytes
from meshplan.executor.engine.layers.embedding_head import cross_entropy
from meshplan.executor.engine.parts import kernels
from meshplan.executor.profile.bench import Call
from meshplan.executor.profile.measured.operands import rows_of_numbers
from meshplan.hardware_profiles.schema import pointwise_name

Moving = tuple[Call, float]
Kinds = dict[str, Callable[[float, torch.device], Moving]]
VOCAB = 4096
NARROW = 1 / 4  # a tensor of the residual stream against one of a feed-forward or of logits


def _rms_norm(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    x = rows_of_numbers(size_bytes * NARROW, device, dtype)
    weight = torch.ones(x.shape[1], device=device, dtype=dtype)
    return (lambda: kernels.rms_norm(x, weight)), 2 * x.nbytes


def _rms_norm_backward(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    x, gradient = (rows_of_numbers(size_bytes * NARROW, device, dtype) for _ in range(2))
    weight = torch.ones(x.shape[1], device=device, dtype=dtype)
    rstd = torch.ones(len(x), 1, device=device)
    return (lambda: kernels.rms_norm_backward(gradient, x, weight, rstd)), 3 * x.nbytes


def _rope(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    x = rows_of_numbers(size_bytes * NARROW, device, dtype).view(-1, 1, 16, 64)
    angles = torch.randn(len(x), 1, 1, 32, device=device)
    cos, sin = angles.cos(), angles.sin()
    return (lambda: kernels.rope(x, cos, sin)), 2 * x.nbytes


def _swiglu(
    size_bytes: float, device: torch.device, dtype: torch.dtype, *, weighed: bool = False
) -> Moving:
    gate, up = (rows_of_numbers(size_bytes / 2, device, dtype) for _ in range(2))
    scale = torch.ones(len(gate), device=device) if weighed else None
    return (lambda: kernels.swiglu(gate, up, scale)), 3 * gate.nbytes


def _swiglu_backward(
    size_bytes: float, device: torch.device, dtype: torch.dtype, *, weighed: bool = False
) -> Moving:
    gradient, gate, up = (rows_of_numbers(size_bytes / 2, device, dtype) for _ in range(3))
    scale = torch.ones(len(gate), device=device) if weighed else None
    return (lambda: kernels.swiglu_backward(gradient, gate, up, scale)), 5 * gate.nbytes


def _cross_entropy(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    logits = rows_of_numbers(size_bytes, device, dtype).view(-1, VOCAB)
    target = torch.zeros(len(logits), dtype=torch.int64, device=device)
    moved_bytes = sum(loss_bytes(logits.itemsize, fused=False)) * logits.numel()
    return (lambda: cross_entropy(logits, target, None, 1.0)), moved_bytes


def _gradient_add(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    buffer = rows_of_numbers(size_bytes, device)
    product = buffer.to(dtype, copy=True)  # in fp32 too a tensor of its own
    return (lambda: buffer.add_(product)), 2 * buffer.nbytes + product.nbytes


def _permute(size_bytes: float, device: torch.device, dtype: torch.dtype) -> Moving:
    x = rows_of_numbers(size_bytes * NARROW, device, dtype)
    order = torch.randperm(len(x), device=device)

    def there_and_back() -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, order, x.index_select(0, order))

    return there_and_back, 4 * x.nbytes


def grouped_call(sides: tuple[int, int, int, int], kind: torch.dtype, layout: str) -> Call:
    """A call of the products of all experts with sides (m, n, k, groups), on a CPU."""
    m, n, k, groups = sides
    if layout == "NT":
        dy, x = (torch.randn(groups * k, width).to(kind) for width in (m, n))
        return lambda: kernels.grouped_outer(dy, x, [k] * groups)
    stored = (groups, n, k) if layout == "TN" else (groups, k, n)
    weight, x = torch.randn(stored).to(kind), torch.randn(groups * m, k).to(kind)
    matrices = weight if layout == "TN" else weight.transpose(1, 2)
    return lambda: kernels.grouped_linear(x, matrices, [m] * groups)


MADE: dict[str, Callable[..., Moving]] = {
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "rope": _rope,
    "swiglu": _swiglu,
    "swiglu_backward": _swiglu_backward,
    "weighed_swiglu": partial(_swiglu, weighed=True),
    "weighed_swiglu_backward": partial(_swiglu_backward, weighed=True),
    "cross_entropy": _cross_entropy,
    "gradient_add": _gradient_add,
    "permute": _permute,
}
IN_BF16: Kinds = {
    pointwise_name(name, "bf16"): partial(make, dtype=torch.bfloat16) for name, make in MADE.items()
}
IN_FP32: Kinds = {name: partial(make, dtype=torch.float32) for name, make in MADE.items()}
NATIVE = {"cpu": IN_FP32 | IN_BF16, "cuda": IN_BF16}  # a GPU trains in 16 bit
