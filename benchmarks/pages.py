"""Pages of the documentation, and the blocks between markers that commands write into them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "docs" / "accuracy_tables.md"


def put(path: Path, marker: str, text: str) -> None:
    """Replace what stands between a marker and its end, which the page has once."""
    old = path.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- end {marker} -->)", re.DOTALL)
    new, found = place.subn(lambda m: f"{m[1]}{text}\n{m[2]}", old)
    assert found == 1, f"{path}: {found} places <!-- {marker} -->"
    path.write_text(new, encoding="utf-8")


def show(path: Path, marker: str, text: str) -> None:
    """Print what `put` puts into a page."""
    print(text)
    put(path, marker, text)
