"""How seconds are written for people."""

import pytest

from meshplan.costmodels.units import format_seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        pytest.param(1.5, "1.50 s", id="seconds"),
        pytest.param(0.0174, "17.4 ms", id="milliseconds"),
        pytest.param(-0.0174, "-17.4 ms", id="a loss keeps its unit"),
        pytest.param(-1e-8, "0 us", id="no sign before a rounded zero"),
        pytest.param(0.0, "0 us", id="zero"),
    ],
)
def test_seconds_by_hand(seconds: float, shown: str) -> None:
    """Three digits in the unit that suits the size, whatever the sign."""
    assert format_seconds(seconds) == shown
