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


@pytest.mark.parametrize(("keeps", "mapped"), [(True, False), (False, True)])
def test_freed_memory_is_kept(keeps: bool, mapped: bool) -> None:
    """64 MiB come from the heap that is kept, and not from a mapping that goes when they do."""
    told = "heap.keep_freed_memory()" if keeps else ""
    script = f"""
import torch
from meshplan.executor.engine.watch import heap
{told}
large = torch.ones(2**24)
before = heap.Heap()._ask().hblkhd
assert (before >= large.nbytes) == {mapped}, before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
