"""What runs were off by when they were first predicted, beside now."""

from benchmarks.accuracy.blind import blind, table
from benchmarks.accuracy.tables import ROOT
from meshplan.hardware_profiles.left_out_runs import First, Ratio, firsts, ratios


def left_out(run: str, suite: str, what: str, step_time: float) -> Ratio:
    """A left-out run whose measured step is `step_time` times the predicted one."""
    return Ratio(
        run=run, engine="generic", gpu="hopper", suite=suite, left_out=what, gpus=8,
        precision="bf16", model="dense", step_time=step_time, reserved=None,
    )  # fmt: skip


def test_suites_count_alike_and_runs_that_are_gone_do_not_count() -> None:
    """Measured 1.25 and 2 times as long as predicted is 20 and 50 % off; suite a has medians of
    20 and 0 %, b of 50 and 20 %; a run that is left out with its source alone counts so.
    """
    first = [First("a1", 1.25, "d1"), First("b1", 2.0, "d2"), First("gone", 9.0, "d1")]
    now = [
        left_out("a1", "a", "source", 1.0),
        left_out("a1", "a", "framework", 2.0),
        left_out("b1", "b", "framework", 1.25),
    ]
    lines = table(blind(first, now)).splitlines()[2:]
    assert lines == [
        "| d1 | 1 | 1 | 20.0% | 0.0% | 20.0% | 0.0% |",
        "| d2 | 1 | 1 | 50.0% | 20.0% | 50.0% | 20.0% |",
        "| **all** | 2 | 2 | 35.0% | 10.0% | 35.0% | 10.0% |",
    ]


def test_the_page_has_the_table_of_today() -> None:
    """docs/accuracy.md shows what the files that ship say."""
    page = (ROOT / "docs/accuracy.md").read_text("utf-8")
    assert table(blind(firsts(), ratios())) in page, "python -m benchmarks.accuracy.blind"
