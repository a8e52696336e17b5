"""Ranges of the next batch of sources: what came before it makes them, and nothing else."""

from collections import Counter

import numpy as np
import pytest
from nightly import later

from benchmarks.accuracy.backtest import (
    as_printed,
    correlation,
    intraclass,
    judged,
    regraded,
    share,
    table,
)
from benchmarks.pages import ROOT
from meshplan.hardware_profiles.errors.left_out_errors import WITHIN
from meshplan.hardware_profiles.errors.left_out_runs import First, Ratio, firsts, ratios


def alone(run: str, suite: str, step_time: float) -> Ratio:
    """A run whose source was left out with its engine."""
    return Ratio(
        run=run, engine="deepspeed", gpu="hopper", suite=suite, left_out="framework", gpus=8,
        precision="bf16", model="dense", step_time=step_time, reserved=None,
    )  # fmt: skip


def test_a_batch_has_seen_what_came_before_it_alone() -> None:
    """Nine sources were fitted to, 10 % off; a later one was 40 % off at first and is 10 % now. The
    first batch's range is that of the nine; the second's has the first as well: 0.8 x 11 = 8.8,
    within the nine, but not with a second such source in the same batch, 0.8 x 12 = 9.6.
    """
    fitted = [alone(f"f{n}", f"fitted{n}", 1.1) for n in range(9)]
    later = [alone("a", "a", 1.1), alone("b", "b", 1.1), alone("c", "c", 1.1)]
    first = [First("a", 1.4, "1"), First("b", 1.4, "1"), First("c", 1.3, "2", 0.9, 1.2)]
    a, b, c = judged(first, [*fitted, *later])
    assert (a.around.high, b.around.high, c.around.high) == pytest.approx((1.1, 1.1, 1.4))
    assert [each.inside for each in (a, b, c)] == [False, False, True]
    last = table([a, b, c]).splitlines()[-2:]
    assert last[0].startswith("| 2 | 1 | 1 | 100% | 100% |")
    assert last[0].endswith("| 0 of 1 |")
    assert last[1].startswith("| **all** | 3 | 3 | 33% | 33% |")


def test_a_source_of_two_batches_is_judged_in_the_first_and_known_after_the_second() -> None:
    """Nine sources 10 % off, one 40 % off in two batches: neither its own runs nor another source
    of the second batch have seen it, a source of the third has.
    """
    fitted = [alone(f"f{n}", f"fitted{n}", 1.1) for n in range(9)]
    later = [alone("a1", "a", 1.1), alone("a2", "a", 1.1), alone("b", "b", 1.1)]
    first = [First("a1", 1.4, "1"), First("a2", 1.4, "2"), First("b", 1.4, "2")]
    third = First("c", 1.1, "3")
    found = list(judged([*first, third], [*fitted, *later, alone("c", "c", 1.1)]))
    assert [each.around.high for each in found] == pytest.approx([1.1, 1.1, 1.1, 1.4])
    assert [line[:3] for line in table(found).splitlines()[2:5]] == ["| 1", "| 2", "| 3"]


@later(held_by="test_ranges_hold_for_the_next_batch")
def test_runs_of_grade_c_since_were_farther_off() -> None:
    """None of them is counted; each has the error of its first prediction, half of them more than
    that of 8 of 10 others.
    """
    then = {one.run: one.step_time for one in firsts()}
    counted = {run.run for run in ratios()} & set(then)
    gone = {run.run: run.step_time for run in regraded(firsts(), ratios())}
    assert not counted & set(gone)
    assert gone == {run: then[run] for run in gone}
    far = np.quantile(np.abs(np.log([then[run] for run in counted])), 0.8)
    assert np.median(np.abs(np.log(list(gone.values())))) > far


def test_correlation_by_hand() -> None:
    """Two groups of two, 1 1 and 0 0: nothing within, all between. 1 0 and 1 0: within 1/2 and
    nothing between, so -1/2 / (0 + 1/2).
    """
    assert intraclass([[1, 1], [0, 0]]) == pytest.approx(1.0)
    assert intraclass([[1, 0], [1, 0]]) == pytest.approx(-1.0)


def test_ranges_hold_for_the_next_batch() -> None:
    """8 of 10 runs of all batches, within 3 points, and 73 % of their sources, each alike; what
    runs of one source share is what the ranges suppose. docs/accuracy.md has the table.
    """
    runs = list(judged(firsts(), ratios()))
    assert share(runs) == pytest.approx(0.8, abs=0.03)
    sources = Counter(each.run.suite for each in runs)
    alike = sum(each.inside / sources[each.run.suite] for each in runs) / len(sources)
    assert alike >= 0.73
    assert correlation(runs) == pytest.approx(WITHIN["step_time"], abs=0.05)
    assert table(runs) in (ROOT / "docs/accuracy.md").read_text("utf-8")
    printed = [each for each in runs if each.first.low is not None]
    largest, _ = Counter(each.run.suite for each in printed).most_common(1)[0]
    others = [each for each in printed if each.run.suite != largest]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    of_all, of_others = (_said(as_printed(some)) for some in (printed, others))
    assert f"last {len(printed)} runs" in readme
    assert f"{of_all.replace(f' of {len(printed)}', '')} lay inside" in readme
    assert of_others in readme


def _said(inside_of: str) -> str:
    """3 of 4 as README says it: 3 of 4 (75 %)."""
    inside, _, number = inside_of.partition(" of ")
    return f"{inside_of} ({100 * int(inside) / int(number):.0f} %)"
