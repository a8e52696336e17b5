"""What the table of sources that two runs were learnt from says in all, from its own lines."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median

FAR, NEAR = 0.2, 0.08
"""Where a source begins far off, and what two runs are asked to bring it below."""
BEFORE, DRAWN, ASKED, INSIDE = 4, 5, 8, 10  # cells of a line


def lines_of(page: str) -> list[str]:
    """The sources' lines of the table on a page."""
    text = page.partition("<!-- learn table -->")[2].partition("<!-- end")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines[1:] if not line.startswith("| **")]


def summary(lines: Sequence[str]) -> str:
    """The mean and the median line, and a sentence on the sources that begin far off."""
    every = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    numbers = [{at: _number(cells[at]) for at in (BEFORE, DRAWN, ASKED, INSIDE)} for cells in every]
    far = [
        (cells[0], each) for cells, each in zip(every, numbers, strict=True) if each[BEFORE] > FAR
    ]
    below = {at: sum(each[at] < NEAR for _, each in far) for at in (DRAWN, ASKED)}
    both = ", ".join(f"`{name}`" for name, each in far if max(each[DRAWN], each[ASKED]) < NEAR)
    worse = ", ".join(
        f"`{name}` ({each[BEFORE]:.0%} to {each[DRAWN]:.0%} drawn, {each[ASKED]:.0%} asked for)"
        for name, each in far
        if max(each[DRAWN], each[ASKED]) > each[BEFORE]
    )
    return "\n".join([
        _line(f"mean of {len(every)}", mean, numbers),
        _line("median", median, numbers),
        "",
        f"Of {len(far)} that begin beyond {FAR:.0%} two drawn runs bring {below[DRAWN]} below "
        f"{NEAR:.0%}, two asked for {below[ASKED]}; both do so of {both}. **Two runs can make a "
        f"stranger worse**: {worse}.",
    ])  # fmt: skip


def _line(
    name: str, take: Callable[[Sequence[float]], float], numbers: Sequence[Mapping[int, float]]
) -> str:
    before, drawn, asked, inside = (
        take([each[at] for each in numbers]) for at in (BEFORE, DRAWN, ASKED, INSIDE)
    )
    return f"| **{name}** | | | | {before:.1%} | {drawn:.1%} | | | {asked:.1%} | | {inside:.0%} |"


def _number(cell: str) -> float:
    return float(cell.rstrip("%")) / 100
