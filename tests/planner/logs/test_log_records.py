"""Logs that are records, DeepSpeed's lines, and which steps of a log count."""

import json
from pathlib import Path

import pytest

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.log_file import MAX_LOG_BYTES
from meshplan.planner.logs.read import (
    Batch,
    Recognised,
    UnreadableLog,
    read_log,
    recognised,
)
from meshplan.planner.logs.steady import steady
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

BATCH = Batch(sequences=256, tokens_per_gpu=8192, gpus=8)
# A log of DeepSpeed-Chat on the web (2023-11-07), and one of 2022 with the older prefix.
DEEPSPEED = """
[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, \
RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.6, MemAllocated=4.32GB, MaxMemAllocated=38.49GB
[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=232.7, \
CurrSamplesPerSec=12.8, MemAllocated=0.36GB, MaxMemAllocated=15.06GB
"""
# The Trainer's own fields (transformers `speed_metrics`), of a finished job with one evaluation.
TRAINER = {
    "global_step": 990,
    "log_history": [
        {"epoch": 2.53, "loss": 0.861, "step": 500},
        {"eval_loss": 1.1, "eval_runtime": 15.0, "step": 500},
        {"epoch": 5.0, "step": 990, "train_runtime": 510.0, "train_loss": 0.8},
    ],
}


def times(found: Recognised) -> list[float]:
    """The seconds of each step."""
    return [step.step_time_s for step in found.log.steps]


def test_deepspeed_256_sequences_at_25_6_a_second_are_10_s() -> None:
    """The rate is of the whole batch; the peak is in GiB."""
    found = recognised(DEEPSPEED, "train.log", BATCH)
    assert found.format == "deepspeed"
    assert times(found) == pytest.approx([10.0, 20.0])
    assert found.log.allocated_peak_bytes == 38.49 * GIB


def test_trainer_510_s_less_15_s_of_evaluation_over_990_steps_are_half_a_second() -> None:
    """One mean, said to hold the first steps."""
    found = recognised(json.dumps(TRAINER), "trainer_state.json", BATCH)
    assert times(found) == pytest.approx([0.5])
    assert found.log.whole
    assert steady(found.log, "").step_time_s == pytest.approx(0.5)


