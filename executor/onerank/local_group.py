"""A process group of which only this rank exists: it answers as if every other rank held the same.

    all_gather      this rank's part, once for each rank
    reduce_scatter  this rank's part of its own array, times the ranks
    all_reduce      the array times the ranks; a maximum as it is
    all_to_all      this rank's own rows
    receive         normal numbers of the size that weights begin with

Buffers and bytes are those of the real group; how long a message takes `Wire` says, and how much
later the slowest rank comes to it than this one; `Line` makes it so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from meshplan.executor.engine.step.engine import INIT_STD
from meshplan.executor.onerank.line import CpuLine, CudaLine, Line, Waited
from meshplan.executor.onerank.wire import Message, Wire

BACKEND = "answered_here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What every group of this process shares.

    ready  what arrives from other pipeline ranks, by number of elements and dtype
    """

    rank: int
    wire: Wire
    device: torch.device
    waited: Waited = field(default_factory=Waited)
    ready: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    def line(self, name: str) -> Line:
        """A communicator of this device."""
        kind = CudaLine if self.device.type == "cuda" else CpuLine
        return kind(name, self.waited)

    def arrive(self, x: Tensor) -> None:
        """Fill `x` as a neighbour would."""
        key = (x.numel(), x.dtype)
        if key not in self.ready:
            made = torch.empty(x.shape, dtype=torch.float32, device=x.device)
            self.ready[key] = made.normal_(0, INIT_STD).to(x.dtype).flatten()
        x.copy_(self.ready[key].view_as(x))


class LocalGroup(dist.ProcessGroup):
    """The group of `ranks`, answered by the one of them that exists."""

    def __init__(self, answers: Answers, ranks: Sequence[int], name: str) -> None:
        super().__init__(ranks.index(answers.rank), len(ranks))  # type: ignore[call-arg]
        self.answers, self.ranks, self.label = answers, ranks, name
        self.place = ranks.index(answers.rank)
        # what goes each way between two pipeline ranks does not wait for the other
        self.lines = {way: answers.line(name) for way in ("collective", "send", "receive")}

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that the engine knows it by."""
        return self.label

    def new_group(self, ranks: list[int], *, group_name: str, **_: Any) -> "LocalGroup":
        """A group of some of its ranks, without asking them."""
        return LocalGroup(self.answers, ranks, group_name)

    def all_gather_single(self, whole: Tensor, part: Tensor, opts: Any = None) -> dist.Work:
        """Every part is this rank's."""

        def fill() -> None:
            rows, own = whole.view(len(self.ranks), -1), part.reshape(1, -1)
            in_place = whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            rows[: self.place].copy_(own)
            rows[self.place + in_place :].copy_(own)

        return self._collective("all_gather", whole, fill)

    def reduce_scatter_single(self, part: Tensor, whole: Tensor, opts: Any = None) -> dist.Work:
        """Every rank's array is this one's."""

        def fill() -> None:
            own = whole.view(len(self.ranks), *part.shape)[self.place]
            torch.mul(own, len(self.ranks), out=part)

        return self._collective("reduce_scatter", whole, fill)

    def allreduce(self, arrays: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """In place."""
        (x,) = arrays
        summed = opts is None or opts.reduceOp == dist.ReduceOp.SUM
        return self._collective(
            "all_reduce", x, partial(x.mul_, len(self.ranks)) if summed else lambda: None
        )

    def all_to_all_single(
        self, out: Tensor, x: Tensor, receive: list[int], send: list[int], opts: Any = None
    ) -> dist.Work:
        """As many rows as are received, of this rank's."""

        def fill() -> None:
            rows, more = divmod(len(out), max(1, len(x)))
            out[: rows * len(x)].view(rows, *x.shape).copy_(x)
            out[len(out) - more :].copy_(x[:more])

        return self._collective("all_to_all", x, fill)

    def send(self, arrays: list[Tensor], to: int, tag: int = 0) -> dist.Work:
        """It has gone when its time has passed."""
        return self.lines["send"].begin(self._sent(arrays[0], to), lambda: None)

    def recv(self, arrays: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        """Its sender had it ready."""
        message = self._sent(arrays[0], source)
        return self.lines["receive"].begin(message, partial(self.answers.arrive, arrays[0]))

    def _sent(self, x: Tensor, other: int) -> Message:
        return self.answers.wire.send(_bytes(x), self.answers.rank, self.ranks[other])

    def _collective(self, kind: Any, whole: Tensor, fill: Any) -> dist.Work:
        wire = self.answers.wire
        message = wire.collective(kind, _bytes(whole), self.ranks)
        late_s = wire.straggler_fraction(self.ranks) * self.answers.waited.computed_s()
        message = replace(message, seconds=message.seconds + late_s)
        return self.lines["collective"].begin(message, fill)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _world(options: Any, answers: Answers) -> LocalGroup:
    return LocalGroup(answers, range(options.group_size), "world")


@contextmanager
def answered_here(answers: Answers, world_size: int) -> Iterator[None]:
    """Inside, `torch.distributed` has a world of `world_size` ranks of which only one exists."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _world, extended_api=True, devices=["cpu", "cuda"])
    dist.init_process_group(
        BACKEND, store=HashStore(), rank=answers.rank, world_size=world_size,
        pg_options=cast(Any, answers),
    )  # fmt: skip
    try:
        yield
    finally:
        dist.destroy_process_group()
