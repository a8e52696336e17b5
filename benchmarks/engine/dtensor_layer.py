"""A dense layer of eager PyTorch under each plan of tensor parallelism by DTensor.

plain       the model as it is
columns     ColwiseParallel and RowwiseParallel alone, their outputs tensors: KempnerForge's
            pipelines (KempnerInstitute/KempnerForge@0c4eba1e kempnerforge/distributed/
            tensor_parallel.py), and over transformers' modules tohtana/benchmark_tp@2faebc2
sequence    the same with norms and residual sums on parts of the sequence, DTensors between
            layers; each product gathers its input (KempnerForge without pipelines)
prepared    norms on parts of the sequence, one gather for the products behind it, outputs of
            products tensors: pytorch/torchtitan@018740b7 models/llama3/infra/parallelize.py
kept        queries, keys and values stay DTensors through norms and rotation:
            pytorch/torchtitan@057fedda models/qwen3/infra/parallelize.py
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention, silu

PLANS = ("plain", "columns", "sequence", "prepared", "kept")
HEAD, HIDDEN, TOKENS = 4, 32, 8

Plan = dict[str, ParallelStyle]


class Attention(nn.Module):
    """Of queries and keys that are rotated, and with `inner` normed before."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (_linear() for _ in range(4))
        self.q_norm, self.k_norm = (nn.RMSNorm(HEAD) if inner else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Of a sequence; `turn` holds cosines and sines."""
        q, k, v = (w(x) for w in (self.wq, self.wk, self.wv))
        q, k, v = (t.view(*t.shape[:2], -1, HEAD) for t in (q, k, v))
        q, k = rotated(self.q_norm(q), turn), rotated(self.k_norm(k), turn)
        out = attended(*(t.transpose(1, 2) for t in (q, k, v)))
        summed: Tensor = self.wo(out.transpose(1, 2).contiguous().flatten(2))
        return summed


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (_linear() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Of a sequence."""
        summed: Tensor = self.w2(silu(self.w1(x)) * self.w3(x))
        return summed


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual sum."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.feed_forward = Attention(inner=inner), FeedForward()

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Of a sequence."""
        x = x + self.attention(self.attention_norm(x), turn)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """By cosines and sines in fp32; the halves of each head change places."""
    cos, sin = turn.chunk(2)
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By PyTorch's kernel over a rank's own heads: for a CPU's it has no rule of DTensors."""
    a, b, c = (t.to_local() if isinstance(t, DTensor) else t for t in (q, k, v))
    out = scaled_dot_product_attention(a, b, c, is_causal=True)
    if isinstance(q, DTensor):
        return DTensor.from_local(out, q.device_mesh, q.placements)
    return out


def _linear() -> nn.Linear:
    return nn.Linear(HIDDEN, HIDDEN, bias=False)


def layer_of(plan: str, mesh: DeviceMesh, *, inner: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """The layer under a plan, and what it takes."""
    layer: nn.Module = Layer(inner=inner)
    whole = plan in ("plain", "columns")
    x = torch.randn(1, TOKENS if whole else TOKENS // mesh.size(), HIDDEN)
    if plan != "plain":
        layer = parallelize_module(layer, mesh, PLANNED[plan]())
    if plan == "sequence":
        x = DTensor.from_local(x, mesh, [Shard(1)])
    return layer, x.detach().requires_grad_(), torch.randn(2, TOKENS, 1, HEAD)


def _linears(columns: Callable[[], ParallelStyle], rows: Callable[[], ParallelStyle]) -> Plan:
    entering = (
        "attention.wq",
        "attention.wk",
        "attention.wv",
        "feed_forward.w1",
        "feed_forward.w3",
    )
    leaving = ("attention.wo", "feed_forward.w2")
    return {name: columns() for name in entering} | {name: rows() for name in leaving}


def _columns() -> Plan:
    return _linears(ColwiseParallel, RowwiseParallel)


def _norms() -> Plan:
    return {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}


def _sequence() -> Plan:
    return _norms() | _linears(
        lambda: ColwiseParallel(input_layouts=Shard(1)),
        lambda: RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    )


def _prepared(turn: Replicate | None = None) -> Plan:
    plan = _norms() | _linears(ColwiseParallel, lambda: RowwiseParallel(output_layouts=Shard(1)))
    plan["attention"] = PrepareModuleInput(
        input_layouts=(Shard(1), turn), desired_input_layouts=(Replicate(), turn)
    )
    plan["feed_forward"] = PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    )
    return plan


def _kept() -> Plan:
    plan = _prepared(Replicate())
    plan |= {f"attention.{w}": ColwiseParallel(use_local_output=False) for w in ("wq", "wk", "wv")}
    inner = ("q_norm", "k_norm")
    return plan | {f"attention.{name}": SequenceParallel(sequence_dim=2) for name in inner}


PLANNED = {"columns": _columns, "sequence": _sequence, "prepared": _prepared, "kept": _kept}
