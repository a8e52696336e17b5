"""The few functions that let one formula take a single layout or a column of many, and `Adds`.

A formula over one layout works on python floats, over many on numpy arrays; numpy on single numbers
is ten times slower than python, so these choose by what they are given.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import add, attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Number = float | NDArray[np.floating[Any]]
Condition = bool | NDArray[np.bool_]


class Adds:
    """A dataclass of numbers, or of others that add: it adds field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names, values = self._columns()
        return type(self)(**dict(zip(names, map(add, values(self), values(other)), strict=True)))

    def __mul__(self, count: Number) -> Self:
        names, values = self._columns()
        return type(self)(**{name: n * count for name, n in zip(names, values(self), strict=True)})

    def at(self, place: int) -> Self:
        """What its columns say of one place; a single number is that of all."""
        names, values = self._columns()
        return type(self)(
            **{name: at(n, place) for name, n in zip(names, values(self), strict=True)}
        )

    @classmethod
    @cache
    def _columns(cls) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
        """The names of a class's fields, and a function that reads them all at once."""
        names = tuple(field.name for field in fields(cls))  # type: ignore[arg-type]
        return names, attrgetter(*names)


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
    """`values.min(axis)` of an axis of few places: numpy's own loop over so short an axis takes
    five to forty times as long.
    """
    return _along(np.minimum, values, axis)


def most_along(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """`values.max(axis)` of an axis of few places."""
    return _along(np.maximum, values, axis)


def _along(choose: np.ufunc, values: NDArray[Any], axis: int) -> NDArray[Any]:
    first, *others = np.moveaxis(values, axis, 0)
    found = np.array(first)
    for each in others:
        choose(found, each, out=found)
    return found
