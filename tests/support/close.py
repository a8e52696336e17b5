"""Values that are equal but for the rounding of another processor's linear algebra."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass

from pydantic import BaseModel

RELATIVE = 1e-9


def close(one: object, other: object) -> bool:
    """Whether both have the same shape, the same texts, and numbers within 1e-9 of each other.

    Tables of profiles keep numbers as text, so a text that is a number counts as one.
    """
    one, other = _plain(one), _plain(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if _is_list(one) and _is_list(other):
        return len(one) == len(other) and all(map(close, one, other))
    try:
        return math.isclose(float(one), float(other), rel_tol=RELATIVE)
    except (TypeError, ValueError):
        return bool(one == other)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
