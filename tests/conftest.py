"""Hypothesis draws the same examples in every run: main cannot fail by luck.

`HYPOTHESIS_PROFILE=nightly pytest` draws new ones: a thousand where a test sets no number, and ten
thousand for every reader of files (`tests/planner/test_fuzz_readers.py`).
"""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
