"""Hypothesis draws the same examples in every run: main cannot fail by luck.

`HYPOTHESIS_PROFILE=nightly pytest` draws new ones: a thousand where a test sets no number, and ten
thousand for every reader of files (`tests/planner/test_fuzz_readers.py`).
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as without a terminal: the workers of pytest-xdist say COLUMNS=80."""
    monkeypatch.delenv("COLUMNS", raising=False)
