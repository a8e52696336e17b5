"""Suites of measured runs that nothing was fitted to: how far off they are."""

import math
import statistics
from collections import defaultdict
from itertools import chain, combinations

from meshplan.hardware_profiles import tunings
from meshplan.planner.runs.accuracy import spread, step_errors
from meshplan.planner.runs.runs import BUILT_IN, read_runs
from meshplan.planner.runs.validate import Predicted, predict_rows

PUBLISHED = BUILT_IN.parent
INTERNLM = PUBLISHED / "internlm.csv"
ELSEWHERE = PUBLISHED / "elsewhere.csv"
SAME = ("gpu", "gpus", "seq_len", "micro_batch", "global_batch", "tp", "pp", "precision")


def test_a_measurement_is_scored_once() -> None:
    """Two pages may tell of one run: where two sources have the same step time within 0.01 %, of
    the same batch on the same GPUs, one of them is of grade C or no row.
    """
    rows = [row for name in ("runs", "elsewhere") for row in read_runs(PUBLISHED / f"{name}.csv")]
    alike: defaultdict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["grade"] != "C" and row["step_time_s"]:
            alike[tuple(row[fact] for fact in SAME)].append(row)
    pairs = chain.from_iterable(combinations(some, 2) for some in alike.values())
    assert [(a["id"], b["id"]) for a, b in pairs if told_twice(a, b)] == []


def told_twice(a: dict[str, str], b: dict[str, str]) -> bool:
    """Of two rows with the same cards and batches."""
    each = (float(row["step_time_s"]) for row in (a, b))
    return a["suite"] != b["suite"] and math.isclose(*each, rel_tol=1e-4)


def test_a_framework_that_nothing_was_fitted_to(capsys):
    """InternLM's runs: the median error is at most 15 %, with no constant of their own."""
    errors = step_errors(list(predict_rows(read_runs(INTERNLM))))
    with capsys.disabled():
        print(f"InternLM, {len(errors)} runs: median {spread(errors).median:.1%}")
    assert not any(path.stem == "internevo" for path in tunings.SHIPPED.glob("*.toml"))
    assert spread(errors).median < 0.15


def test_frameworks_that_stand_in_for_others(capsys):
    """Runs of releases and frameworks that nothing was fitted to, of grade A, priced by the engine
    nearest to them: the median error is at most 10 %, half that of a constant MFU.
    """
    rows = [row for row in read_runs(ELSEWHERE) if row["grade"] == "A"]
    complete = [row for row in predict_rows(rows) if isinstance(row, Predicted)]
    error = spread(step_errors(complete))
    with capsys.disabled():
        print(f"elsewhere, grade A, {error.rows} runs: median {error.median:.1%}")
    assert len(complete) > 40
    assert error.median < 0.10
    simple = [abs(r.simple_step_time_s / r.run.measured.step_time_s - 1) for r in complete]
    assert error.median < statistics.median(simple) / 2


def test_hybrids_that_nothing_was_fitted_to(capsys):
    """Nemotron 3, DeepSeek-V4 and Qwen3.6 in NVIDIA's tables and verification cards, of which
    runs.csv has no row: all are priced, and the median error is at most 20 %, less than that of a
    constant MFU.
    """
    found = list(predict_rows(read_runs(BUILT_IN.parent / "hybrids.csv")))
    assert all(isinstance(row, Predicted) for row in found)
    error = spread(step_errors(found))
    with capsys.disabled():
        print(f"hybrids, {error.rows} runs: median {error.median:.1%}")
    assert error.median < 0.20
    simple = [abs(r.simple_step_time_s / r.run.measured.step_time_s - 1) for r in found]
    assert error.median < statistics.median(simple)


def test_memory_of_adapters_by_pytorchs_kernels(capsys):
    """LitGPT's LoRA of 7B to 13B on one A10G or A100, without checkpoints: what norms,
    rotation and SwiGLU of several kernels keep is counted, and what ran out of memory does.
    """
    rows = [row for row in read_runs(ELSEWHERE) if row["suite"] == "litgptft"]
    found = [row for row in predict_rows(rows) if "nf4" not in row.run.id]
    full = [row for row in found if row.run.measured.oom]
    errors = [
        abs(row.allocated_gib / row.run.measured.allocated_gib - 1)
        for row in found
        if row not in full
    ]
    with capsys.disabled():
        print(f"LitGPT's LoRA, {len(errors)} runs: allocated within {max(errors):.1%}")
    assert len(errors) == 6
    assert max(errors) < 0.05
    assert full
    assert not any(row.fits for row in full)