# transformers' own lines of one job (`speed_metrics`, tqdm): 990 steps, one evaluation of 15 s
PRINTED = """
  0%|          | 0/990 [00:00<?, ?it/s]
{'loss': 0.861, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 2.53}
 50%|#####     | 495/990 [04:10<04:10,  1.98it/s]
100%|##########| 25/25 [00:15<00:00,  1.67it/s]
{'eval_loss': 1.1, 'eval_runtime': 15.0, 'eval_samples_per_second': 13.3, 'epoch': 2.53}
100%|##########| 990/990 [08:30<00:00,  1.94it/s]
{'train_runtime': 510.0, 'train_samples_per_second': 15.5, 'train_steps_per_second': 1.94, \
'train_loss': 0.8, 'epoch': 5.0}
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PRINTED, id="a bar with the steps"),
        pytest.param("\n".join(line for line in PRINTED.splitlines() if "%|" not in line)
                     .replace("1.94,", "1.941,"), id="510 s at 1.941 a second: 990 steps"),
        pytest.param(PRINTED.replace("510.0", "'510.0'").replace("15.0", "'15'")
                     .replace("1.94,", "'1.94',"), id="numbers as text, as of transformers 5"),
    ],
)  # fmt: skip
def test_what_the_trainer_prints_is_its_state(text: str) -> None:
    """(510 - 15) / 990 = 0.5 s, as trainer_state.json says of the same job."""
    found = recognised(text, "train.log", BATCH)
    assert (found.format, found.log.whole) == ("Trainer", True)
    assert times(found) == pytest.approx([0.5])
    assert "1 evaluation taken off" in found.log.notes


def test_a_trainer_that_still_runs_is_read_off_its_bar() -> None:
    """20 steps in 40 s are 2 s each; the rate of a whole minute after an evaluation is a pause."""
    text = "{'loss': 0.8, 'epoch': 0.1}\r" + "\r".join(
        f"  1%|x| {step}/990 [{clock // 60:02}:{clock % 60:02}<1:00:00,  2.00s/it]"
        for step, clock in ((0, 0), (10, 20), (20, 40), (30, 60), (40, 80), (60, 120), (80, 240))
    )
    found = recognised(text, "train.log", BATCH)
    assert times(found) == [2.0, 2.0, 2.0, 6.0]
    assert steady(found.log, "").pauses == 1


def test_a_rate_of_two_digits_is_no_step_time() -> None:
    """0.02 steps a second may be 44 s or 67 s."""
    text = "{'train_runtime': 5000.0, 'train_steps_per_second': 0.02, 'train_loss': 0.8}\n"
    assert recognised(text, "train.log", BATCH).log.steps == ()


def test_a_trainer_that_is_not_done_has_no_time() -> None:
    """Without train_runtime there is no step time, and the reason is said."""
    log = recognised(json.dumps({"log_history": [{"loss": 1, "step": 5}]}), "x.json", BATCH).log
    assert (log.steps, "no train_runtime" in log.notes[0]) == ((), True)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("wandb.csv", 'Step,"run-1 - throughput(tps)"\n1,4096\n2,8192\n', [2.0, 1.0]),
        ("wandb.csv", "Step,run - iteration-time,run - iteration-time__MIN\n1,3.5,3.4\n", [3.5]),
        ("h.jsonl", '{"_step": 1, "elapsed_time_per_iteration_ms": 250}\nnot json\n', [0.25]),
        ("h.jsonl", '{"_step": 0, "_runtime": 5}\n{"_step": 4, "_runtime": 13}\n', [2.0]),
        ("run-.-tag-throughput(tps).csv", "Wall time,Step,Value\n100,1,4096\n", [2.0]),
        ("run_tag_iteration-time.json", "[[100.0, 1, 2.5], [103.0, 2, 2.25]]", [2.5, 2.25]),
        ("loss.csv", "Wall time,Step,Value\n100,10,9\n120,20,8\n", [2.0]),
    ],
    ids=[
        "wandb_8192_tokens_over_4096_a_second", "wandb_seconds", "wandb_250_ms",
        "wandb_stamps_8_s_over_4_steps", "tensorboard_rate", "tensorboard_json",
        "tensorboard_stamps_20_s_over_10_steps",
    ],
)  # fmt: skip
def test_exports(name: str, text: str, expected: list[float]) -> None:
    """A known metric gives seconds; without one time stamps over steps do."""
    assert times(recognised(text, name, BATCH)) == pytest.approx(expected)


def test_a_step_number_that_goes_back_is_a_restart() -> None:
    """Steps 1, 2, 3, then 2, 3 again: two attempts; ranks one line apart are none."""
    log = slowest(LoggedStep(step, 1.0, None) for step in (1, 2, 3, 1, 2, 3))
    assert [each.attempt for each in log] == [0, 0, 0, 1, 1, 1]
    assert {each.attempt for each in slowest(LoggedStep(s, 1.0, None) for s in (1, 2, 1, 2))} == {0}


def _log(*seconds: float) -> TrainingLog:
    return TrainingLog(
        slowest(LoggedStep(step, taken_s, None) for step, taken_s in enumerate(seconds, 1)),
        None, None,
    )  # fmt: skip


def test_warm_up_and_pauses_do_not_count() -> None:
    """Of 9, 9, 9, then 2 s with a pause of 6 s at every tenth step: 2 s, and the pauses' share."""
    usual = [6.0 if step % 10 == 0 else 2.0 for step in range(4, 41)]
    found = steady(_log(9.0, 9.0, 9.0, *usual), "log")
    assert (found.step_time_s, found.warm_up, found.pauses, found.pause_every) == (2.0, 3, 4, 10)
    assert found.pause_share == pytest.approx(4 * 4 / (33 * 2 + 4 * 6))


def test_drift_of_three_then_four_seconds_is_a_third() -> None:
    """The last third over the first."""
    found = steady(_log(*[9.0] * 3, *[3.0] * 4, *[3.5] * 4, *[4.0] * 4), "log")
    assert found.drift == pytest.approx(1 / 3)


