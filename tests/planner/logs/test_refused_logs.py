"""Logs that say no step time, and the bar of NeMo 1: what is refused says the way out."""

import json
from pathlib import Path

import pytest

from meshplan.planner.logs.read import Batch, UnreadableLog, read_log

BATCH = Batch(sequences=16, tokens_per_gpu=1024, gpus=4)


def refused(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UnreadableLog) as raised:
        read_log(path, BATCH)
    return str(raised.value)


def entry(step: int, **said: object) -> str:
    clock = f"0:{4 * step // 60:02d}:{4 * step % 60:02d}"
    known = {"current_steps": step, "total_steps": 250, "percentage": step / 2.5}
    return json.dumps({**known, "elapsed_time": clock, **said})


def test_predictions_are_no_steps(tmp_path: Path) -> None:
    """gi7014/SunXiaochuan-V1 trainer_log.jsonl: `do_predict` writes the same file without epochs
    (LLaMA-Factory, LogCallback.on_prediction_step); its clock was taken for training.
    """
    rows = "\n".join(entry(step) for step in range(10, 250, 10))
    assert "a log of predictions" in refused(tmp_path, "trainer_log.jsonl", rows)


def test_predictions_behind_the_training_are_left_out(tmp_path: Path) -> None:
    trained = [entry(step, loss=1.0, epoch=step / 250) for step in range(10, 250, 10)]
    predicted = [entry(step) for step in range(1, 20)]
    path = tmp_path / "trainer_log.jsonl"
    path.write_text("\n".join(trained + predicted))
    assert {step.step_time_s for step in read_log(path, BATCH).log.steps} == {4.0}


def test_a_summary_names_the_file_that_has_the_steps(tmp_path: Path) -> None:
    text = json.dumps({"epoch": 3.0, "train_runtime": 472.1, "train_samples_per_second": 0.763})
    assert "trainer_state.json" in refused(tmp_path, "train_results.json", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("litgpt.log", "Epoch 1 | iter 8 step 2 | loss train: 1.7 | iter time: 121.17 ms\n" * 9),
        (
            "fairseq.log",
            "| INFO | train_inner | epoch 001:  100 / 167138 loss=15.073, wps=4004.3\n",
        ),
        ("loop.csv", "step,step_time_ms\n1,1500\n2,1501\n"),
    ],
)
def test_another_log_is_told_how_it_can_be_read(tmp_path: Path, name: str, text: str) -> None:
    assert "a CSV with the columns step and step_time_s" in refused(tmp_path, name, text)


def test_the_bar_of_nemo_is_read_without_a_timing(tmp_path: Path) -> None:
    """NVIDIA/NeMo-Framework-Launcher issue 55: 41 s from bar to bar."""
    bars = (
        f"Epoch 0:   1%|1         | {at}/77225 [9:{m:02d}:{s:02d}<878:01:48, 41.36s/it, loss=3.1, "
        f"v_num=, reduced_train_loss=3.090, global_step={at - 1}.0, consumed_samples=1.63e+6]"
        for at in range(795, 830)
        for m, s in [divmod((at - 795) * 41, 60)]
    )
    path = tmp_path / "log.txt"
    path.write_text("\r".join(bars))
    read = read_log(path, BATCH)
    assert read.format == "nemo"
    assert {step.step_time_s for step in read.log.steps} == {41.0}
    assert "progress bar" in read.log.notes[0]
