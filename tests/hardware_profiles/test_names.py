"""Which names were most likely meant."""

import pytest

from meshplan.hardware_profiles.names import near_names

KNOWN = ("ring-of-eight", "ring-16", "ring-4", "rung", "tree", "ring-8")


@pytest.mark.parametrize(("text", "near"), [
    pytest.param("ring", ["ring-4", "ring-8", "ring-16"], id="three that go on"),
    pytest.param("RING-1", ["ring-16", "ring-8", "ring-4"], id="then the nearest, each once"),
    pytest.param("runk", ["rung"], id="a slip"),
    pytest.param("", [], id="nothing is meant by nothing"),
])  # fmt: skip
def test_names_that_go_on_come_before_those_of_as_many_letters(text: str, near: list[str]) -> None:
    """Of what is begun the shortest first."""
    assert near_names(text, KNOWN) == near
