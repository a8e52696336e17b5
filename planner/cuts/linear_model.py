"""A linear program as the message that OR-Tools' solvers load, written here.

`Solver.LoadModelFromProto` reads what an object's `SerializeToString` gives. OR-Tools' own classes
for it need `google.protobuf`, whose import takes longer than most programs (65 processor-
milliseconds, 2026-11-28). Fields by their numbers in OR-Tools 9.15,
ortools/linear_solver/linear_solver.proto:

    MPModelProto       1 maximize, 3 variable, 4 constraint
    MPVariableProto    1 lower_bound, 2 upper_bound, 3 objective_coefficient
    MPConstraintProto  2 lower_bound, 3 upper_bound, 6 var_index, 7 coefficient (both packed)

A field is `number << 3 | type` and its value: type 0 an integer of seven bits a byte, the least
first, 1 a double, 2 so many bytes (protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Sequence
from functools import cache
from struct import Struct, pack

INTEGER, DOUBLE, BYTES = 0, 1, 2


def _tag(number: int, kind: int) -> int:
    return number << 3 | kind


_MAXIMIZE = bytes([_tag(1, INTEGER), 1])
_VARIABLE, _ROW = _tag(3, BYTES), _tag(4, BYTES)
_COLUMN, _ENDS = Struct("<BdBdBd"), Struct("<BdBd")


class LinearModel:
    """Variables, and rows over them; it minimises the sum of their costs unless it `maximizes`."""

    def __init__(self, *, maximizes: bool = False) -> None:
        self._parts = [_MAXIMIZE] if maximizes else []

    def add_variable(self, least: float, most: float, cost: float) -> None:
        """The next column."""
        ends = _tag(1, DOUBLE), least, _tag(2, DOUBLE), most
        self._parts.append(_delimited(_VARIABLE, _COLUMN.pack(*ends, _tag(3, DOUBLE), cost)))

    def add_row(
        self, least: float, most: float, columns: Sequence[int], values: Sequence[float]
    ) -> None:
        """least <= the sum of `values` times `columns` <= most."""
        ends = _ENDS.pack(_tag(2, DOUBLE), least, _tag(3, DOUBLE), most)
        at = _delimited(_tag(6, BYTES), b"".join(map(_varint, columns)))
        each = _delimited(_tag(7, BYTES), pack(f"<{len(values)}d", *values))
        self._parts.append(_delimited(_ROW, ends + at + each))

    def SerializeToString(self) -> bytes:
        """The message."""
        return b"".join(self._parts)


def _delimited(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + _varint(len(content)) + content


@cache
def _varint(number: int) -> bytes:
    """A number of at least 0, seven bits a byte: all bytes but the last say that more follow."""
    more = b""
    while number > 127:
        more, number = more + bytes([number & 127 | 128]), number >> 7
    return more + bytes([number])
