"""The base of everything that people write: what a file may say, and the bounds of its numbers."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

MOST_COUNTED = 10**9  # of anything in a profile; a bound keeps a typo from being computed with
Count = Annotated[int, Field(gt=0, le=MOST_COUNTED)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """Read from a file by people: immutable, numbers are finite, an unknown key is an error.

    What checks a class is built when it is first asked for: those inside another are part of its.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`gpus = true` is not 1, which pydantic would make of it."""
        if _of_numbers(cls, str(info.field_name)) and _holds_truth(value):
            raise ValueError("a number is wanted, not true or false")
        return value


def _holds_truth(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_truth, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_truth, value))
    return isinstance(value, bool)


@cache
def _of_numbers(kind: type[BaseModel], name: str) -> bool:
    """Whether a field holds numbers alone, or texts and nothing beside them."""
    leaves = {*_leaves(kind.model_fields[name].annotation)}
    return bool(leaves & {int, float}) and leaves <= {int, float, str, type(None)}


def _leaves(annotation: Any) -> Iterator[Any]:
    inside = get_args(annotation)
    if not inside:
        yield annotation
    for each in inside:
        yield from _leaves(each) if isinstance(each, type) or get_args(each) else ()
