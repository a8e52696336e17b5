"""Many layouts at once: the degrees of `Layout` as parallel integer arrays.

The cost formulas take either one `Layout` or `Layouts`; they use the letters that both share, so a
formula is written once and prices one layout or a million.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.elementwise import Number
from meshplan.hardware_profiles.dataclass import dataclass

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Values = TypeVar("Values", Ints, Floats)
LARGEST_TABLE = 8  # entries for each value; above this a look-up table is slower than sorting


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts as columns, each of length N. Names are those of `Layout`; stages are decided later.
    A space keeps them `packed`: what is made of them is made of those that are taken, in 64 bits.

    virtual_stages  1, or 2 for any larger number, where that changes a price; 0 where it does not
    schedule        index of a schedule, a V shape standing for all of them and 1F1B for the others,
                    where that changes a price; -1 where it does not
    shard_group     resolved: ranks over which ZeRO shards, never 0
    context_kind, dispatcher
                    1 + the index in `CONTEXT_KINDS` and in `DISPATCHERS`; 0: the engine's own
    """

    data_parallel: Ints
    tensor_parallel: Ints
    pipeline_parallel: Ints
    virtual_stages: Ints
    context_parallel: Ints
    expert_parallel: Ints
    expert_tensor_parallel: Ints
    sequence_parallel: Ints
    zero_stage: Ints
    shard_group: Ints
    micro_batch_size: Ints
    schedule: Ints
    context_kind: Ints
    dispatcher: Ints
    num_micro_batches: Ints
    optimizer_offload: Floats
    activation_offload: Floats

    def __len__(self) -> int:
        return len(self.data_parallel)

    @property
    def stage_ranks(self) -> Ints:
        """Accelerators of one pipeline rank of each row."""
        return self.data_parallel * self.context_parallel * self.tensor_parallel

    @property
    def world_size(self) -> Ints:
        """Accelerators of each row."""
        return self.stage_ranks * self.pipeline_parallel

    def take(self, rows: Ints) -> "Layouts":
        """The layouts at `rows`, in 64 bits: products of their columns may be large."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self)}
        return Layouts(**{
            name: column.astype(np.int64, copy=False) if column.dtype.kind == "i" else column
            for name, column in columns.items()
        })  # fmt: skip

    def packed(self) -> "Layouts":
        """The same in as few bytes as hold them: a column that is one number is that number."""
        return Layouts.joined([self])

    @classmethod
    def joined(cls, parts: Sequence["Layouts"]) -> "Layouts":
        """All of `parts`, packed."""
        columns = dict[str, Any]()
        for name in (f.name for f in fields(cls)):
            of_each = [getattr(each, name) for each in parts]
            columns[name] = packed_column(np.concatenate(of_each) if len(parts) > 1 else of_each[0])
        return cls(**columns)

    def __getstate__(self) -> tuple[int, list[Any]]:
        """How many, and the columns: a column that is one number is sent as that number."""
        columns = [getattr(self, f.name) for f in fields(self)]
        return len(self), [
            each[0] if len(each) and each.strides == (0,) else each for each in columns
        ]

    def __setstate__(self, state: tuple[int, list[Any]]) -> None:
        number, columns = state
        for field, column in zip(fields(self), columns, strict=True):
            whole = np.broadcast_to(column, number) if np.ndim(column) == 0 else column
            object.__setattr__(self, field.name, whole)


def packed_column(column: Values) -> Values:
    """`column` in as few bits as hold its whole numbers; one row where all are the same."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(column[0].copy(), column.shape)  # not a view, which would keep all
    if column.dtype.kind != "i":
        return column
    least, most = int(column.min(initial=0)), int(column.max(initial=0))
    for bits in (np.int8, np.int16, np.int32):
        if np.iinfo(bits).min <= least and most <= np.iinfo(bits).max:
            found: Values = column.astype(bits, copy=False)
            return found
    return column


def distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Rows of `columns` that differ from each other, and each row's index among them: in the order
    of the columns' values, of which as many are one number at a time as a table has room for.
    """
    key, most = columns[0].astype(np.int64, copy=False), int(columns[0].max(initial=0))
    for column in columns[1:]:
        numbers = int(column.max(initial=0)) + 1
        if numbers > LARGEST_TABLE * len(key):  # mostly few, as far apart as shares are
            each, column = numbered(column)
            numbers = len(each)
        if numbers == 1:
            continue
        if (most + 1) * numbers > LARGEST_TABLE * len(key):
            key = _codes(key)
            most = int(key.max(initial=0))
        key, most = key * numbers + column, (most + 1) * numbers - 1
    key = _codes(key)
    first = np.empty(key.max(initial=-1) + 1, np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    return first, key


def each_once(values: Values) -> Values:
    """The different values, ascending. `numpy.unique` gives the same, but imports `numpy.ma` where
    nothing more is asked of it, which takes a hundredth of a short search.
    """
    ordered = np.sort(values, axis=None)
    new = np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])
    found: Values = ordered[new]
    return found


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """The different values, ascending, and which of them each one is. `numpy.unique` gives the
    same, but sorts the places too, which takes twice as long where few values differ.
    """
    each = each_once(values)
    return each, np.searchsorted(each, values).astype(np.int64, copy=False)


def one_of(values: Ints | Number, few: Iterable[int]) -> Bools:
    """Where `values` are one of a few numbers. `numpy.isin` gives the same, but may sort, by what
    imports `numpy.ma`, as `each_once` says.
    """
    found = np.zeros(np.shape(values), np.bool_)
    for each in few:
        found |= values == each
    return found


def thousandths(fractions: Floats) -> Ints:
    """`fractions` as whole numbers, to tell rows apart by them."""
    return np.rint(fractions * 1000).astype(np.int64)


def _codes(values: Ints) -> Ints:
    """0, 1, 2 ... in place of the distinct `values` (not negative), in their order."""
    most = int(values.max(initial=0))
    if most > LARGEST_TABLE * len(values):
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    present = np.zeros(most + 1, np.bool_)
    present[values] = True
    codes = np.cumsum(present, dtype=np.int32) - np.int32(1)
    return codes[values].astype(np.int64)
