"""The few functions that let one formula take a single layout or a column of many, and `Adds`.

A formula over one layout works on python floats, over many on numpy arrays; numpy on single numbers
is ten times slower than python, so these choose by what they are given.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import add, attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Number = float | NDArray[np.floating[Any]]
Condition = bool | NDArray[np.bool_]
FEW = 16


class Adds:
    """A dataclass of numbers, or of others that add: it adds field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        values = self._columns()[0]
        return self._made(map(add, values(self), values(other)))

    def __mul__(self, count: Number) -> Self:
        return self._made([each * count for each in self._columns()[0](self)])

    def at(self, place: int) -> Self:
        """What its columns say of one place; a single number is that of all."""
        return self._made([at(each, place) for each in self._columns()[0](self)])

    def _made(self, values: Iterable[Any]) -> Self:
        """Another of the class, with all of its fields. They are put into its slots: `__init__` of
        a frozen dataclass takes twice as long.
        """
        made = object.__new__(type(self))
        for put, value in zip(self._columns()[1], values, strict=True):
            put(made, value)
        return made

    @classmethod
    @cache
    def _columns(
        cls,
    ) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[Callable[[Any, Any], None], ...]]:
        """A function that reads all fields of an object of this class at once, and for each field
        one that puts it into its slot.
        """
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return attrgetter(*names), tuple(getattr(cls, name).__set__ for name in names)


def at(value: Any, place: int) -> Any:
    """One number of a column, or of what adds."""
    if isinstance(value, Adds):
        return value.at(place)
    return float(value[place]) if isinstance(value, np.ndarray) else value


def where(condition: Condition, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def anywhere(condition: Condition) -> bool:
    """Whether the condition holds of any."""
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)


def everywhere(condition: Condition) -> bool:
    """Whether the condition holds of all."""
    return bool(condition.all()) if isinstance(condition, np.ndarray) else bool(condition)


def plain(values: NDArray[np.float64]) -> Number:
    """A single number as a float, many as they are."""
    return values if values.ndim else float(values)


def maximum(a: Number, b: Number) -> Number:
    """The larger of each pair."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a > b else b


def minimum(a: Number, b: Number) -> Number:
    """The smaller of each pair."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a < b else b


def ceil(a: Number) -> Number:
    """The next whole number up."""
    return np.ceil(a) if isinstance(a, np.ndarray) else float(math.ceil(a))


def floor(a: Number) -> Number:
    """The next whole number down."""
    return np.floor(a) if isinstance(a, np.ndarray) else float(math.floor(a))


def log2(a: Number) -> Number:
    """The logarithm to base 2."""
    return np.log2(a) if isinstance(a, np.ndarray) else math.log2(a)


def least_along(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """`values.min(axis)`: numpy's own loop over an axis of `FEW` places takes up to forty times as
    long.
    """
    return _along(np.minimum, values, axis)


def most_along(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """`values.max(axis)` of such an axis."""
    return _along(np.maximum, values, axis)


def _along(choose: np.ufunc, values: NDArray[Any], axis: int) -> NDArray[Any]:
    if values.shape[axis] > FEW:
        reduced: NDArray[Any] = choose.reduce(values, axis)
        return reduced
    before: tuple[Any, ...] = (slice(None),) * (axis % values.ndim)
    found = np.array(values[(*before, 0)])
    for place in range(1, values.shape[axis]):
        choose(found, values[(*before, place)], out=found)
    return found
