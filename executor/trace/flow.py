"""How a recorded layer hangs together: which products pair up, and what is between them.

Tensor parallelism by the rule of Megatron-LM (1909.08053, section 3): the products into a mixer or
feed-forward are cut by columns, the one out of it by rows.

    out      as wide as the model, and added to the residual stream with no product after it
    into     the last products before an "out"; what comes before these, if it narrows (latents,
             low ranks), is whole on each rank
    narrow   reads what is already cut, and something else than an "out" comes after it
    experts  products of many groups: "out" where no other such product comes after
    own      all others, for a rank's own tokens (routers, gates of one number, indexers)

A chain is what is connected between products, convolutions, attention and the residual stream: one
kernel where an engine fuses all it can.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from meshplan.executor.trace.recorder import Kernel, Record, products
from meshplan.hardware_profiles.traced_model import Split

LINEAR = frozenset((
    *("add", "add_", "sub", "rsub", "neg", "cat", "stack", "clone", "_to_copy", "copy_", "sum"),
    *("mean", "expand", "repeat", "roll", "permute", "view", "slice", "constant_pad_nd", "fill_"),
    *("index", "index_select", "index_add", "index_add_", "index_put", "index_put_", "gather"),
    *("scatter_add", "scatter_add_", "masked_fill", "masked_fill_", "where", "zero_"),
))  # fmt: skip
"""Kernels whose backward needs no number of their floating inputs; `mul` by a constant too."""
BETWEEN = ("chain", "choice", "state", "convolution")
ROWS = ("index", "gather", "scatter", "sort", "topk")


@dataclass(frozen=True, slots=True)
class Chain:
    """Connected kernels between products: storages read and written, those read that its backward
    needs, and whether it puts rows in another order.
    """

    reads: frozenset[int]
    writes: frozenset[int]
    kept: frozenset[int]
    moves_rows: bool


class Flow:
    """The dataflow of one record of `tokens` tokens in a model as wide as `hidden`."""

    def __init__(self, record: Record, tokens: int, hidden: int) -> None:
        self.record, self.tokens, self.hidden = record, tokens, hidden
        self.writers: dict[int, list[int]] = {value: [] for value in record.values}
        self.readers: dict[int, list[int]] = {value: [] for value in record.values}
        for at, kernel in enumerate(record.kernels):
            for value in kernel.writes:
                self.writers[value].append(at)
            for value in set(kernel.reads):
                self.readers[value].append(at)
        self.products = dict(products(record))

    @cached_property
    def stream(self) -> set[int]:
        """Storages of the residual stream: the input and what sums make of it, or of its product
        with a constant.
        """
        found, scaled = {self.record.stream}, set[int]()
        for kernel in self.record.kernels:
            read = set(kernel.reads)
            if kernel.name in ("mul", "mul_") and not self._keeps(kernel) and found & read:
                scaled.update(kernel.writes)
            if kernel.name in ("add", "add_") and (found | scaled) & read:
                found |= {value for value in kernel.writes if self._is_stream_wide(value)}
        return found

    @cached_property
    def own(self) -> set[int]:
        """Storages that depend on the input: it, and what is computed of it."""
        found = {self.record.stream}
        for kernel in self.record.kernels:
            if found.intersection(kernel.reads):
                found.update(kernel.writes)
        return found

    @cached_property
    def before(self) -> dict[int, set[int]]:
        """For each product the products that its operand comes from, with none in between."""
        return {at: set(self._upstream(kernel)) for at, kernel in self.products.items()}

    @cached_property
    def after(self) -> dict[int, set[int]]:
        """The same the other way."""
        found: dict[int, set[int]] = {at: set() for at in self.products}
        for at, sources in self.before.items():
            for source in sources:
                found[source].add(at)
        return found

    @cached_property
    def splits(self) -> dict[int, Split]:
        """How tensor and expert parallelism cut each product."""
        grouped = {at for at, kernel in self.products.items() if self._is_routed(kernel)}
        found: dict[int, Split] = {}
        for at in grouped:
            found[at] = "expert_in" if self.after[at] & grouped else "expert_out"
        outs = {at for at in self.products if at not in grouped and self._is_out(at, grouped)}
        into = self._leading_to(outs) - outs - grouped
        for at in self.products:
            if at in outs:
                found[at] = "row"
            elif at in into:
                found[at] = self._into(at, outs, found)
            elif at not in grouped:
                found[at] = "own"
        return found

    def _into(self, at: int, outs: set[int], found: dict[int, Split]) -> Split:
        kernel, leads_on = self.products[at], bool(self.after[at] - outs)
        if any(found.get(source) == "column" for source in self.before[at]):
            return "narrow"
        _, _, k, n = kernel.sizes
        return "whole" if leads_on and n < k else "column"

    def _leading_to(self, outs: set[int]) -> set[int]:
        found: set[int] = set()
        waiting = [source for out in outs for source in self.before[out]]
        while waiting:
            at = waiting.pop()
            if at not in found and at not in outs:
                found.add(at)
                waiting += self.before[at]
        return found

    def _is_routed(self, kernel: Kernel) -> bool:
        """Whether it is of routed experts: the products of many matrices of one size."""
        return kernel.sizes[0] > 1 and kernel.name in ("_grouped_mm", "bmm", "baddbmm")

    def _is_out(self, at: int, grouped: set[int]) -> bool:
        inside = {each for each in self.before[at] if not self._reaches_output(each)}
        wide = self.products[at].sizes[3] == self.hidden
        return wide and bool(inside - grouped) and self._reaches_output(at)

    def _reaches_output(self, at: int) -> bool:
        """Whether its output is added to the layer's with no product or mixing in between."""
        seen: set[int] = set()
        waiting = list(self.products[at].writes)
        while waiting:
            value = waiting.pop()
            if value == self.record.output:
                return True
            if value in seen or not self.record.values[value].floating:
                continue
            seen.add(value)
            for reader in self.readers[value]:
                if self.record.kernels[reader].kind == "chain":
                    waiting += self.record.kernels[reader].writes
        return False

    def _upstream(self, kernel: Kernel) -> Iterator[int]:
        seen: set[int] = set()
        waiting = list(kernel.reads)
        while waiting:
            value = waiting.pop()
            if value in seen or not self.record.values[value].floating:
                continue
            seen.add(value)
            for writer in self.writers[value]:
                source = self.record.kernels[writer]
                if source.kind == "product":
                    yield writer
                elif source.kind != "choice":
                    waiting += source.reads

    @cached_property
    def copies(self) -> int:
        """Rows of all routed experts together, 0 without any."""
        rows = (self.rows(each) for each in self.products.values() if self._is_routed(each))
        return max(rows, default=0)

    def rows(self, kernel: Kernel) -> int:
        """Rows of all groups of a product together."""
        groups, rows, _, _ = kernel.sizes
        return rows if kernel.name == "_grouped_mm" or groups == 1 else rows * groups

    @cached_property
    def parts(self) -> dict[int, str]:
        """The part of the layer that each storage is in; see `traced_model`."""
        found = dict.fromkeys(self.stream, "stream")
        made = {"column": "cut", "row": "stream", "narrow": "whole", "whole": "whole",
                "own": "stream", "expert_in": "copies", "expert_out": "copies"}  # fmt: skip
        for at, kernel in enumerate(self.record.kernels):
            if at in self.products:
                part = made[self.splits[at]]
            else:
                part = self._part({found[v] for v in kernel.reads if v in found})
            for value in kernel.writes:
                found.setdefault(value, self._settled(value, part))
        return found

    def _part(self, read: set[str]) -> str:
        return next((each for each in ("copies", "cut", "whole") if each in read), "stream")

    def _settled(self, value: int, part: str) -> str:
        shape = self.record.values[value].shape
        if self.copies > self.tokens and shape and shape[0] == self.copies:
            return "copies"
        return "stream" if part != "cut" and self._is_stream_wide(value) else part

    def _is_stream_wide(self, value: int) -> bool:
        shape = self.record.values[value].shape
        whole = self.numbers(value) == self.tokens * self.hidden
        return bool(shape) and shape[-1] == self.hidden and whole

    def numbers(self, value: int) -> int:
        """How many numbers the tensor of a storage has."""
        return prod(self.record.values[value].shape)

    @cached_property
    def made_apart(self) -> set[int]:
        """What products, convolutions and attention write: no chain begins inside these."""
        return {v for kernel in self.record.kernels
                if kernel.kind in ("product", "convolution", "attention")
                for v in kernel.writes}  # fmt: skip

    @cached_property
    def _ends(self) -> set[int]:
        """Values that no chain goes through: what is read or made by something else."""
        apart = ("product", "convolution")
        read = {v for kernel in self.record.kernels if kernel.kind in apart for v in kernel.reads}
        return self.stream | self.made_apart | read

    @cached_property
    def chains(self) -> list[Chain]:
        """The chains of the layer; sums into the residual stream end one."""
        kernels = self.record.kernels
        inside = [at for at, kernel in enumerate(kernels) if kernel.kind in BETWEEN]
        root = {at: at for at in inside}

        def top(at: int) -> int:
            while root[at] != at:
                root[at] = root[root[at]]
                at = root[at]
            return at

        for value in self.record.values.keys() - self._ends:
            if self.writers[value] and self.record.values[value].floating:
                together = [at for at in (*self.writers[value], *self.readers[value]) if at in root]
                for one, other in pairwise(together):
                    root[top(one)] = top(other)
        groups: dict[int, list[int]] = defaultdict(list)
        for at in inside:
            groups[top(at)].append(at)
        chains = map(self._chain, groups.values())
        return [each for each in chains if each.reads and each.writes]

    def _chain(self, members: list[int]) -> Chain:
        kernels, floating = self.record.kernels, self.record.values
        written = {value for at in members for value in kernels[at].writes}
        read = {value for at in members for value in kernels[at].reads}
        read -= written - self.made_apart
        among = set(members)
        leaving = {v for v in written if v == self.record.output or v in self.stream
                   or not among.issuperset(self.readers[v])}  # fmt: skip
        entering = frozenset(v for v in read & self.own if floating[v].floating)
        return Chain(
            entering,
            frozenset(v for v in leaving & self.own if floating[v].floating),
            entering & self._needed(members),
            any(kernels[at].name.startswith(ROWS) for at in members),
        )

    def _needed(self, members: list[int]) -> set[int]:
        """What the kernels of a chain that keep their inputs come from."""
        found: set[int] = set()
        for at in reversed(members):
            kernel = self.record.kernels[at]
            if self._keeps(kernel) or found.intersection(kernel.writes):
                found.update(kernel.reads)
        return found

    def _keeps(self, kernel: Kernel) -> bool:
        """Whether its backward needs a floating input of the layer's own."""
        if kernel.name in ("mul", "mul_", "div", "div_"):
            own = [v for v in kernel.reads if v in self.own and self.record.values[v].floating]
            return len(own) > 1 or (kernel.trained and bool(own))
        return kernel.kind != "choice" and kernel.name not in LINEAR
