"""Hypothesis draws the same examples in every run: main cannot fail by luck.

`HYPOTHESIS_PROFILE=explore pytest` draws new ones, ten times as many where a test sets no number.
`HYPOTHESIS_PROFILE=nightly pytest tests/planner/test_fuzz_readers.py` gives every reader of files
ten thousand new ones.
"""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
