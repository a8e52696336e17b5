"""How seconds and counts are written for people."""

import pytest

from meshplan.costmodels.units import (
    counted,
    format_bytes,
    format_probability,
    format_seconds,
    parse_headroom,
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        pytest.param(1.5, "1.50 s", id="seconds"),
        pytest.param(13029.21, "13,029 s", id="no hundredths of thousands"),
        pytest.param(999.994, "999.99 s", id="just below a thousand"),
        pytest.param(999.996, "1,000 s", id="rounded up to a thousand"),
        pytest.param(0.0174, "17.4 ms", id="milliseconds"),
        pytest.param(-0.0174, "-17.4 ms", id="a loss keeps its unit"),
        pytest.param(-1e-8, "0 us", id="no sign before a rounded zero"),
        pytest.param(0.0, "0 us", id="zero"),
    ],
)
def test_seconds_by_hand(seconds: float, shown: str) -> None:
    """Three digits in the unit that suits the size, whatever the sign."""
    assert format_seconds(seconds) == shown


def test_bytes_by_hand() -> None:
    """GiB with a mark at the thousands, as counts have one."""
    assert format_bytes(1.5 * 2**30) == "1.5 GiB"
    assert format_bytes(1286.25 * 2**30) == "1,286.2 GiB"
    assert format_bytes(0.06 * 2**30) == "0.1 GiB"
    assert format_bytes(31.5 * 2**20) == "31.5 MiB", "which is no 0.0 GiB"
    assert format_bytes(0) == "0.0 GiB"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8GiB", 8 * 2**30), ("8 GB", 8e9), ("10%", 8e9), ("0%", 0.0), ("0", 0.0), ("2.5%", 2e9)],
)
def test_headroom_of_80_gb(text: str, size_bytes: float):
    """GiB, GB, or a share of the device."""
    assert parse_headroom(text, 80e9) == pytest.approx(size_bytes)


@pytest.mark.parametrize("text", ["", "8", "-1GiB", "100%", "80GB", "ten"])
def test_headroom_must_leave_something(text: str):
    """Anything else is refused by its value."""
    with pytest.raises(ValueError, match=text if text else "not a headroom"):
        parse_headroom(text, 80e9)


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (1024, "1,024 GPUs")]
)
def test_one_is_singular(number: int, shown: str) -> None:
    """The noun follows the number."""
    assert counted(number, "GPU") == shown


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        (0.873, "of 87%"),
        (0.994, "of 99%"),
        pytest.param(0.9999999998, "above 99%", id="nothing is certain"),
        pytest.param(0.002, "below 1%", id="nor excluded"),
    ],
)
def test_a_probability_is_never_certainty(probability: float, said: str) -> None:
    """Rounding must not make a promise."""
    assert format_probability(probability) == said
