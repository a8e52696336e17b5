"""What one layer of a module computes: its kernels in order, on the meta device.

Kernels are seen below autograd (`TorchDispatchMode`), what autograd keeps by its own hooks. A
tensor is known by its storage, so that views are what they are views of. Nothing is computed: a
meta tensor has a shape and no numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from meshplan.executor.trace.missing import CannotTrace

aten = torch.ops.aten
SINGLE = {aten.mm: (0, 1), aten.addmm: (1, 2)}
BATCHED = {aten.bmm: (0, 1), aten.baddbmm: (1, 2), aten._grouped_mm: (0, 1)}
OPERANDS = {**SINGLE, **BATCHED}
WITHOUT_WORK = ("empty", "zeros", "ones", "arange", "full", "detach", "scalar_tensor", "eye")
"""Beginnings of names of kernels that make a tensor of nothing that a token says."""

Kind = Literal["product", "attention", "state", "convolution", "chain", "choice"]


@dataclass(frozen=True, slots=True)
class Value:
    """A storage: the bytes it holds, how its tensor looked first, and whether it can have a
    gradient (an index has none).
    """

    nbytes: int
    shape: tuple[int, ...]
    floating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel: which storages it reads and writes.

    kind    "product" of activations with a weight, "attention", "state" (a product of
            activations), "convolution", "choice" (top-k, sort), else "chain"
    sizes   of a product or state: (groups, rows of each or of all, k, n)
    weight  the name of the parameter that a product reads
    trained whether it reads a parameter
    """

    kind: Kind
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: int = 0
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    weight: str = ""
    trained: bool = False
    attention: tuple[int, int, int, int, int | None] = (0, 0, 0, 0, None)


@dataclass(slots=True)
class Record:
    """One run of one layer.

    kernels     in order; `values` by storage, `saved` those that autograd keeps
    stream      the storage of the hidden states that the layer was given, `output` of its own
    parameters  names by storage; what is computed of parameters alone is one too
    """

    kernels: list[Kernel] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    stream: int = 0
    output: int = 0
    parameters: dict[int, str] = field(default_factory=dict)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records while `record` is set; keeps every tensor, so that no storage's number is reused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record: Record | None = None
        self._alive: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside, so torch's compiler need not be told to keep out."""
        return False

    def start(self, layer: torch.nn.Module, stream: Tensor) -> Record:
        """Begin to record `layer`, whose input is `stream`."""
        found = {_id(each): name for name, each in layer.named_parameters()}
        self.record = Record(parameters=found, stream=_id(stream))
        self._see(stream)
        return self.record

    def stop(self, output: Tensor) -> None:
        """End the record of the layer, whose output is this."""
        assert self.record is not None
        self.record.output = self._see(output)
        self.record = None

    def keep(self, tensor: Tensor) -> Tensor:
        """What autograd calls with each tensor that it saves."""
        if self.record is not None:
            self.record.saved.add(self._see(tensor))
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.record is not None:
            self._kernel(self.record, func._overloadpacket, args, kwargs or {}, out)
        return out

    def attention(
        self, operands: tuple[Tensor, ...], made: tuple[Tensor, ...], window: int | None
    ) -> None:
        """A call of softmax attention of queries, keys and values: heads x tokens x width each."""
        if self.record is None:
            return
        q, k, v = operands
        size = (q.shape[1], k.shape[1], q.shape[3], v.shape[3], window)
        reads, writes = tuple(map(self._see, operands)), tuple(map(self._see, made))
        flops = 2 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])
        self.record.kernels.append(Kernel(
            kind="attention", name="attention", reads=reads, writes=writes, flops=flops,
            attention=size,
        ))  # fmt: skip

    def _kernel(self, record: Record, packet: Any, args: Any, kwargs: Any, out: Any) -> None:
        reads = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        written = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        name = packet.__name__
        ids = {_id(each) for each in reads}
        views = not name.endswith("_") and all(_id(each) in ids for each in written)
        if views or name.startswith(WITHOUT_WORK) or name.startswith("new_"):
            self._alive.extend(written)
            return
        if reads and ids <= set(record.parameters):  # a weight in another type is that weight
            record.parameters |= {_id(each): record.parameters[_id(reads[0])] for each in written}
            self._alive.extend(written)
            return
        record.kernels.append(self._described(record, packet, args, reads, written))

    def _described(
        self, record: Record, packet: Any, args: Any, reads: list[Tensor], written: list[Tensor]
    ) -> Kernel:
        weights = [each for each in reads if _id(each) in record.parameters]
        others = tuple(self._see(each) for each in reads if _id(each) not in record.parameters)
        kind, sizes, weight = _kind_of(record, packet, args, weights)
        formula = flop_registry.get(packet)
        flops = 2 * sizes[0] * sizes[1] * sizes[2] * sizes[3]
        if packet is aten._grouped_mm:
            flops //= sizes[0]
        elif formula and not flops:
            flops = int(formula(*args, out_val=written[0]))
        return Kernel(
            kind=kind, name=packet.__name__, reads=others, flops=flops, sizes=sizes, weight=weight,
            writes=tuple(map(self._see, written)), trained=bool(weights),
        )  # fmt: skip

    def _see(self, tensor: Tensor) -> int:
        self._alive.append(tensor)
        storage = _id(tensor)
        if self.record is not None and storage not in self.record.values:
            size = tensor.untyped_storage().nbytes()
            seen = Value(size, tuple(tensor.shape), tensor.is_floating_point())
            self.record.values[storage] = seen
        return storage


