"""How many random cases a test takes: a few with every change, many nightly."""

import os

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def cases(every_change: int, nightly: int) -> int:
    """The number for this run."""
    return nightly if NIGHTLY else every_change
