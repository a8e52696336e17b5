"""Logs of ms-swift, verl, axolotl, MaxText and OLMo-core, and logs that give no step time.

Lines: ms-swift fyh2001/megatron-sft-recipes (logging.jsonl and what is printed), verl of a
tutorial and by its `verl/trainer/sft_trainer.py`, axolotl of a job of 2026, MaxText
`docs/guides/monitoring_and_debugging`, OLMo-core by its source, LLaMA-Factory
YerongLi/LLaMA-Factory `usergan/trainer_log.jsonl`, DeepSpeed-Chat and TRL of public jobs.
"""

import json
from pathlib import Path

import pytest

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.read import Batch, UnreadableLog, read_log, recognised
from meshplan.planner.logs.steady import steady
from meshplan.planner.logs.swift_log import read_swift
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog
from meshplan.planner.logs.warned import OVER_SOCKETS, warned

BATCH = Batch(sequences=128, tokens_per_gpu=8192, gpus=8)

SWIFT_JSON = """
{"loss": 2.03, "global_step/max_steps": "1/30", "elapsed_time": "55s", "remaining_time": \
"26m 48s", "tokens_per_gpu_per_sec": 347.1, "memory(GiB)": 75.91, "train_speed(s/it)": 55.45873}
{"loss": 2.04, "global_step/max_steps": "2/30", "elapsed_time": "1m 39s", "remaining_time": \
"22m 59s", "memory(GiB)": 76.38, "train_speed(s/it)": 49.253864}
{"train_runtime": 99.1, "global_step/max_steps": "2/30", "elapsed_time": "1m 39s", \
"memory(GiB)": 76.62, "train_speed(s/it)": 49.55}
"""
SWIFT_PRINTED = """
Train:  98%|#########7| 39/40 [29:29<00:45, 45.90s/it]
{'loss': '1.3', 'global_step/max_steps': '39/40', 'elapsed_time': '29m 29s', 'remaining_time': \
'45s', 'memory(GiB)': '76.62', 'train_speed(s/it)': '45.359'}
{'train_runtime': '1816', 'train_samples_per_second': '2.82', 'train_steps_per_second': '0.022', \
'global_step/max_steps': '40/40', 'elapsed_time': '30m 16s', 'train_speed(s/it)': '45.39'}
"""
MEGATRON_SWIFT = """
{'lm loss': 1.2, 'iteration': '10/100', 'elapsed_time': '1m 0s', 'remaining_time': '9m 0s', \
'memory(GiB)': 61.2, 'train_speed(s/it)': 6.0}
{'lm loss': 1.1, 'iteration': '20/100', 'elapsed_time': '1m 50s', 'remaining_time': '7m 20s', \
'memory(GiB)': 61.2, 'train_speed(s/it)': 5.5}
"""
VERL = """
step:1 - train/loss:0.8078852891921997 - train/lr(1e-3):0.00027 - train/time(s):14.796027898788452
step:2 - train/loss:0.7787683010101318 - train/lr(1e-3):0.00054 - train/time(s):7.293778896331787
step:2 - val/loss:0.75
"""
VERL_FILE = (
    '{"step":1,"data":{"train/loss":0.8,"train/lr(1e-3):":0.1,"train/time(s)":14.5}}\n'
    '{"step":2,"data":{"train/loss":0.7,"train/time(s)":7.25}}\n'
)
MAXTEXT = """
completed step: 0, seconds: 44.923, TFLOP/s/device: 17.022, Tokens/s/device: 1094.129, \
total_weights: 196608, loss: 12.038
completed step: 4, seconds: 5.669, TFLOP/s/device: 134.884, Tokens/s/device: 8670.207, \
total_weights: 196608, loss: 11.110, lm_loss: 11.1, perplexity: 66171.2
Completed eval step: 0, seconds: 1.5, running loss=10.1
"""
OLMO = """
2026-01-05 10:00:00\tINFO\t[step=20/1000,epoch=1,eta=2h]
    train/CE loss=6.500
    throughput/device/TPS=4,096
    throughput/device/TPS (actual avg)=4,000
    gpu_memory/GPU reserved mem (GiB)=61.20
2026-01-05 10:00:40\tINFO\t[step=25/1000,epoch=1]
"""