def test_a_log_of_warm_up_alone_is_refused() -> None:
    """Three steps tell nothing of the fourth."""
    with pytest.raises(UnreadableLog, match="3 logged steps, all of the warm-up"):
        steady(_log(1.0, 1.0, 1.0), "log")


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    """Of a log above the limit the last bytes count, which is said."""
    path, line = (
        tmp_path / "train.log",
        f" iteration %8d/ 9 | elapsed time per iteration (ms): 1.0 | {'x' * 900}\n",
    )
    lines = MAX_LOG_BYTES // len(line % 1) + 100
    path.write_text("".join(line % step for step in range(1, lines)))
    log = read_log(path, BATCH).log
    assert log.steps[-1].step == lines - 1
    assert "the last 4 MiB" in log.notes[-1]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("events.out.tfevents.1.host", b"x", "no step times found"),
        ("a.log", b"\0\1", "a binary file"),
        ("a.log", b"hello", "no step times found"),
    ],
)
def test_what_is_no_log_is_said_in_one_line(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    """A file that tells no step time is refused with the reason."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableLog, match=said) as refused:
        read_log(path, BATCH)
    assert str(refused.value).isprintable()


# bigscience-workshop/Megatron-DeepSpeed megatron/training.py writes seconds
IN_SECONDS = (
    " iteration {step:8d}/  95367 | consumed samples: 0 | elapsed time per iteration (s): {s:.2f} "
    "| learning rate: 6.0E-05 | global batch size: {batch:5d} | lm loss: 2.0E+00 |\n"
)


def megatron_text(*seconds: float, first: int = 1, batch: int = 256) -> str:
    """A log from step `first` on."""
    numbered = enumerate(seconds, first)
    return "".join(IN_SECONDS.format(step=step, s=s, batch=batch) for step, s in numbered)


def read_text(folder: Path, text: str, name: str = "train.log") -> Recognised:
    """The text as a file, of 256 sequences by its config."""
    (folder / name).write_text(text)
    return read_log(folder / name, BATCH)


def test_an_iteration_in_seconds_is_read_as_seconds(tmp_path: Path) -> None:
    """As BigScience's fork prints it, not in ms."""
    assert times(read_text(tmp_path, megatron_text(103.5, 104.0))) == [103.5, 104.0]


def test_steps_of_another_batch_do_not_count(tmp_path: Path) -> None:
    """Of a batch that grows to 256 the five steps of 32 are left out, which is said."""
    small = megatron_text(*[1.0] * 5, batch=32)
    found = read_text(tmp_path, small + megatron_text(*[2.0] * 9, first=6))
    assert times(found) == [2.0] * 9
    assert found.log.notes == ("5 logged steps of 32 sequences, not the config's 256, left out",)
    with pytest.raises(UnreadableLog, match="all 5 logged steps are of 32 sequences, not the"):
        read_text(tmp_path, small)


def test_two_runs_in_one_log_are_refused(tmp_path: Path) -> None:
    """Steps of 3.4 and of 6.8 s: no step took the 5.1 s of their median."""
    found = read_text(tmp_path, megatron_text(*[3.4] * 12) + megatron_text(*[6.8] * 12))
    with pytest.raises(UnreadableLog, match=r"one start's steps take 3\.40 s, another's 6\.80 s"):
        steady(found.log, "train.log")


def test_an_export_of_two_runs_is_refused(tmp_path: Path) -> None:
    """Of two runs' columns of one metric the last was taken."""
    rows = "".join(f'"{step}","3.4","6.8"\n' for step in range(1, 9))
    text = f'"Step","a - iteration-time","b - iteration-time"\n{rows}'
    with pytest.raises(UnreadableLog, match="2 runs in one export, a and b"):
        read_text(tmp_path, text, "wandb.csv")


@pytest.mark.parametrize("taken_s", [1e-300, 9e-7, 2e6, 1e300])
def test_what_no_step_takes_is_no_time(taken_s: float) -> None:
    """`diagnose` gave them an MFU of infinity, which is no JSON, or a line of 300 digits."""
    with pytest.raises(UnreadableLog, match="are these seconds"):
        steady(_log(*[taken_s] * 8), "log")
