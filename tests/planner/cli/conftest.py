"""What tests of the command line share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard, also by what a shell started in the background, which begins without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
