"""How many random cases a test takes: a few with every change, many nightly."""

import os
from typing import Any

import pytest

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def cases(every_change: int, nightly: int) -> int:
    """The number for this run."""
    return nightly if NIGHTLY else every_change


def blocks(every_change: int, *, of: int) -> list[Any]:
    """Blocks of seeds 0 to `of` - 1 as parameters, the first `every_change` without a mark."""
    later = [pytest.param(at, marks=pytest.mark.nightly) for at in range(every_change, of)]
    return [*range(every_change), *later]