def _kind_of(
    record: Record, packet: Any, args: Any, weights: list[Tensor]
) -> tuple[Kind, tuple[int, int, int, int], str]:
    name = packet.__name__
    if packet in OPERANDS:
        left, right = (args[at] for at in OPERANDS[packet])
        groups = 1 if packet in SINGLE else right.shape[0]
        sizes = (groups, left.shape[-2], left.shape[-1], right.shape[-1])
        operands = [record.parameters.get(_id(each), "") for each in (left, right)]
        if all(operands) or not any(operands):
            return "state", sizes, ""
        if operands[0]:  # the weight is on the left: its transpose on the right
            sizes = (groups, right.shape[-1], left.shape[-1], left.shape[-2])
        return "product", sizes, operands[0] or operands[1]
    if "convolution" in name or "conv1d" in name:
        return "convolution", (0, 0, 0, 0), ""
    if packet in flop_registry:
        return "state", (0, 0, 0, 0), ""
    return ("choice" if name in ("topk", "sort", "argsort") else "chain"), (0, 0, 0, 0), ""


def _id(tensor: Tensor) -> int:
    """The number of its storage, alike for a tensor and its views."""
    return int(tensor.untyped_storage()._cdata)


class _Attend(torch.autograd.Function):
    """Fused attention without its numbers: it keeps what FlashAttention keeps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: Callable[..., None]) -> Tensor:
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])
        logsumexp = q.new_empty(q.shape[:3], dtype=torch.float32)
        seen(out, logsumexp)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise CannotTrace("a trace has no backward pass")


def attention_of(recorder: Recorder) -> Callable[..., tuple[Tensor, None]]:
    """An attention function for transformers' `AttentionInterface` that tells `recorder`.

    It raises `CannotTrace` for attention that is not causal.
    """

    def attend(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **said: Any
    ) -> tuple[Tensor, None]:
        if getattr(module, "is_causal", True) is False:
            raise CannotTrace("its attention is not causal: an encoder; decoders are traced")
        window = said.get("sliding_window")

        def seen(*made: Tensor) -> None:
            recorder.attention((query, key, value), made, window)

        out: Tensor = _Attend.apply(query, key, value, seen)  # type: ignore[no-untyped-call]
        return out, None

    return attend


def products(record: Record) -> Iterator[tuple[int, Kernel]]:
    """The products with weights, with their places in the record."""
    yield from ((at, each) for at, each in enumerate(record.kernels) if each.kind == "product")
