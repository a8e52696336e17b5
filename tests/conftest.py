"""Hypothesis draws the same examples in every run: main cannot fail by luck.

`HYPOTHESIS_PROFILE=nightly pytest` draws new ones, ten times as many where a test sets no number.
"""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
