"""Live bytes of a program, by storage: what a caching allocator would hold, without its slack.

Every tensor operation passes through `Tracker`; a storage counts from the operation that makes it
until the last tensor on it dies, rounded up to the 512 bytes that CUDA's caching allocator rounds
to. Works the same on fake and on real tensors.
"""

import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshplan.costmodels.schedule.actions import Action
from meshplan.executor.dryrun.work import Work
from meshplan.executor.engine.watch.clock import Phase

BLOCK_BYTES = 512
Category = Literal["weights", "gradients", "optimizer", "activations", "transient"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages and counts work; also the engine's observer, for the peak of each phase.

    live_bytes       now, by category: what a unit keeps is tagged by `tag`; what autograd saves is
                     an activation; everything else is transient
    peak, at_peak    the largest sum so far, and its categories
    phase_peaks      the largest sum within each phase
    most_bytes       the most of each category so far, whatever the others were then
    saved            a list to which every newly saved tensor's shape, dtype and bytes are added
    """

    def __init__(self, work: Work | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = work
        self.live_bytes: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        self.total = 0
        self.peak = 0
        self.at_peak = dict(self.live_bytes)
        self.current: str = "build"
        self.phase_peaks: dict[str, int] = defaultdict(int)
        self.most_bytes = dict(self.live_bytes)
        self.saved: list[tuple[tuple[int, ...], str, int]] | None = None
        self._held: dict[int, tuple[int, Category]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside, so torch's compiler need not be told to keep out."""
        return False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow everything that runs inside, and what autograd saves."""
        resize = torch.UntypedStorage.resize_

        def tracked_resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            result: torch.UntypedStorage = resize(storage, size)
            self._resized(storage, size)
            return result

        torch.UntypedStorage.resize_ = tracked_resize  # type: ignore[assignment, method-assign]
        try:
            with self, saved_tensors_hooks(self._saved, lambda x: x):
                yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    @contextmanager
    def phase(self, name: Phase, action: Action | None = None) -> Iterator[None]:
        """The engine says what it is doing."""
        self.current = name
        self._grow(0, "transient")
        yield

    def tag(self, x: Tensor, category: Category) -> None:
        """Count the storage of `x` in `category` from now on."""
        storage = x.untyped_storage()
        self._add(storage)
        size, before = self._held[storage._cdata]
        self._held[storage._cdata] = (size, category)
        self.live_bytes[before] -= size
        self.live_bytes[category] += size
        self.most_bytes[category] = max(self.most_bytes[category], self.live_bytes[category])

    def category_of(self, x: Tensor) -> Category | None:
        """Where the storage of `x` counts, None if it is not followed."""
        held = self._held.get(x.untyped_storage()._cdata)
        return None if held is None else held[1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, follow what it makes, count what it does."""
        out = func(*args, **(kwargs or {}))
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            for x in (leaf,) if isinstance(leaf, Tensor) else tree_leaves(leaf):
                if isinstance(x, Tensor):
                    self._add(x.untyped_storage())
        if self.work is not None:
            self.work.count(func, args, out, self.current)
        return out

    def _saved(self, x: Tensor) -> Tensor:
        """Autograd keeps `x`: an activation, unless it is something longer-lived."""
        if self.category_of(x) == "transient":
            self.tag(x, "activations")
            if self.saved is not None:
                size = self._held[x.untyped_storage()._cdata][0]
                self.saved.append((tuple(x.shape), str(x.dtype).removeprefix("torch."), size))
        return x.detach()  # `x` itself would be a cycle where it is the output of its own node

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._held:
            return
        size = _rounded(storage.nbytes())
        self._held[key] = (size, "transient")
        self._grow(size, "transient")
        weakref.finalize(storage, self._dead, key)

    def _dead(self, key: int) -> None:
        size, category = self._held.pop(key)
        self._grow(-size, category)

    def _resized(self, storage: torch.UntypedStorage, size: int) -> None:
        held = self._held.get(storage._cdata)
        if held is not None:
            self._held[storage._cdata] = (_rounded(size), held[1])
            self._grow(_rounded(size) - held[0], held[1])

    def _grow(self, size: int, category: Category) -> None:
        self.live_bytes[category] += size
        self.most_bytes[category] = max(self.most_bytes[category], self.live_bytes[category])
        self.total += size
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.live_bytes)
        if self.total > self.phase_peaks[self.current]:
            self.phase_peaks[self.current] = self.total


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
