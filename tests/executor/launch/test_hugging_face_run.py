"""Plans run by Hugging Face's frameworks: what is started, what is refused, and real runs of two
CPU processes (the group `frameworks`, skipped where the packages are missing)."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from called import executed
from random_plans import plan_of
from tiny_runs import DP2, tiny_plan

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.training import Lora, Training
from meshplan.executor.frameworks import framework_named, read_config
from meshplan.executor.frameworks.hugging_face.script import MODEL, SCRIPT
from meshplan.executor.launch.hugging_face_run import ENGINES, command_of, ready_for
from meshplan.executor.launch.other_engines import HOMES
from meshplan.executor.launch.preflight import CannotRun, RankPlacement
from meshplan.executor.launch.run import RunSettings
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.unsaid import COMMENT_KEY

STAGES = (Stage(8),)
TRAINING = Training(seq_len=64, global_batch_size=4, precision="fp32")
SETTINGS = RunSettings(placement=RankPlacement(2, 1), steps=3, warmup=1)


def _plan(engine: str, **degrees: object) -> Plan:
    layout = Layout(**{"stages": STAGES, **degrees})  # type: ignore[arg-type]
    plan = plan_of("tiny-llama", layout, TRAINING).model_copy(update={"engine": engine})
    return plan.model_copy(update={"cluster": tiny_plan().cluster})


RUNS = [
    pytest.param(_plan("accelerate", data_parallel=2, zero_stage=2), id="accelerate: FSDP2"),
    pytest.param(_plan("deepspeed", data_parallel=2, zero_stage=1), id="deepspeed: ZeRO-1"),
    pytest.param(_plan("deepspeed", data_parallel=2, zero_stage=3), id="deepspeed: ZeRO-3"),
    pytest.param(_plan("transformers", tensor_parallel=2, zero_stage=3), id="transformers: tp2"),
]  # fmt: skip


@pytest.mark.frameworks
@pytest.mark.parametrize("plan", RUNS)
def test_two_processes_train(plan: Plan, tmp_path: Path) -> None:
    """Plan, export, launch, measured steps and a row; random weights begin near ln(4096)."""
    home = HOMES[plan.engine]
    for package in (home.package, *home.beside):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {home.install}")
    write_plan(plan, tmp_path / "plan.yaml")
    asked = [str(tmp_path / "plan.yaml"), "--steps", "2", "--warmup", "1"]
    answer = executed(asked)
    assert answer.exit_code == 0, answer.output
    assert "resident (not compared)" in answer.output
    out = tmp_path / "plan.run"
    written = json.loads((out / "result.json").read_text())
    assert (written["status"], written["engine"]) == ("complete", plan.engine)
    assert len(written["step_times_s"]) == 2
    assert written["losses"] == pytest.approx([math.log(4096)] * 3, rel=0.02)
    assert {rank["rank"] for rank in written["ranks"]} == {0, 1}
    exported = framework_named(plan.engine).export(plan, 2)
    assert all((out / name).read_text() == text for name, text in exported.files.items())
    assert f",{plan.engine},tiny-llama," in (out / "runs.csv").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_started_is_what_is_exported(engine: str, tmp_path: Path) -> None:
    """The files are the export's, in the run's folder; 2 replicas x 1 x 2 micro-batches = 4."""
    exported = ready_for(_plan(engine, data_parallel=2, zero_stage=3), SETTINGS)
    assert {SCRIPT, MODEL} < set(exported.files)
    assert "--micro-batch-size 1 --micro-batches 2 --dtype fp32" in exported.launch
    command = command_of(exported, SETTINGS, tmp_path)
    assert str(tmp_path / SCRIPT) in command
    assert str(tmp_path / next(iter(exported.files))) in command
    assert command[-7:] == [
        "--steps", "3", "--warmup", "1", "--records", str(tmp_path / "ranks"), "--cpu",
    ]  # fmt: skip
    on_gpus = command_of(exported, replace(SETTINGS, device="cuda"), tmp_path)
    assert on_gpus == command[:-1]


@pytest.mark.parametrize(
    ("engine", "degrees", "said"),
    [
        ("accelerate", {"tensor_parallel": 2}, "plan with --engine transformers"),
        ("accelerate", {"context_parallel": 2}, "context_parallel: torch 2.13"),
        ("accelerate", {"pipeline_parallel": 2, "stages": (Stage(4),) * 2}, "pipeline_parallel"),
        ("deepspeed", {"pipeline_parallel": 2, "stages": (Stage(4),) * 2}, "pipeline_parallel"),
        ("transformers", {"data_parallel": 2, "zero_stage": 2}, "zero_stage 2"),
    ],
)  # fmt: skip
def test_a_layout_that_would_run_as_another_is_refused(
    engine: str, degrees: dict[str, object], said: str
) -> None:
    """One line with the reason, before anything is started."""
    with pytest.raises(CannotRun, match=said):
        ready_for(_plan(engine, **{"zero_stage": 3, **degrees}), SETTINGS)


def test_accelerate_has_no_file_for_a_pipeline() -> None:
    """It would leave the other stages' GPUs idle: refused by `export` too, with the way out."""
    plan = _plan("native", pipeline_parallel=2, stages=(Stage(4),) * 2)
    with pytest.raises(InvalidLayout, match="plan with --engine accelerate, or with --pp 1"):
        framework_named("accelerate").export(plan, 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kind",
    [{"lora": Lora(rank=8)}, {"packed_mean_length": 64}, {"optimizer_states": "bf16"}],
    ids=str,
)
def test_another_kind_of_training_is_refused(engine: str, kind: dict[str, object]) -> None:
    """`train.py` trains all weights by AdamW on whole sequences; other plans are not run."""
    plan = _plan(engine, data_parallel=2, zero_stage=3)
    training = replace(plan.training, **kind)
    with pytest.raises(CannotRun, match=f"would run without training.{next(iter(kind))}"):
        ready_for(plan.model_copy(update={"training": training}), SETTINGS)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_package_exits_2(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with pip's words, for a plan for CPUs too, and no folder is left."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    write_plan(_plan(engine, data_parallel=2, zero_stage=3), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml")])
    assert answer.exit_code == 2
    assert f"error: {engine} is not installed; install it with: {HOMES[engine].install}" in (
        answer.output
    )
    assert not (tmp_path / "plan.run").exists()


def test_data_is_refused() -> None:
    """The script's tokens are synthetic: a file would be ignored."""
    with pytest.raises(CannotRun, match="read by the native engine only"):
        ready_for(
            _plan("deepspeed", data_parallel=2, zero_stage=1), replace(SETTINGS, data=Path("t.bin"))
        )


def test_distributed_config_says_the_degrees() -> None:
    """16 replicas in shards of 4: fsdp 4 x 4 copies, times tp 2; and it reads back."""
    layout = Layout(
        data_parallel=16, tensor_parallel=2, zero_stage=3, shard_group=4, stages=(Stage(32),)
    )
    training = Training(seq_len=4096, global_batch_size=32)
    exported = framework_named("transformers").export(plan_of("llama-3.1-8b", layout, training), 8)
    text = exported.files["distributed_config.json"]
    said = {name: value for name, value in json.loads(text).items() if name != COMMENT_KEY}
    assert said == {
        "tp_size": 2, "fsdp_size": 4, "dp_replicate_size": 4, "fsdp_mixed_precision": True,
    }  # fmt: skip
    assert "--nnodes 4 --nproc-per-node 8" in exported.launch
    facts = read_config(text, "distributed_config.json").facts
    assert (facts["data_parallel"].value, facts["tensor_parallel"].value) == (16, 2)


def test_distributed_config_refuses_a_pipeline() -> None:
    """Its ranks would be replicas."""
    layout = replace(DP2, data_parallel=1, pipeline_parallel=2, stages=(Stage(16), Stage(16)))
    with pytest.raises(InvalidLayout, match="pipeline_parallel 2 is not written"):
        framework_named("transformers").export(plan_of("llama-3.1-8b", layout, TRAINING), 8)
