"""What runs were off by when they were first predicted, beside now."""

from benchmarks.accuracy.blind import blind, farthest, table
from benchmarks.pages import ROOT
from meshplan.hardware_profiles.errors.left_out_runs import First, Ratio, firsts, ratios


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


def test_the_farthest_sources_come_first() -> None:
    """Measured 2 and 0.8 times as long is -50 and +25 %, whose median error is 37.5 %, 38 % as it
    is printed; layouts left out alone are no new source.
    """
    now = [
        left_out("a1", "a", "source", 1.25),
        left_out("b1", "b", "framework", 2.0),
        left_out("b2", "b", "framework", 0.8),
        left_out("c1", "c", "layout", 9.0),
    ]
    assert farthest(now).splitlines()[2:] == [
        "| `b` | generic | 2 | 38% | -50% to +25% |",
        "| `a` | generic | 1 | 20% | -20% to -20% |",
    ]


def test_the_page_has_the_tables_of_today() -> None:
    """docs/accuracy.md shows what the files that ship say, in both tables."""
    page = (ROOT / "docs/accuracy.md").read_text("utf-8")
    for each in (table(blind(firsts(), ratios())), farthest(ratios())):
        assert each in page, "python -m benchmarks.accuracy.blind"
