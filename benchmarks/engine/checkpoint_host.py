"""What PyTorch's checkpoints take the host where nothing compiles the layer that they wrap.

    python -m benchmarks.engine.checkpoint_host [--rounds 7]

A dense layer of `dtensor_layer` with tiny tensors, so that the host alone is timed, in
processor-seconds; the least of the rounds counts. Beside the layer without checkpoints stand a
checkpoint around it, reentrant or not, and one by operator with torchtitan's kind of list:
attention and every second product. `added` is what a checkpoint takes beyond the layer's own
forward and backward and one more forward, for each operator of that forward that runs a kernel.
"""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from benchmarks.engine.dtensor_host import Call, least_us, processor
from benchmarks.engine.dtensor_layer import HEAD, HIDDEN, TOKENS, Layer

ATEN = torch.ops.aten
PRODUCTS = (ATEN.mm.default, ATEN.addmm.default)
VIEWS = ("view", "t", "transpose", "split", "slice", "unsqueeze", "expand", "detach", "alias")

Wrap = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that are no views."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func._schema.name.removeprefix("aten::") not in VIEWS
        return func(*args, **(kwargs or {}))


class EverySecond:
    """A policy that keeps attention and every second product."""

    def __init__(self) -> None:
        self.products = {False: 0, True: 0}

    def __call__(self, context: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        kept = "attention" in str(func)
        if func in PRODUCTS:
            self.products[context.is_recompute] += 1
            kept = self.products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _by_operator(layer: nn.Module, x: Tensor, turn: Tensor) -> Tensor:
    contexts = partial(create_selective_checkpoint_contexts, EverySecond())
    out: Tensor = checkpoint(layer, x, turn, use_reentrant=False, context_fn=contexts)
    return out


def _around(layer: nn.Module, x: Tensor, turn: Tensor, *, reentrant: bool) -> Tensor:
    out: Tensor = checkpoint(layer, x, turn, use_reentrant=reentrant)
    return out


WRAPS: dict[str, Wrap] = {
    "none": lambda layer, x, turn: layer(x, turn),
    "reentrant": partial(_around, reentrant=True),
    "around": partial(_around, reentrant=False),
    "operator": _by_operator,
}


def layer_and_inputs() -> tuple[nn.Module, Tensor, Tensor]:
    """Without norms of queries and keys."""
    x = torch.randn(1, TOKENS, HIDDEN).requires_grad_()
    return Layer(inner=False), x, torch.randn(2, TOKENS, 1, HEAD)


def kernels_of(layer: nn.Module, x: Tensor, turn: Tensor) -> int:
    """How many operators of a forward are no views."""
    with Kernels() as seen:  # type: ignore[no-untyped-call]
        layer(x, turn)
    return int(seen.count)


def passes_of(name: str, layer: nn.Module, x: Tensor, turn: Tensor) -> tuple[Call, Call]:
    """Forward alone, and forward with backward, under a checkpoint."""
    wrap = WRAPS[name]
    return (lambda: wrap(layer, x, turn)), (lambda: wrap(layer, x, turn).sum().backward())  # type: ignore[no-untyped-call]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="checkpoints' cost on the host")
    parser.add_argument("--rounds", type=int, default=7, help="of which the least counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    layer, x, turn = layer_and_inputs()
    kernels = kernels_of(layer, x, turn)
    print(datetime.now(UTC).date(), f"torch {torch.__version__}", processor())
    print(
        f"{kernels} operators\n{'checkpoint':12}{'forward ms':>12}{'backward':>10}{'added us':>10}"
    )
    own = 0.0
    for name in WRAPS:
        calls = passes_of(name, layer, x, turn)
        forward, both = (least_us(call, args.rounds) for call in calls)
        own = both + forward if name == "none" else own
        added = 0.0 if name == "none" else (both - own) / kernels
        print(f"{name:12}{forward / 1e3:12.2f}{(both - forward) / 1e3:10.2f}{added:10.1f}")


if __name__ == "__main__":
    main()
