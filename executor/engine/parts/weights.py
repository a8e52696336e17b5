"""Weights in flat buffers, one buffer per unit (a layer, its experts, the embedding, the head),
and ZeRO.

A unit of N parameters (per tensor- and expert-parallel rank), sharded over d ranks, keeps

    ZeRO   computing copy   gradients (fp32)                        master and AdamW moments (fp32)
    0      N                4 N                                     12 N
    1      N                4 N, scattered once per step            12 N / d
    2      N                4 N / d, scattered every micro-batch    12 N / d
    3      only while used  4 N / d, scattered every micro-batch    12 N / d

where the computing copy has the training precision's 2 or 4 bytes. In fp32 below ZeRO-3 the
computing copy is the master too. ZeRO-2 and 3 hold the whole gradient of a unit (4 N) while it is
reduced. Autograd never sees a weight: the engine's functions read `Weight.value` and add to
`Weight.gradient`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.executor.engine.parts.groups import group_size


@dataclass(frozen=True, slots=True)
class Source:
    """A piece of one of the model's parameters: rows or columns start..stop of the whole."""

    name: str
    full_shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    stop: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece."""
        stop = self.full_shape[self.dim] if self.stop is None else self.stop
        return (*self.full_shape[: self.dim], stop - self.start, *self.full_shape[self.dim + 1 :])


@dataclass(eq=False, slots=True)
class Weight:
    """One local parameter: where it lies in its unit, and what it holds of the whole model's.

    sources     one, or one per expert held (then stacked along a new first dimension)
    fill        the constant it starts at, None for a normal distribution
    replicated  every tensor-parallel rank holds all of it and sees part of its gradient
    """

    sources: tuple[Source, ...]
    stacked: bool
    fill: float | None
    replicated: bool
    unit: "Unit | None" = None
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The local shape."""
        piece = self.sources[0].shape
        return (len(self.sources), *piece) if self.stacked else piece

    @property
    def value(self) -> Tensor:
        """The weight in the computing precision; only while its unit is gathered."""
        assert self.unit is not None
        return self.unit.whole.narrow(0, self.offset, prod(self.shape)).view(self.shape)

    @property
    def gradient(self) -> Tensor:
        """Where its fp32 gradient accumulates."""
        assert self.unit is not None
        return self.unit.gradient().narrow(0, self.offset, prod(self.shape)).view(self.shape)


