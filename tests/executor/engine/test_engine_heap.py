"""What the allocator has handed out, against tensors of known size."""

import subprocess
import sys
import time

import pytest
import torch

from meshplan.executor.engine.watch.heap import Heap

MIB = 2**20


def test_the_peak_is_that_of_the_tensors() -> None:
    """48 MiB that were alive at once count although they are gone at the end; later ones do not."""
    heap = Heap()
    with heap.watched():
        first = torch.ones(32 * MIB // 4)
        second = torch.ones(16 * MIB // 4)
        time.sleep(0.5)
        del first, second
    after = torch.ones(64 * MIB // 4)
    assert heap.peak_bytes == pytest.approx(48 * MIB, rel=0.02)
    assert after.numel()


def test_what_was_there_before_does_not_count() -> None:
    """The context (libraries, 64 MiB of tensors) is not the model's."""
    before = torch.ones(64 * MIB // 4)
    heap = Heap()
    with heap.watched():
        own = torch.ones(8 * MIB // 4)
        time.sleep(0.5)
    assert heap.peak_bytes == pytest.approx(8 * MIB, rel=0.05)
    assert before.numel() > own.numel()


def test_freed_memory_is_kept() -> None:
    """64 MiB come from a mapping that goes when they do; once told, from the heap that stays. Of
    numpy, which takes them from the C library as torch does and is there in a tenth of the time.
    """
    script = """
import numpy as np
from meshplan.executor.engine.watch import heap
def mapped_bytes():
    return heap.Heap()._ask().hblkhd
first = np.ones(2**23)
before = mapped_bytes()
assert before >= first.nbytes, before
heap.keep_freed_memory()
second = np.ones(2**23)
assert mapped_bytes() == before, mapped_bytes()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