@pytest.mark.parametrize(
    ("name", "text", "format_", "seconds"),
    [
        ("logging.jsonl", SWIFT_JSON, "ms-swift", {2: 2 * 49.253864 - 55.45873}),
        ("train.log", SWIFT_PRINTED, "ms-swift", {40: 40 * 45.39 - 39 * 45.359}),
        ("train.log", MEGATRON_SWIFT, "ms-swift", {20: 5.0}),
        ("train.log", VERL, "verl", {1: 14.796027898788452, 2: 7.293778896331787}),
        ("sft.jsonl", VERL_FILE, "verl", {1: 14.5, 2: 7.25}),
        ("train.log", MAXTEXT, "maxtext", {0: 44.923, 4: 5.669}),
        ("train.log", OLMO, "olmo-core", {20: 2.0}),
    ],
    ids=[
        "ms-swift: by its mean speed", "ms-swift as printed", "Megatron-SWIFT: 20 x 5.5 - 10 x 6 s",
        "verl's SFT", "verl's file", "MaxText, without evaluations", "OLMo-core: 8192 / 4096",
    ],
)  # fmt: skip
def test_lines_of_more_frameworks(
    name: str, text: str, format_: str, seconds: dict[int, float]
) -> None:
    """The step and its seconds."""
    found = recognised(text, name, BATCH)
    assert found.format == format_
    assert {s.step: s.step_time_s for s in found.log.steps} == pytest.approx(seconds)


def test_peaks_of_ms_swift_and_olmo_core_are_reserved() -> None:
    """`memory(GiB)` is the reserved peak of all ranks."""
    assert recognised(SWIFT_JSON, "x.jsonl", BATCH).log.reserved_peak_bytes == 76.62 * GIB
    assert recognised(OLMO, "x.log", BATCH).log.reserved_peak_bytes == 61.2 * GIB


def _verl_step(epoch: int, step: int) -> str:
    """A step of 10 s, of 12 an epoch: its bar, then its metrics."""
    clock_s = 10 * step
    clock = f"{clock_s // 60:02}:{clock_s % 60:02}"
    bar = f"Epoch {epoch}/2:  {100 * step // 12}%|#2   | {step}/12 [{clock}<07:35, 10.00s/it]"
    peaks = "perf/max_memory_allocated_gb:10.5 - perf/max_memory_reserved_gb:14.5"
    metrics = f"train/loss:0.8 - train/global_tokens:65536 - train/total_tokens(B):{step}e-4"
    return f"\r{bar}\nstep:{12 * (epoch - 1) + step} - {peaks} - {metrics}"


def test_verl_on_its_engines_is_read_off_its_bars() -> None:
    """Each epoch's bar begins at 0 again, which is no restart; peaks are in GiB."""
    text = "\n".join(_verl_step(epoch, step) for epoch in (1, 2) for step in range(1, 13))
    found = recognised(text, "train.log", BATCH)
    assert found.format == "verl"
    assert [step.step for step in found.log.steps] == [4, 7, 10, 13, 16, 19, 22]
    usual = steady(found.log, "")
    assert (usual.step_time_s, usual.attempts) == (pytest.approx(10.0), 1)
    assert found.log.allocated_peak_bytes == 10.5 * GIB
    assert found.log.reserved_peak_bytes == 14.5 * GIB


AXOLOTL = """
 50%|#####     | 20/40 [02:20<02:20,  7.00s/it]
{'loss': '0.7157', 'ppl': '2.046', 'memory/max_active (GiB)': '2.99', \
'memory/max_allocated (GiB)': '2.98', 'memory/device_reserved (GiB)': '4.12', 'epoch': '1.5'}
100%|##########| 40/40 [04:40<00:00,  7.00s/it]
{'train_runtime': '280', 'train_steps_per_second': '0.143', 'train_loss': '0.06', \
'memory/max_allocated (GiB)': '2.86', 'epoch': '3'}
"""


def test_axolotl_says_its_peaks() -> None:
    """The largest of all lines, printed and in trainer_state.json; its names in W&B have "train/"
    before them.
    """
    rows = [
        {"loss": 0.7, "memory/max_allocated (GiB)": 2.98, "memory/device_reserved (GiB)": 4.12},
        {"train_runtime": 280.0, "step": 40, "memory/max_allocated (GiB)": 2.86},
    ]
    state = json.dumps({"log_history": rows, "global_step": 40})
    tracked = "\n".join(
        json.dumps({"train/global_step": step, "_runtime": 7.0 * step}
                   | {f"train/{name}": value for name, value in rows[0].items()})
        for step in (1, 2)
    )  # fmt: skip
    texts = (("train.log", AXOLOTL), ("trainer_state.json", state), ("history.jsonl", tracked))
    for name, text in texts:
        log = recognised(text, name, BATCH).log
        assert log.steps[-1].step_time_s == 7.0
        assert (log.allocated_peak_bytes, log.reserved_peak_bytes) == (2.98 * GIB, 4.12 * GIB)


def entry(step: int, elapsed: str, speed: float, **more: float) -> str:
    """A line of logging.jsonl."""
    times = {"elapsed_time": elapsed, "train_speed(s/it)": speed}
    return json.dumps({"global_step/max_steps": f"{step}/90", **times, **more})


