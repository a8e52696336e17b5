"""Hypothesis draws the same examples in every run, whichever tests ran before (`conftest.py`)."""

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CONSTANTS = "A = [" + ", ".join(str(1_000_003 * n) for n in range(1, 300)) + "]\n"


def drawn() -> list[int]:
    """The examples of one property; the same function, so the same seed each time."""
    seen = []

    @settings(max_examples=300, database=None)
    @given(st.integers())
    def look(number: int) -> None:
        seen.append(number)

    look()
    return seen


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="nightly draws new ones")
def test_no_example_depends_on_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module more, full of constants: none of them is drawn."""
    before = drawn()
    (tmp_path / "full_of_constants.py").write_text(CONSTANTS)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_constants")
    assert drawn() == before