@dataclass(slots=True)
class Ledger:
    """Weight gradients put off (zero-bubble schedules), and the reductions under way on this
    rank.
    """

    deferring: bool = False
    deferred: list[Callable[[], None]] = field(default_factory=list)
    reducing: list["Unit"] = field(default_factory=list)

    def add(self, product: Callable[[], None]) -> None:
        """Run `product`, which adds to a gradient, now or when the W action asks for it."""
        if self.deferring:
            self.deferred.append(product)
        else:
            product()

    @contextmanager
    def putting_off(self) -> Iterator[list[Callable[[], None]]]:
        """Collect the weight products of one backward pass instead of running them."""
        self.deferring, self.deferred = True, []
        try:
            yield self.deferred
        finally:
            self.deferring, self.deferred = False, []

    def advance(self) -> None:
        """Finish the collective that each reduction waits for, and start its next."""
        for unit in self.reducing:
            unit.reduce_further()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Over which ranks a unit is sharded and copied, and how."""

    zero_stage: int
    shard: ProcessGroup | None
    replicas: ProcessGroup | None
    dtype: torch.dtype
    device: torch.device


class Unit:
    """The weights that are gathered, reduced and updated together."""

    def __init__(
        self, name: str, weights: list[Weight], sharding: Sharding, ledger: Ledger
    ) -> None:
        self.name, self.sharding, self.ledger = name, sharding, ledger
        self.weights = sorted(weights, key=lambda weight: not weight.replicated)
        self.ranks = group_size(sharding.shard)
        self.index = 0 if sharding.shard is None else dist.get_rank(sharding.shard)
        self.numel = 0
        for weight in self.weights:
            assert weight.unit is None, f"{weight.sources[0].name} is in two units"
            weight.unit, weight.offset = self, self.numel
            self.numel += prod(weight.shape)
        self.replicated_numel = sum(prod(w.shape) for w in self.weights if w.replicated)
        self.padded = -(-self.numel // self.ranks) * self.ranks
        self.uses = 0
        self._completed = 0
        self._gather: dist.Work | None = None
        self._reduction: Iterator[None] | None = None
        self._allocate()

    def _allocate(self) -> None:
        """Make the buffers of the module's table."""
        zero, dtype, device = self.sharding.zero_stage, self.sharding.dtype, self.sharding.device
        self.whole = torch.zeros(self.padded, dtype=dtype, device=device)
        wide = torch.float32
        if zero < 3 and dtype == wide:
            self.master = self._own(self.whole)
        else:
            self.master = torch.zeros(self.padded // self.ranks, dtype=wide, device=device)
        kept = self.padded if zero < 2 else self.padded // self.ranks
        self.kept_gradient = torch.zeros(kept, dtype=wide, device=device)
        self._transient: Tensor | None = None
        self.gathered = zero < 3
        if not self.gathered:
            self.whole.untyped_storage().resize_(0)

    def _own(self, flat: Tensor) -> Tensor:
        """This rank's shard of a flat buffer of the whole unit."""
        size = self.padded // self.ranks
        return flat.narrow(0, self.index * size, size)

    @property
    def shard_gradient(self) -> Tensor:
        """The reduced gradient of this rank's shard, after `finish`."""
        return self._own(self.kept_gradient) if self.sharding.zero_stage < 2 else self.kept_gradient

    def replicated_shard(self, flat: Tensor) -> Tensor:
        """The part of a shard-sized buffer that holds tensor-replicated weights."""
        start = self.index * (self.padded // self.ranks)
        return flat[: max(0, min(self.replicated_numel - start, len(flat)))]

    def gradient(self) -> Tensor:
        """The fp32 gradient of the whole unit that the backward pass adds to."""
        if self.sharding.zero_stage < 2:
            return self.kept_gradient
        if self._transient is None:
            self._transient = torch.zeros(
                self.padded, dtype=torch.float32, device=self.sharding.device
            )
        return self._transient

    def gather(self) -> None:
        """Start to gather the whole unit, unless it is there or on its way."""
        if self.gathered:
            return
        self.gathered = True
        self.whole.untyped_storage().resize_(self.padded * self.whole.element_size())
        self._gather_from(self.master.to(self.whole.dtype))

    def refresh(self) -> None:
        """After the optimizer: bring the computing copy up to date with the masters."""
        if self.sharding.zero_stage < 3:
            own = self._own(self.whole)
            if own.dtype != self.master.dtype:
                own.copy_(self.master)
            self._gather_from(own)

    def _gather_from(self, own: Tensor) -> None:
        if self.sharding.shard is None:
            if self.sharding.zero_stage == 3:
                self.whole.copy_(own)
            return
        self._gather = dist.all_gather_single(
            self.whole, own, group=self.sharding.shard, async_op=True
        )

    def ready(self) -> None:
        """Gather the whole unit and wait for it."""
        self.gather()
        if self._gather is not None:
            self._gather.wait()
            self._gather = None

    def free(self) -> None:
        """ZeRO-3: give the gathered copy back."""
        if self.sharding.zero_stage == 3 and self.gathered:
            self.ready()
            self.whole.untyped_storage().resize_(0)
            self.gathered = False

    def start_step(self, uses: int) -> None:
        """Forget the last step's gradient; `uses` micro-batch passes will complete it."""
        self.uses, self._completed = uses, 0
        self.kept_gradient.zero_()

    def complete(self) -> None:
        """One pass of one micro-batch has added all it has to this unit's gradient."""
        self._completed += 1
        self.ledger.advance()
        if self.sharding.zero_stage >= 2 or self._completed == self.uses:
            self.finish()
            self._reduction = self._reduce()
            self.ledger.reducing.append(self)
            self.reduce_further()

    def reduce_further(self) -> None:
        """Take the reduction under way one collective further."""
        if self._reduction is not None and next(self._reduction, self) is self:
            self._reduction = None
            self.ledger.reducing = [unit for unit in self.ledger.reducing if unit is not self]

    def finish(self) -> None:
        """Wait for the whole reduction."""
        while self._reduction is not None:
            self.reduce_further()

    def _reduce(self) -> Iterator[None]:
        """Sum the gradient over the shard group, then over the replicas when the step is
        complete.
        """
        zero, group = self.sharding.zero_stage, self.sharding.shard
        whole, last = self.gradient(), self._completed == self.uses
        self._transient = None
        if group is not None:
            part = torch.empty_like(self._own(whole))
            work = dist.reduce_scatter_single(part, whole, group=group, async_op=True)
            yield
            work.wait()
            if zero < 2:
                self.shard_gradient.copy_(part)
            else:
                self.shard_gradient.add_(part)
            del part
        elif zero >= 2:
            self.shard_gradient.add_(whole)
        del whole
        if last and self.sharding.replicas is not None:
            work = dist.all_reduce(self.shard_gradient, group=self.sharding.replicas, async_op=True)
            yield
            work.wait()
