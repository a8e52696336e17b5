"""`learn` and `diagnose` of a trainer's files as they are published: its log, its config, the file
that shards it.

After rameyjm7/SFT-Training-LLM@e5968d8: LLaMA-Factory names DeepSpeed's JSON by a path of the
machine that it ran on, and two processes of one GPU each, started without torchrun, write one log.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshplan.planner.cli.main import app
from meshplan.planner.logs.read import Batch, read_log

CONFIG = """
model_name_or_path: Qwen/Qwen2.5-3B-Instruct
stage: sft
do_train: true
finetuning_type: full
dataset: ours
cutoff_len: 4096
packing: true
output_dir: saves/ours
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
ZERO_2 = {"gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2}}
FACTS = ("--cluster", "dgx-h200", "--gpus", "2")


def _entry(step: int, seconds: int) -> str:
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    row = {"current_steps": step, "total_steps": 1000, "loss": 1.0, "elapsed_time": clock}
    return json.dumps(row) + "\n"


def _files(folder: Path, more: str = "") -> Path:
    """A log of 4 s a step beside its config."""
    log = folder / "trainer_log.jsonl"
    log.write_text("".join(_entry(10 * at, 40 * at + 9) for at in range(1, 20)))
    (folder / "sft.yaml").write_text(CONFIG + more)
    return log


def _diagnosed(*words: str) -> str:
    result = CliRunner().invoke(app, ["diagnose", *words, *FACTS])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return " ".join((result.stdout + result.stderr).split())


def test_deepspeeds_file_beside_a_config_is_none_of_its_own(tmp_path: Path) -> None:
    """The config is clear, and what it names by another machine's path is the file beside it."""
    log = _files(tmp_path, "deepspeed: /home/someone/examples/deepspeed/two.json\n")
    (tmp_path / "two.json").write_text(json.dumps(ZERO_2))
    said = _diagnosed(str(log))
    assert "dp2 zero2 mbs1" in said
    assert "measured 4.00 s" in said
    assert "is not there: taken to be the file of that name here" in said


def test_a_config_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A script whose DeepSpeed file depends on its environment, beside that file, is the config of
    the log; what it is started with can be said.
    """
    log = _files(tmp_path)
    (tmp_path / "sft.yaml").unlink()
    (tmp_path / "two.json").write_text(json.dumps(ZERO_2))
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 2 src/train.py --stage sft --do_train --finetuning_type full "
        "--model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset ours --cutoff_len 4096 "
        "--packing true --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --bf16 "
        "--output_dir saves/ours --deepspeed ${SHARDS}.json\n"
    )
    assert "--env SHARDS=VALUE" in _diagnosed(str(log))
    assert "dp2 zero2 mbs1" in _diagnosed(str(log), "--env", "SHARDS=two")


@pytest.mark.parametrize(("launcher", "stage"), [("none", "zero0"), ("shards.json", "zero2")])
def test_what_launches_a_trainer_can_be_said(tmp_path: Path, launcher: str, stage: str) -> None:
    """The refusal names an option that these commands have."""
    log = _files(tmp_path)
    assert "--launched-by" in _diagnosed(str(log), "--config", str(tmp_path / "sft.yaml"))
    path = tmp_path / launcher
    if launcher != "none":
        path.write_text(json.dumps(ZERO_2))
    said = _diagnosed(str(log), "--launched-by", "none" if launcher == "none" else str(path))
    assert f"dp2 {stage} mbs1" in said


def test_entries_of_a_second_process_are_left_out(tmp_path: Path) -> None:
    """Two jobs of 4 and 5 s a step write one log: the first's steps, 18 between its 19 entries,
    and none of the 19 of the other, which is at fewer steps whenever it writes.
    """
    log = tmp_path / "trainer_log.jsonl"
    both = [(40 * at, 10 * at) for at in range(1, 20)] + [(50 * at, 10 * at) for at in range(1, 16)]
    log.write_text("".join(_entry(step, seconds) for seconds, step in sorted(both)))
    read = read_log(log, Batch(16, 32768.0, 2)).log
    assert [step.step_time_s for step in read.steps] == [4.0] * 18
    assert read.notes == ("15 entries of another process in the same log left out: is it one job?",)
