"""Freed pages go back to the system where a process is large, and only there."""

import gc
import json
import os
import subprocess
import sys

import pytest

from meshplan.planner.processes import free_pages

FREED = """
import json, sys
import numpy as np
from meshplan.planner.processes import free_pages

free_pages.LARGE_BYTES = int(sys.argv[1])
parts = [np.ones(8192) for _ in range(2048)]  # 64 KiB each, from the heap
del parts[:-1]  # the last one keeps what lies below it from being given back
before = free_pages.resident_bytes()
free_pages.give_back_freed()
print(json.dumps([before, free_pages.resident_bytes()]))
"""
FREED_BYTES = 2047 * 8192 * 8


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
@pytest.mark.parametrize(("large", "gives_back"), [(0, True), (2**40, False)])
def test_what_is_free_is_given_back_by_a_large_process(large: int, gives_back: bool) -> None:
    """128 MiB of small arrays below one that stays."""
    if free_pages._of_libc(free_pages.TRIM) is None:
        pytest.skip("not glibc")
    found = subprocess.run(
        [sys.executable, "-c", FREED, str(large)], capture_output=True, text=True, check=True
    )
    before, after = json.loads(found.stdout)
    assert (before - after > 0.8 * FREED_BYTES) == gives_back


CYCLE = """
import gc, json, sys, weakref
from meshplan.planner.processes import free_pages

class Node:
    pass

gc.disable()
free_pages.LARGE_BYTES = int(sys.argv[1])
node = Node()
node.own, known = node, weakref.ref(node)
del node
free_pages.give_back_freed()
held = known() is not None
free_pages.give_back_freed(cycles=True)
print(json.dumps([held, known() is not None]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
@pytest.mark.parametrize("large", [0, 2**40])
def test_what_only_itself_refers_to_is_freed_where_that_is_asked(large: int) -> None:
    """By a large process."""
    if free_pages._of_libc(free_pages.TRIM) is None:
        pytest.skip("not glibc")
    found = subprocess.run(
        [sys.executable, "-c", CYCLE, str(large)], capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout) == [True, large > 0]


AGAIN = """
import resource, sys
import numpy as np
from meshplan.planner.processes import free_pages

def block():
    return len([np.ones(2**17) for _ in range(8)])  # 1 MiB each

if sys.argv[1] == "kept":
    free_pages.keep_freed()
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 8 * 256  # of a block


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is kept")
@pytest.mark.parametrize(("asked", "kept"), [("kept", True), ("", False), ("user", False)])
def test_pages_of_one_block_serve_the_next(asked: str, kept: bool) -> None:
    """Of 20 blocks, each of which is freed, at most the first faults its pages in; not where the
    user keeps less.
    """
    if free_pages._of_libc("mallopt") is None or free_pages._of_libc(free_pages.TRIM) is None:
        pytest.skip("not glibc")
    users = {free_pages.SET_BY_USER: "131072"} if asked == "user" else {}
    found = subprocess.run(
        [sys.executable, "-c", AGAIN, "kept" if asked else ""],
        capture_output=True, text=True, check=True, env={**os.environ, **users},
    )  # fmt: skip
    assert (int(found.stdout) <= 2 * PAGES) == kept


def test_another_library_has_nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything kept or done on another system."""
    monkeypatch.setattr(free_pages, "LARGE_BYTES", 0)
    monkeypatch.setattr(free_pages, "_of_libc", lambda name: None)
    free_pages.give_back_freed()
    free_pages.keep_freed()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(free_pages, "resident_bytes", lambda: pytest.fail("not asked"))
    free_pages.give_back_freed()


def test_a_search_looks_seldom_for_what_only_itself_refers_to() -> None:
    """Among 20,000 new lists not once."""
    before, looks = gc.get_threshold(), list[str]()
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        free_pages.collect_seldom()
        gc.collect()
        looks.clear()
        assert len([[] for _ in range(20_000)]) == 20_000
        assert not looks
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
