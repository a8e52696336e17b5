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


def later(held_by: str) -> pytest.MarkDecorator:
    """A test that runs nightly. With every change `held_by` holds the same on less: a test of its
    file, or `path::name` below `tests`.
    """
    return pytest.mark.nightly(held_by=held_by)


def spread(number: int, of: int) -> set[int]:
    """Places of `number` among `of` in a row, evenly: the ends, and what lies between."""
    if number >= of:
        return set(range(of))
    return {place * (of - 1) // max(1, number - 1) for place in range(number)}


def thin(items: list[pytest.Item]) -> None:
    """Of the cases of each test marked `few` all but so many are left to the nightly run. One that
    is asked for by its name alone runs.
    """
    cases = dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("nightly"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for some in cases.values():
        mark = some[0].get_closest_marker("few")
        kept = spread(mark.args[0] if mark else len(some), len(some))
        for place, item in enumerate(some):
            if place not in kept:
                item.add_marker("nightly")
