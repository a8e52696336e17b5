"""What the page on `learn` says of its table in all is of the table's own lines."""

from benchmarks.accuracy.learn_summary import lines_of, summary
from benchmarks.pages import ROOT


def line(name: str, before: float, drawn: float, asked: float) -> str:
    return f"| {name} | e | g | 4 | {before}% | {drawn}% | 1% | 1% | {asked}% | 1% | 80% |"


def test_the_page_sums_up_its_own_lines() -> None:
    page = (ROOT / "docs/learn.md").read_text("utf-8")
    assert summary(lines_of(page)) in page, "python -m benchmarks.accuracy.learn"


def test_means_and_who_is_near_and_worse() -> None:
    """Three lines by hand; the near one of all, 10 %, is not far off and not counted."""
    said = summary([line("a", 30, 6, 4), line("b", 50, 51, 7), line("c", 10, 3, 1)])
    assert "| **mean of 3** | | | | 30.0% | 20.0% | | | 4.0% | | 80% |" in said
    assert "| **median** | | | | 30.0% | 6.0% | | | 4.0% | | 80% |" in said
    assert "Of 2 that begin beyond 20% two drawn runs bring 1 below 8%, two asked for 2" in said
    assert "both do so of `a`." in said
    assert said.endswith("worse**: `b` (50% to 51% drawn, 7% asked for).")
