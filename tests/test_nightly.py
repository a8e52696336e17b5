"""What every change leaves to the nightly run: an even part, and something holds it meanwhile."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nightly import spread, thin

TESTS = Path(__file__).parent
LATER = re.compile(r'@later\(\s*held_by="([^"]+)"\s*\)')


@pytest.mark.parametrize(
    ("number", "of", "places"),
    [
        pytest.param(1, 5, {0}, id="1 of 5: the first"),
        pytest.param(2, 5, {0, 4}, id="2 of 5: both ends"),
        pytest.param(3, 6, {0, 2, 5}, id="3 of 6: 0, 2 1/2, 5"),
        pytest.param(4, 4, {0, 1, 2, 3}, id="4 of 4"),
        pytest.param(4, 2, {0, 1}, id="4 of 2: both"),
    ],
)
def test_places_are_spread(number: int, of: int, places: set[int]) -> None:
    """Over the whole row, and as many as were asked for."""
    assert spread(number, of) == places


class Case:
    """Of a test, with the marks that it has."""

    def __init__(self, nodeid: str, **marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, dict[str, Any](marks)

    def get_closest_marker(self, name: str) -> Any:
        """As of pytest's own items."""
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        """As of pytest's own items."""
        self.marks[name] = name


def test_of_each_test_that_is_marked_a_few_cases_stay() -> None:
    """Of two tests each its own; of one whose other cases are nightly anyway, of the rest."""
    few, nightly = pytest.mark.few(2).mark, pytest.mark.nightly.mark
    items = [Case(f"a.py::test_b[{n}]", few=few) for n in range(5)]
    items += [Case(f"a.py::test_c[{n}]", few=few, nightly=nightly) for n in range(3)]
    items += [Case(f"a.py::test_c[{n}]", few=few) for n in range(3, 6)]
    items += [Case(f"a.py::test_d[{n}]") for n in range(3)]
    thin(items)  # type: ignore[arg-type]
    stay = [item.nodeid[6:] for item in items if "nightly" not in item.marks]
    assert stay == [
        "test_b[0]", "test_b[4]", "test_c[3]", "test_c[5]", "test_d[0]", "test_d[1]", "test_d[2]",
    ]  # fmt: skip


def held() -> Iterator[tuple[Path, str]]:
    """File and name of each test that holds, with every change, what another one holds nightly."""
    for path in TESTS.rglob("test_*.py"):
        for named in LATER.findall(path.read_text(encoding="utf-8")):
            file, _, name = named.rpartition("::")
            yield TESTS / file if file else path, name


def test_what_holds_it_meanwhile_runs_with_every_change() -> None:
    """It is there, and is not left to the nightly run itself."""
    found = list(held())
    assert found
    for path, name in found:
        before, defined, _ = path.read_text(encoding="utf-8").partition(f"\ndef {name}(")
        assert defined, (path, name)
        assert "@later(" not in before.rpartition("\n\n\n")[2], (path, name)
