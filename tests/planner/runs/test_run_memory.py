"""Of which rank a row's memory is, which rows say that a run fitted, and what gathered rows say."""

import csv

import pytest
from rows import ROW

from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.runs.accuracy import fitting
from meshplan.planner.runs.runs import BUILT_IN, run_of
from meshplan.planner.runs.validate import Predicted, memory_gib, predict_rows, step_model

PIPELINED = ROW | {"pp": "4", "tp": "1", "dp": "2", "gpus": "8", "schedule": "1f1b", "zero": "1",
                   "global_batch": "32", "micro_batch": "1", "recompute": "none"}  # fmt: skip


@pytest.mark.parametrize(("word", "ranks"), [("0", (0,)), ("last", (3,)), ("", (0, 1, 2, 3))])
def test_memory_is_of_the_rank_that_the_row_speaks_of(word: str, ranks: tuple[int, ...]) -> None:
    """The first of four stages holds four micro-batches, the last one; without a word the most."""
    run = run_of(PIPELINED | {"memory_of": word})
    model = step_model(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning)
    each = [float(rank.allocated) / 2**30 for rank in model.memory()]
    assert len(each) == 4
    assert len(set(each)) > 1
    found, _ = memory_gib(run, model)
    assert found == pytest.approx(max(each[rank] for rank in ranks))


@pytest.mark.parametrize(("stated", "counted"), [
    ({"step_time_s": "1.0"}, 1), ({"step_time_s": "", "reserved_gib": "9"}, 1),
    ({"step_time_s": "", "allocated_gib": "9"}, 1), ({"step_time_s": ""}, 0),
    ({"step_time_s": "", "reserved_gib": "9", "oom": "1"}, 0),
])  # fmt: skip
def test_a_peak_of_memory_says_that_a_run_ran(stated: dict[str, str], counted: int) -> None:
    """A time does too; a row with neither says nothing, and one out of memory did not."""
    rows = list(predict_rows([ROW | stated]))
    assert fitting(rows).fitting == counted
    assert fitting(rows).out_of_memory == int("oom" in stated)


def test_megatrons_own_tests_are_met_within_a_tenth() -> None:
    """Peaks of the last rank of its release tests, to which nothing was fitted: 15B over eight
    tensor-parallel ranks and over two virtual stages, Mixtral 8x22B over eight stages, where the
    fullest rank would hold twice as much.
    """
    with (BUILT_IN.parent / "elsewhere.csv").open(encoding="utf-8", newline="") as file:
        cells = [row for row in csv.DictReader(file) if row["suite"] == "mcorerelease"]
    found = [row for row in predict_rows(cells) if isinstance(row, Predicted)]
    assert len(found) == 3
    for row in found:
        assert row.allocated_gib == pytest.approx(row.run.measured.allocated_gib, rel=0.1)
    pipelined = [row | {"memory_of": ""} for row in cells if row["pp"] == "8"]
    (fullest,) = predict_rows(pipelined)
    assert fullest.allocated_gib > 1.8 * float(pipelined[0]["allocated_gib"])
