"""`benchmarks.engine.on_gpu` on tiny plans: one table, resumed where it stopped."""

import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from nightly import NIGHTLY
from tiny_runs import CPU

from benchmarks.engine import on_gpu
from benchmarks.engine.on_gpu_plans import Item, items, several
from benchmarks.engine.on_gpu_rows import unsaid
from meshplan.costmodels.layout import check_layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.units import GIB
from meshplan.executor.engine.step.legality import check_engine_layout
from meshplan.executor.launch.results import ComparedPart
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import OneRankRun
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.runs.runs import read_runs
from meshplan.planner.runs.validate import Predicted, predict_rows

ROOT = Path(__file__).parents[3]
DGX = load_cluster("dgx-h100")
DENSE, META, *_ = items()
ANY = ComparedPart(name="step of the plan", unit="s", predicted=1.0, measured=1.0)


@pytest.mark.few(12)
@pytest.mark.parametrize("item", [*items(8), *several(2)], ids=lambda item: item.name)
def test_every_plan_is_one_that_the_engine_runs(item: Item) -> None:
    """At full size and tiny; each first rank is predicted to fit 80 GiB, and there is each rank."""
    for tiny in (False, True):
        plan = item.plan(DGX, tiny=tiny)
        model = model_from_config(plan.model.config, plan.model.name)
        check_layout(plan.layout, model, plan.training)
        check_engine_layout(plan.layout, model, plan.training)
        step = priced(plan, "dgx-h100")
        assert step.reserved_bytes(step.memory()[0]) < (GIB if tiny else 80 * GIB)
        assert max(item.ranks) < plan.layout.world_size


@pytest.mark.parametrize(
    ("devices", "spanned"), [(1, 0), (2, 2), (3, 2), (8, 8), (12, 8)],
    ids=["1: none", "2", "3: 2", "8", "12: 8"],
)  # fmt: skip
def test_plans_over_a_host_span_the_largest_power_of_two(devices: int, spanned: int) -> None:
    """All of them do, and each is asked for together and for a rank of its first and last stage."""
    found = list(several(devices))
    assert {item.layout.world_size for item in found} == ({spanned} if spanned else set())
    assert all(item.together for item in found)
    assert all(len(item.ranks) == min(2, item.layout.pipeline_parallel) for item in found)
    for item in found:
        stages, ranks = item.layout.pipeline_parallel, item.layout.world_size
        assert [rank * stages // ranks for rank in item.ranks] == sorted({0, stages - 1})


@pytest.mark.nightly
def test_plans_of_two_devices_run_alone_and_together(tmp_path: Path) -> None:
    """Two processes and gloo: every rank asked for has its row, and the plan one with the real step
    beside the one put together, which `validate` compares. A second call runs nothing again.
    """
    call = replace(call_in(tmp_path, 60), profile="local-cpu:2")
    names = {"data over 2", "tensor over 2", "pipeline over 2", "experts over 2"}
    wanted = [item for item in several(2) if item.name in names]
    assert on_gpu.run_all(call, wanted) == []
    done = json.loads((tmp_path / "items.json").read_text())
    assert {name: each["reason"] for name, each in done.items() if each["reason"]} == {}
    text = (tmp_path / "runs.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    whole = [row for row in rows if row["suite"] == "all ranks"]
    assert len(whole) == len(wanted)
    assert len(rows) - len(whole) == sum(len(item.ranks) for item in wanted)
    assert all(float(row["step_time_s"]) > 0 < float(row["put_together_s"]) for row in whole)
    assert {row["note"] for row in whole} == {"2 processes, gloo between them"}
    found = predict_rows(read_runs(tmp_path / "runs.csv"))
    compared = [row for row in found if isinstance(row, Predicted) and row.step_error is not None]
    assert len(compared) == len(wanted)
    assert on_gpu.run_all(call_in(tmp_path, 0), wanted) == []
    assert (tmp_path / "runs.csv").read_text() == text


def call_in(folder: Path, minutes: float) -> on_gpu.Call:
    """A call on this machine's CPU."""
    return on_gpu.Call(
        folder=folder, device="cpu", found=CPU, profile="local-cpu:1",
        ends=time.monotonic() + 60 * minutes,
    )  # fmt: skip


def test_calls_go_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """Without time nothing begins; with it a plan for one device becomes a run that `validate`
    compares, and (nightly) a rank of a larger one a row without a step; what is finished is not
    run again, and what cannot run leaves its reason.
    """
    larger = [replace(META, ranks=(16383,))] if NIGHTLY else []
    wanted = [DENSE, *larger, replace(META, name="no such rank", ranks=(16384,))]
    assert on_gpu.run_all(call_in(tmp_path, 0), wanted) == [item.name for item in wanted]
    assert not list(tmp_path.iterdir())
    assert on_gpu.run_all(call_in(tmp_path, 60), wanted) == []
    done = json.loads((tmp_path / "items.json").read_text())
    assert [name for name, each in done.items() if each["reason"]] == ["no such rank"]
    assert len(done) == len(wanted)
    assert "the plan has ranks 0 to 16383" in done["no such rank"]["reason"]
    before = (tmp_path / "runs.csv").read_text()
    assert on_gpu.run_all(call_in(tmp_path, 0), wanted) == []
    assert (tmp_path / "runs.csv").read_text() == before
    one, *ranks = csv.DictReader(before.splitlines())
    assert float(one["step_time_s"]) > 0
    assert one["put_together_s"] == ""
    assert len(ranks) == len(larger)
    for rank in ranks:
        assert rank["step_time_s"] == ""
        assert float(rank["put_together_s"]) > float(rank["backward_measured_s"]) > 0
        assert float(rank["held_weights_gib"]) > 0
    assert one["versions"].startswith("torch ")
    found = list(predict_rows(read_runs(tmp_path / "runs.csv")))
    compared = [isinstance(row, Predicted) and row.step_error is not None for row in found]
    assert compared == [True, *(False for _ in larger)]


def test_a_model_that_no_column_says_is_a_row_that_validate_skips() -> None:
    """No shape, no price: the row stands in the table all the same."""
    plan = DENSE.plan(DGX, tiny=True)
    run = OneRankRun(
        plan="x", layout="dp1 zero0", device="cpu", versions={}, date="2026-01-01", micro_batches=1,
        ranks=(), parts={}, step=ANY, estimated_pipeline_ranks=(),
    )  # fmt: skip
    (found,) = predict_rows([unsaid(plan, run, DGX)])
    assert not isinstance(found, Predicted)


@pytest.mark.nightly
def test_the_first_call_profiles_the_machine_before_it_runs_a_plan(tmp_path: Path) -> None:
    """The script as typed, on a CPU: a minute for the profile, which then prices the plan, on a
    busy machine in a later call, which goes on.
    """
    command = [sys.executable, "-m", "benchmarks.engine.on_gpu", "--device", "cpu",
               "--minutes", "2", "-o", str(tmp_path), "--only", DENSE.name]  # fmt: skip
    for _ in range(4):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        if "nothing is left" in done.stdout:
            break
    cluster = load_cluster(str(tmp_path / "profile.toml"))
    assert cluster.is_measured
    assert cluster.kernels is not None
    assert cluster.kernels.matmul_points
    said = json.loads((tmp_path / "items.json").read_text())[DENSE.name]
    assert not said["reason"]
    assert said["rows"][0]["priced_by"] == cluster.name
    assert "nothing is left" in done.stdout
