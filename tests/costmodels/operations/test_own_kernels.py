"""Kernels of PyTorch's own, and the replay of its checkpoint, counted as PyTorch runs them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sites import V, site
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.kinds import Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.replayed import without_unread
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.engines import load_engine

HIDDEN, FFN = 64, 192
KIND = Layer(attention=Attention(heads=1, kv_heads=1, head_dim=64, v_head_dim=64), ffn=FFN)
MODEL = Model(name="small", hidden=HIDDEN, vocab=V, pattern=(0,), kinds=(KIND,), norm="rmsnorm")


class Counted(TorchDispatchMode):
    """Bytes that operators read and write, views left out, and the sizes of weights multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.products = 0, list[int]()

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it and count it."""
        out = func(*args, **(kwargs or {}))
        read, written = (
            [each for each in tree_leaves(some) if isinstance(each, Tensor)] for some in (args, out)
        )
        if func is torch.ops.aten.mm.default:
            self.products.append(read[1].numel())
        places = {each.untyped_storage().data_ptr() for each in read}
        if all(each.untyped_storage().data_ptr() not in places for each in written):
            stored = [min(x.nbytes, x.untyped_storage().nbytes()) for x in read]
            self.moved += sum(stored) + sum(x.nbytes for x in written)
        return out


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as transformers writes it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """A rotation as transformers writes it."""
    first, second = x.chunk(2, dim=-1)
    return x * angles + torch.cat((-second, first), dim=-1) * angles


@pytest.mark.parametrize(("run", "name"), [(normed, "attention_norm"), (rotated, "rotary")])
def test_bytes_of_own_kernels(run: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
    """Of a number in 16 bits, within 3 %; the rotation's forward alone (`ROTATION_PASSES`)."""
    x = torch.randn(1024, 512, dtype=torch.bfloat16, requires_grad=True)
    other = torch.ones(512, dtype=torch.bfloat16, requires_grad=name != "rotary")
    with Counted() as forward:
        y = run(x, other)
    with Counted() as backward:
        torch.autograd.backward(y, torch.ones_like(y))
    backward.moved -= 2 * 2 * x.numel()  # the gradient that was made to begin with
    unfused = {"fused_norm": False, "fused_rope": False}
    where = site(MODEL, 1, 1, sequence_parallel=False)
    where = replace(where, kernels=load_engine("llm-foundry").kernels.model_copy(update=unfused))
    (op,) = (op for op in layer_operations(where, KIND) if op.name == name)
    assert isinstance(op, Pointwise)
    numbers = where.shard.tokens * HIDDEN * (2 if name == "rotary" else 1)
    assert op.forward_bytes / numbers == pytest.approx(forward.moved / x.numel(), rel=0.03)
    if name == "attention_norm":
        assert op.backward_bytes / numbers == pytest.approx(backward.moved / x.numel(), rel=0.03)


EAGER = {"fused_norm": False, "fused_rope": False, "fused_gated": False}


@pytest.mark.parametrize(
    ("changed", "issued"),
    [
        (EAGER, {"attention_norm": (1, 5), "rotary": (1, 7), "activation": (1, 2)}),
        (EAGER | {"fused_norm": True},
         {"attention_norm": (1, 0), "rotary": (8, 0), "activation": (3, 0)}),
        ({}, {"attention_norm": (1, 0), "rotary": (1, 0), "activation": (1, 0)}),
    ],
)  # fmt: skip
def test_the_host_issues_own_kernels_as_operators(
    changed: dict[str, bool], issued: dict[str, tuple[float, float]]
) -> None:
    """One module's call each and the rest PyTorch's own, where norms are made of them: 6 kernels,
    a rotation's 8, silu and product 3. Engines with fused norms learnt what others cost as calls.
    """
    model = replace(MODEL, gated=True)
    where = site(model, 1, 1, sequence_parallel=False)
    where = replace(where, kernels=where.kernels.model_copy(update=changed))
    found = {op.name: op for op in layer_operations(where, KIND) if isinstance(op, Pointwise)}
    for name, (calls, operators) in issued.items():
        op = found[name]
        assert op.kernels * op.issued_share == pytest.approx(calls)
        assert op.operators == pytest.approx((operators, operators))


class FeedForward(nn.Module):
    """A gated feed-forward beside a residual stream, perhaps with an adapter beside its end."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.a = nn.Linear(FFN, rank, bias=False) if rank else None
        self.b = nn.Linear(rank, HIDDEN, bias=False) if rank else None
        if rank:
            self.up.requires_grad_(requires_grad=False)
            self.down.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        gate, up = self.up(x).chunk(2, dim=-1)
        inner = nn.functional.silu(gate) * up
        y = self.down(inner)
        return x + (y + self.b(self.a(inner)) if self.a is not None and self.b is not None else y)


def replayed(block: FeedForward, x: Tensor) -> Counter[int]:
    """Numbers of the weights that the backward under a checkpoint multiplies by once more."""
    counts = []
    for y in (checkpoint(block, x, use_reentrant=False), block(x)):
        with Counted() as backward:
            y.sum().backward()
        counts.append(Counter(backward.products))
    return counts[0] - counts[1]


@pytest.mark.parametrize("lora", [None, Lora(rank=4, targets="all_linear")])
def test_what_a_checkpoint_that_is_not_reentrant_replays(lora: Lora | None) -> None:
    """PyTorch ends the replay with the last number that it saved, which with an adapter beside the
    last product is inside the adapter.
    """
    block = FeedForward(lora.rank if lora else 0)
    again = replayed(block, torch.randn(8, HIDDEN, requires_grad=True))
    where = site(MODEL, 1, 1, sequence_parallel=False)
    operations = [op for op in layer_operations(where, KIND) if "mlp" in op.modules]
    weights = {int(op.k * op.n) for op in operations if isinstance(op, Matmul)}
    assert weights == {block.up.weight.numel(), block.down.weight.numel()}
    left = [op for op in without_unread(operations, lora) if isinstance(op, Matmul)]
    assert {int(op.k * op.n) for op in left} == weights & set(again)