def test_an_evaluation_between_two_entries_is_in_no_step() -> None:
    """10 steps to 100 s, an evaluation to 150 s, 10 more to 250 s: 10 s a step, not 15."""
    lines = (entry(10, "1m 40s", 10.0), entry(10, "2m 30s", 15.0, eval_loss=1.0))
    found = read_swift("\n".join((*lines, entry(20, "4m 10s", 12.5))))
    assert {step.step: step.step_time_s for step in found.steps} == pytest.approx({20: 10.0})


def test_a_resumed_job_is_read_off_whole_seconds() -> None:
    """Steps 50 to 60 in 40 s of a job that began at 40, whose mean speed is of its own steps."""
    found = read_swift("\n".join((entry(50, "50s", 5.0), entry(60, "1m 30s", 4.5))))
    assert {step.step: step.step_time_s for step in found.steps} == pytest.approx({60: 4.0})


def llama_factory(step: int, elapsed: str) -> str:
    """A line of trainer_log.jsonl."""
    return json.dumps({"current_steps": step, "total_steps": 127000, "elapsed_time": elapsed})


def test_a_clock_that_goes_back_is_a_restart(tmp_path: Path) -> None:
    """Steps of 6 s, then, from step 60 on with a clock of its own, of 3 s: two runs in one log."""
    first = [llama_factory(10 * at, f"0:{at:02d}:00") for at in range(1, 7)]
    second = [llama_factory(60 + 10 * at, f"0:{at // 2:02d}:{at % 2 * 30:02d}") for at in range(7)]
    path = tmp_path / "trainer_log.jsonl"
    path.write_text("\n".join((*first, *second)), encoding="utf-8")
    log = read_log(path, BATCH).log
    assert {step.attempt: step.step_time_s for step in log.steps} == {0: 6.0, 1: 3.0}
    with pytest.raises(UnreadableLog, match="two runs in one log"):
        steady(log, "x")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("step:1 - actor/pg_loss:0.1 - timing_s/gen:51.2 - timing_s/step:80.1", "reinforcement"),
        ("{'loss': 0.1, 'completions/mean_length': 210.0, 'reward': 0.5}", "reinforcement"),
        ("|E2E latency=2.7s |Generate time=1.1s (40.5%) |Training time=1.3s", "reinforcement"),
        ("{'loss': 0.69, 'rewards/chosen': 0.0, 'rewards/rejected': 0.0}", "preferences"),
        ("***** Evaluating rewards, Epoch 1/1 *****", "preferences"),
        ("***** Evaluating reward, Epoch 0/1 *****", "a reward model's training"),
    ],
)  # fmt: skip
def test_what_is_not_priced_is_refused(line: str, kind: str, tmp_path: Path) -> None:
    """In one line that names the kind, though the Trainer's mean would be there to read."""
    path = tmp_path / "train.log"
    done = "{'train_runtime': 510.0, 'train_steps_per_second': 1.941, 'epoch': 1.0}"
    path.write_text(f"{line}\n{done}\n", encoding="utf-8")
    with pytest.raises(UnreadableLog, match=kind):
        read_log(path, BATCH)


def test_what_a_log_says_of_its_speed() -> None:
    """NCCL's transport, and the allocator's retries of DeepSpeed and torchtitan."""
    nccl = "proj187:3096455:3098737 [5] NCCL INFO Using network Socket"
    assert warned(nccl) == (OVER_SOCKETS,)
    for line in (
        "3 pytorch allocator cache flushes since last step. this happens",
        "[titan] - root - WARNING - 12 CUDA memory allocation retries.",
    ):
        assert "less memory" in warned(line)[0]
    assert warned("NCCL INFO Using network IBext_v8\n0 CUDA OOM errors thrown.") == ()


def test_steps_of_differing_work_count_by_their_mean() -> None:
    """Three in ten steps of 4 s at no regular distance, the others of 1 s: the mean, 1.9 s, and no
    pause; at every fourth step they are evaluations, and 1 s is the step.
    """
    slow = {11, 14, 18, 21, 24, 28, 31, 34, 38}
    steps = tuple(LoggedStep(at, 4.0 if at in slow else 1.0, None) for at in range(11, 41))
    found = steady(TrainingLog(steps, None, None, warmed=True), "x")
    assert found.step_time_s == pytest.approx(1.9)
    assert found.differing
    assert found.pauses == 0
    regular = tuple(LoggedStep(at, 4.0 if at % 4 == 0 else 1.0, None) for at in range(11, 41))
    found = steady(TrainingLog(regular, None, None, warmed=True), "x")
    assert (found.step_time_s, found.pauses, found.differing) == (1.0, 8, False)
