"""What people write in files: numbers, switches and texts are not taken for one another."""

from typing import Any

import pytest
from pydantic import ValidationError

from meshplan.hardware_profiles.frozen import Count, Frozen


class _Written(Frozen):
    gpus: Count = 1
    price: float | None = None
    sizes: tuple[int, ...] = ()
    rates: dict[str, float] = {}
    fuses: bool = False
    fraction: bool | float = 0.0
    per_name: dict[str, bool] = {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpus", True), ("price", False), ("sizes", [8, True]), ("rates", {"bf16": True})],
)
def test_a_switch_is_no_number(name: str, value: Any) -> None:
    """pydantic would make 1 of `gpus = true`."""
    with pytest.raises(ValidationError, match="a number is wanted, not true or false"):
        _Written(**{name: value})


def test_switches_and_numbers_are_what_they_are() -> None:
    made = _Written(gpus=8, sizes=(8, 16), fuses=True, fraction=True, per_name={"a": True})
    assert (made.gpus, made.fuses, made.fraction, made.per_name["a"]) == (8, True, True, True)
    assert made.sizes == (8, 16)
