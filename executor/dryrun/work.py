"""Counts FLOPs and communication of the operations that pass by.

FLOPs are those executed, recomputation included: 2 m n k of a matrix product; of causal attention
half the square, forward 2 products, backward 5 (flash attention computes the scores again).
Bytes of a collective are those of the whole array: after all_gather, before reduce_scatter; of
all_to_all and send, what this rank sends.
"""

from collections import defaultdict
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshplan.executor.engine.parts import kernels, recurrent_kernels

aten, c10d = torch.ops.aten, torch.ops.c10d


def _product(args: Any, out: Any) -> float:
    """(m, k) @ (k, n), perhaps in a batch; or dy^T x of the rows of several groups."""
    return float(2 * prod(args[0].shape) * args[1].shape[-1])


def _added_product(args: Any, out: Any) -> float:
    return _product(args[1:], out)


def _grouped(args: Any, out: Any) -> float:
    """Every row of x times one (n, k) matrix."""
    return float(2 * prod(args[0].shape) * args[1].shape[1])


def _attention(args: Any, out: Any) -> float:
    q, k, v, causal, window = args
    return _pairs(q, k, causal, window) * float(2 * (q.shape[-1] + v.shape[-1]))


def _attention_backward(args: Any, out: Any) -> float:
    _, q, k, v, _, _, causal, window = args
    return _pairs(q, k, causal, window) * float(2 * (3 * q.shape[-1] + 2 * v.shape[-1]))


def _scan(args: Any, out: Any) -> float:
    """Into each state and out of it, and the products of a chunk's tokens with each other; the
    delta rule solves for what each token adds, and reads what its key returns.
    """
    _, k, v, _, b, *_, chunk = args
    rows, batch, heads, width = v.shape
    tokens, n = rows * batch, k.shape[-1]
    groups = heads if b is not None else k.shape[2]
    flops = float(4 * tokens * n * width * heads + tokens * chunk * (n * groups + width * heads))
    if b is not None:
        flops += tokens * chunk * (n + width) * heads + 2.0 * tokens * n * width * heads
    return flops


def _scan_backward(args: Any, out: Any) -> float:
    return 2 * _scan(args[2:], out)


def _pairs(q: Tensor, k: Tensor, causal: bool, window: int | None) -> float:
    """Query-key pairs of all heads and sequences."""
    rows, batch, heads, _ = q.shape
    if window is not None and window < rows:
        return batch * heads * (window * rows - window * window / 2)
    return batch * heads * rows * k.shape[0] / (2 if causal else 1)


FLOPS = {
    aten.mm.default: ("matmul", _product),
    aten.mm.out: ("matmul", _product),
    aten.bmm.default: ("matmul", _product),
    aten.addmm.default: ("matmul", _added_product),
    aten.addmm_.default: ("matmul", _added_product),
    kernels.grouped_linear: ("grouped", _grouped),
    kernels.grouped_outer: ("grouped", _product),
    kernels.attention: ("attention", _attention),
    kernels.attention_backward: ("attention", _attention_backward),
    recurrent_kernels.scan: ("scan", _scan),
    recurrent_kernels.scan_backward: ("scan", _scan_backward),
}
# operation -> (kind, which argument is the whole array)
COLLECTIVES = {
    c10d._allgather_base_.default: ("all_gather", 0),
    c10d._reduce_scatter_base_.default: ("reduce_scatter", 1),
    c10d.allreduce_.default: ("all_reduce", 0),
    c10d.alltoall_base_.default: ("all_to_all", 1),
    c10d.send.default: ("send", 0),
}


class Work:
    """Running sums; `axes` names the axis of each process group."""

    def __init__(self, axes: dict[str, str]) -> None:
        self.axes = axes
        self.flops: dict[str, float] = defaultdict(float)
        self.comm_bytes: dict[str, float] = defaultdict(float)
        self.comm_calls: dict[str, int] = defaultdict(int)

    def count(self, func: Any, args: Any, out: Any, phase: str) -> None:
        """Add one operation to "phase.kind" FLOPs or "axis.kind" bytes."""
        if func in FLOPS:
            kind, flops = FLOPS[func]
            self.flops[f"{phase}.{kind}"] += flops(args, out)
        elif func in COLLECTIVES:
            kind, whole = COLLECTIVES[func]
            arrays = args[whole]
            x = arrays[0] if isinstance(arrays, (list, tuple)) else arrays
            name = f"{self._axis(args)}.{kind}"
            self.comm_bytes[name] += x.numel() * x.element_size()
            self.comm_calls[name] += 1

    def _axis(self, args: Any) -> str:
        for arg in args:
            if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
                return self.axes.get(dist.ProcessGroup.unbox(arg).group_name, "world")
        return "world"
