"""What sources that share something are off by in common."""

import pytest

from benchmarks.accuracy.shared_errors import Off, correlation, offs, table
from benchmarks.pages import ROOT
from meshplan.hardware_profiles.errors.left_out_runs import Ratio

PAIRS = [Off("a", "x", 0.2), Off("a", "y", 0.2), Off("b", "x", -0.2), Off("b", "y", -0.2)]


def test_pairs_that_agree_correlate_fully() -> None:
    """Both of a are 0.2 above the median of all, which is 0, both of b as far below."""
    assert correlation(PAIRS)[::2] == (pytest.approx(1.0), 4)


def test_what_all_share_is_no_correlation() -> None:
    """In one group of all four, the fellows of a 0.2 have a mean of (0.2 - 0.2 - 0.2) / 3, a third
    of it with the other sign; errors that are all 0.1 larger change nothing.
    """
    for common in (0.0, 0.1):
        one_group = [Off("all", str(i), off.error + common) for i, off in enumerate(PAIRS)]
        assert correlation(one_group).value == pytest.approx(-1 / 3)


def test_sources_of_one_owner_are_no_evidence() -> None:
    """Only the pair of b has two owners."""
    mine = [Off("a", "x", 0.2), Off("a", "x", 0.2), *PAIRS[2:], Off("c", "z", 0.0)]
    assert correlation(mine).sources == 2


def test_a_source_counts_once_for_what_its_runs_share() -> None:
    """Its median: of ln 1, ln e and ln e^4 it is 1; its run on another family is another's."""
    gpus = ["hopper", "hopper", "hopper", "ampere"]
    runs = [
        Ratio(run=str(i), engine="generic", gpu=gpu, suite="s", left_out="framework", gpus=8,
              precision="bf16", model="dense", step_time=1.0, reserved=None)
        for i, gpu in enumerate(gpus)
    ]  # fmt: skip
    times = zip(runs, (1.0, 2.718281828, 54.59815, 1.0), strict=True)
    found = offs(times, lambda ratio: ratio.gpu, {"s": "owner"})
    assert [(off.shared, off.owner) for off in found] == [("hopper", "owner"), ("ampere", "owner")]
    assert [off.error for off in found] == [pytest.approx(1.0), 0.0]


def test_the_page_has_the_table_of_today() -> None:
    """docs/accuracy_tables.md shows what the files that ship say."""
    page = (ROOT / "docs/accuracy_tables.md").read_text("utf-8")
    assert table() in page, "python -m benchmarks.accuracy.shared_errors"
