"""Logs of NeMo, Composer, LLaMA-Factory, TensorBoard, and what is easily taken for a step's time.

NeMo: AI-Hypercomputer/gpu-recipes (both), NVIDIA-BioNeMo. Composer: mosaicml/examples issue 414 and
lines of llm-foundry jobs. LLaMA-Factory: hiyouga/LlamaFactory issue 774. DeepSpeed's pipeline:
deepspeedai/DeepSpeed issue 2264. Primus: of MI355X, with the colours of its terminal. nanochat:
written after the line that its `scripts/base_train.py` prints, and forks of it. nanoGPT: its issue
110.
"""

import json
import struct
from pathlib import Path

import pytest

from meshplan.planner.logs.event_file import scalars
from meshplan.planner.logs.read import Batch, UnreadableLog, read_log, recognised
from meshplan.planner.logs.stated import stated
from meshplan.planner.logs.steady import steady

BATCH = Batch(sequences=128, tokens_per_gpu=8192, gpus=8)

NEMO_2 = """
Training epoch 0, iteration 48/49 | lr: 7.496e-06 | global_batch_size: 128 | global_step: 48 | \
peak_memory_usage: 70833405952 | reduced_train_loss: 11.96 | train_step_timing in s: 12.41
 0: Training epoch 0, iteration 49/49 | lr: 7.496e-06 | consumed_samples: 6400 | \
global_batch_size: 128 | global_step: 49 | reduced_train_loss: 11.90 | train_step_timing in s: 12.39
"""
NEMO_1 = (
    "Epoch 0: :  46%|####6     | 2001/4300 [06:07<07:13, reduced_train_loss=11.60, "
    "global_step=2e+3, consumed_samples=2.56e+5, train_step_timing in s=49.70]\r"
    "Epoch 0: :  47%|####7     | 2002/4300 [06:19<07:13, reduced_train_loss=11.50, "
    "global_step=2e+3, consumed_samples=2.56e+5, train_step_timing in s=49.50]"
)
COMPOSER = """
[batch=21/4800]:
\t Train time/batch: 20
\t Train time/sample: 2560
\t Train memory/peak_allocated_mem: 20.5000
\t Train memory/peak_reserved_mem: 26.1730
\t Train loss/train/total: 8.4213
\t Train throughput/batches_per_sec: 0.0027
\t Train throughput/samples_per_sec: 2.5600
\t Train time/train: 0.5249
\t Train lr-DecoupledAdamW/group0: 0.0000
[Eval batch=2/1000] Eval on eval data
[batch=22/4800]:
\t Train time/batch: 21
\t Train time/sample: 2688
\t Train loss/train/total: 8.4113
\t Train throughput/samples_per_sec: 3.2000
"""
PIPELINE = """
steps: 20 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601
[2022-08-25 02:58:04,341] [INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | \
pipe_send_output: 41.71 | pipe_recv_grad: 1725.64
steps: 30 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706
"""
PRIMUS = (
    "[[32m20251202 09:12:08[0m][[36mrank-7/8[0m][[1mINFO [0m] [1m[--------trainer.py:2560] : "
    "iteration 126/ 5000 | consumed samples: 16128 | elapsed time per iteration (ms): "
    "13372.8/13364.7 | hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% | "
    "throughput per GPU (TFLOP/s/GPU): 567.6/568.0 | tokens per GPU (tokens/s/GPU): 9801.4/9807.3 "
    "| learning rate: 9.984820E-06 | global batch size: 128 | lm loss: 6.548988E-03 |\n"
)
NANOCHAT = (
    "step 00049/00100 (49.00%) | loss: 9.310000 | lrm: 1.00 | dt: 247.88ms | tok/sec: 126,938 | "
    "bf16_mfu: 44.9 | epoch: 1 | total time: 0.16m | eta: 0.2m\n"
    "step 00050/00100 (50.00%) | loss: 9.230000 | grad norm: 1.1 | lrm: 1.00 | dt: 245.12ms | "
    "tok/sec: 125,000 | mfu: 45.23 | total time: 0.16m\nStep 00050 | Validation bpb: 1.2\n"
)
NANOCHAT_SPEEDRUN = (
    "\rstep 00007 (2.3%) | loss: 6.100000 | lrm: 1.00 | dt: 301ms | tok/sec: 1,741,000 | epoch: 1 "
    "| remaining: 280s    \rstep 00008 stg2 (2.6%) | loss: 6.000000 | lrm: 1.00 | dt: 299ms | "
    "tok/sec: 1,753,000 | mfu: 39.1% | remaining: 279s    "
)
NANOGPT = "step 1630: train loss 4.1, val loss 4.2\niter 1631: loss 4.0863, time 561.94ms\n" + (
    "iter 1632: loss 3.7441, time 563.15ms, mfu 31.20%\n"
)
NANOTRON_2025 = (
    "iteration: 7 / 20 | consumed_tokens: 634K | time_per_iteration_ms: 4.5K | tokens_per_sec: 1M "
    "| tokens_per_sec_per_gpu: 294 | global_batch_size: 1M | grad_norm: 1.1 | lm_loss: 9.63 | "
    "lr: 1e-05 | model_tflops_per_gpu: 38 | eta: 1 day, 2:03:04\n"
)


@pytest.mark.parametrize(
    ("text", "format_", "seconds"),
    [
        (NEMO_2, "nemo", {48: 12.41, 49: 12.39}),
        (NEMO_1, "nemo", {2001: 49.7, 2002: 49.5}),
        (COMPOSER, "composer", {21: 50.0, 22: 40.0}),
        (PIPELINE, "deepspeed", {20: 0.994, 30: 0.936}),
        (PRIMUS, "megatron", {126: 13.3728}),
        (NANOTRON_2025, "nanotron", {7: 4.5}),
        (NANOCHAT, "nanochat", {49: 0.24788, 50: 0.24512}),
        (NANOCHAT_SPEEDRUN, "nanochat", {7: 0.301, 8: 0.299}),
        (NANOGPT, "nanoGPT", {1631: 0.56194, 1632: 0.56315}),
    ],
    ids=[
        "NeMo 2", "NeMo 1: its bar's step, not the rounded one", "Composer: 128 / 2.56 a second",
        "DeepSpeed's pipeline", "Primus: this step's time, not the mean", "nanotron of 2025",
        "nanochat: no validation", "nanochat's speedruns, on one line of the terminal",
        "nanoGPT: no validation",
    ],
)  # fmt: skip
def test_lines_of_other_frameworks(text: str, format_: str, seconds: dict[int, float]) -> None:
    """The step and its seconds."""
    found = recognised(text, "train.log", BATCH)
    assert found.format == format_
    assert {s.step: s.step_time_s for s in found.log.steps} == pytest.approx(seconds)


def test_primus_counts_the_memory_in_use_on_the_device() -> None:
    """The most of all ranks and steps; its GB is 2**30 bytes (191.98 is a GPU's 192 GiB): no peak
    of the allocator's.
    """
    text = PRIMUS + PRIMUS.replace("153.81GB", "149.02GB")
    log = recognised(text, "train.log", BATCH).log
    assert log.device_peak_bytes == 153.81 * 2**30
    assert (log.allocated_peak_bytes, log.reserved_peak_bytes) == (None, None)


def test_composer_counts_memory_in_1e9_bytes() -> None:
    """As its memory monitor divides."""
    log = recognised(COMPOSER, "train.log", BATCH).log
    assert (log.allocated_peak_bytes, log.reserved_peak_bytes) == (20.5e9, 26.173e9)


def test_a_batch_that_is_not_the_configs_is_left_out(tmp_path: Path) -> None:
    """64 sequences of a batch (2,560 over 20 is 128): Composer's and NeMo's are refused."""
    for text in (COMPOSER, NEMO_2):
        path = tmp_path / "a.log"
        path.write_text(text)
        with pytest.raises(UnreadableLog, match="of 128 sequences, not the config's 64"):
            read_log(path, Batch(sequences=64, tokens_per_gpu=4096, gpus=8))


def test_llama_factory_is_read_off_its_clock() -> None:
    """Of 5:13:22, 5:14:24, 5:15:22 over ten steps each 6.2 and 5.8 s, null or missing losses or
    not; a start anew (the clock goes back) is none.
    """
    rows = [(3200, "5:13:22"), (3210, "5:14:24"), (3220, "5:15:22"), (3225, "5:15:40"),
            (3230, "0:00:40"), (3240, "0:01:30")]  # fmt: skip
    text = "".join(
        json.dumps({"current_steps": s, "total_steps": 3235, "loss": None, "elapsed_time": t})
        + "\n"
        for s, t in rows
    )
    found = recognised(text, "trainer_log.jsonl", BATCH)
    assert found.format == "trainer_log.jsonl"
    assert [s.step_time_s for s in found.log.steps] == pytest.approx([6.2, 5.8, 5.0])


TITAN = "[titan] step: {step:2}  loss: 7.6  memory: 66.91GiB(37.51%)  {rate}: {tps}  mfu: 13.99%\n"


def test_torchtitans_validation_is_no_step() -> None:
    """A first validation compiles and is slower than a step; "wps" was the word until 2025."""
    text = TITAN.format(step=10, rate="wps", tps="8,192") + (
        "\x1b[33mvalidate step: 10  \x1b[32mloss:  7.5  memory: 60.00GiB(33.00%)  tps: 100\n"
    )
    log = recognised(text, "train.log", BATCH).log
    assert [(s.step, s.step_time_s) for s in log.steps] == [(10, 1.0)]


def test_a_micro_steps_rate_is_said() -> None:
    """DeepSpeed 0.7 prints the rate of one micro-step; today's of the step."""
    old = "[timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=2.7, CurrSamplesPerSec=12.8, "
    new = (
        "[timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, \
CurrSamplesPerSec=12.8, "
    )
    for line, said in ((old, True), (new, False)):
        log = recognised(f"{line}MemAllocated=0.3GB, MaxMemAllocated=15.0GB", "a.log", BATCH).log
        assert [s.step_time_s for s in log.steps] == [10.0]
        assert any("single micro-steps" in note for note in log.notes) == said


BAR = "  1%|x| {step}/1000 [{minutes:02}:{seconds:02}<1:00:00,  2.00s/it]\n"
DONE = "{{'train_runtime': {runtime}, 'train_steps_per_second': {rate}, 'train_loss': 0.8}}\n"


def _trainer(first: int, before: str = "") -> str:
    """Steps `first` to 1,000 of 2 s each, by the Trainer's bar, and its last line."""
    bar = "".join(
        BAR.format(
            step=step, minutes=(step - first + 1) * 2 // 60, seconds=(step - first + 1) * 2 % 60
        )
        for step in range(first, 1001, 9)
    )
    runtime = (1001 - first) * 2
    return before + bar + DONE.format(runtime=f"{runtime:.1f}", rate=round(1000 / runtime, 3))


@pytest.mark.parametrize(
    "text",
    [
        _trainer(1),
        _trainer(501),
        _trainer(501, before=_trainer(1).split("{")[0]),
        "  Continuing training from global step 500\n{'loss': 1.0}\n"
        + DONE.format(runtime=1000.0, rate=1.0),
    ],
    ids=["whole", "resumed", "two starts in one log", "resumed, no bar"],
)
def test_a_resumed_job_counts_the_steps_of_its_last_start(text: str) -> None:
    """500 of 1,000 steps in 1,000 s are 2 s each: the Trainer's own rate says one a second."""
    log = recognised(text, "train.log", BATCH).log
    assert [s.step_time_s for s in log.steps] == pytest.approx([2.0], rel=0.01)
    assert log.whole
    assert ("resumed at step 500" in log.notes[0]) == ("501/" in text or "Continuing" in text)


def _message(*fields: tuple[int, object]) -> bytes:
    """A protobuf message of doubles, floats wrapped in a list, integers, text and messages."""
    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += bytes([number << 3 | 1]) + struct.pack("<d", value)
        elif isinstance(value, list):
            data += bytes([number << 3 | 5]) + struct.pack("<f", value[0])
        elif isinstance(value, int):
            data += bytes([number << 3]) + _number(value)
        else:
            part = value.encode() if isinstance(value, str) else value
            assert isinstance(part, bytes)
            data += bytes([number << 3 | 2]) + _number(len(part)) + part
    return data


def _number(value: int) -> bytes:
    found = []
    while True:
        value, low = value >> 7, value & 127
        found.append(low | 128 * (value > 0))
        if not value:
            return bytes(found)


def _events(*scalars_: tuple[int, float, str, float]) -> bytes:
    """An event file, by the formats' own descriptions."""
    events = [_message((1, 99.0), (3, "brain.Event:2"))]
    for step, wall_time_s, tag, value in scalars_:
        summary = _message((1, _message((1, tag), (2, [value]))))
        events.append(_message((1, wall_time_s), (2, step), (5, summary)))
    return b"".join(struct.pack("<QI", len(e), 0) + e + struct.pack("<I", 0) for e in events)


def test_an_event_file_is_read(tmp_path: Path) -> None:
    """Megatron-LM's tags: seconds of `iteration-time`, not of what has samples for its steps; a
    record that is still being written is passed over.
    """
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    rows = [(300, 100.0 + at, "iteration-time", 2.5) for at in range(3)]
    data = _events(
        *((at, s, tag, value) for at, (_, s, tag, value) in enumerate(rows, 300)),
        (9000, 103.0, "iteration-time vs samples", 7.0), (303, 104.0, "lm loss", 2.0),
    )  # fmt: skip
    path.write_bytes(data + data[:20])
    found = read_log(path, BATCH)
    assert found.format == "TensorBoard events"
    assert [(s.step, s.step_time_s) for s in found.log.steps] == [
        (300, 2.5),
        (301, 2.5),
        (302, 2.5),
    ]


def test_an_event_file_of_losses_alone_has_its_clock(tmp_path: Path) -> None:
    """The Trainer's: 10 steps in 20 s."""
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(_events(*((10 * at, 20.0 * at, "train/loss", 2.0) for at in range(1, 5))))
    log = read_log(path, BATCH).log
    assert [s.step_time_s for s in log.steps] == [2.0, 2.0, 2.0]
    assert steady(log, "").step_time_s == 2.0
    assert "between time stamps" in log.notes[0]


def test_what_is_no_event_file_is_refused(tmp_path: Path) -> None:
    """Random bytes, or none."""
    path = tmp_path / "events.out.tfevents.1"
    for data in (b"", b"hello, this is no record at all", struct.pack("<QI", 4, 0) + b"\xff" * 8):
        path.write_bytes(data)
        with pytest.raises(UnreadableLog, match="no step times found"):
            read_log(path, BATCH)
    with path.open("rb") as file:
        assert list(scalars(file)) == []


@pytest.mark.parametrize("count", ["train/global_step", "trainer/global_step"])
def test_wandb_counts_records_where_the_trainer_counts_steps(count: str) -> None:
    """A record each ten steps and 20 s: 2 s a step, not 20."""
    rows = ({"_step": at, "_runtime": 20 * at, count: 10 * at, "train/loss": 1} for at in range(5))
    log = recognised("".join(json.dumps(row) + "\n" for row in rows), "h.jsonl", BATCH).log
    assert {s.step: s.step_time_s for s in log.steps} == {10: 2.0, 20: 2.0, 30: 2.0, 40: 2.0}


def test_what_a_log_says_of_its_run() -> None:
    """Megatron-LM's and torchtitan's own lines; of two starts both values."""
    megatron = (
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, "
        "hierarchical context-parallel sizes: None, tensor-model-parallel size: 4, "
        "pipeline-model-parallel size: 2\n"
    )
    assert stated(megatron) == {
        "gpus": {16}, "tensor_parallel": {4}, "pipeline_parallel": {2}, "context_parallel": {1},
    }  # fmt: skip
    titan = (
        "[titan] 2025-08-22 07:52:57,498 - root - INFO - Trainer is initialized with local batch "
        "size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total\n"
    )
    assert stated(titan) == {"sequences": {8}, "sequence_length": {8192}}
    old = "using world size: 4, data-parallel-size: 4, tensor-model-parallel size: 1\n"
    assert stated(megatron + old)["gpus"] == {4, 16}
    assert stated("[INFO] [config.py:864:print]   train_batch_size ............. 32\n") == {
        "sequences": {32}
    }


@pytest.mark.parametrize(
    ("line", "gpus", "degrees"),
    [
        pytest.param("parallelism: pp=2, dp_replicate=2, dp_shard=4, cp=1, tp=8, ep=4, etp=1",
                     128, {"tensor": 8, "pipeline": 2, "context": 1, "expert": 4}, id="today"),
        pytest.param("parallelism: dp_replicate=1, dp_shard=6, cp=2",
                     12, {"tensor": 1, "pipeline": 1, "context": 2}, id="without experts"),
    ],
)  # fmt: skip
def test_a_device_mesh_states_the_layout(line: str, gpus: int, degrees: dict[str, int]) -> None:
    """torchtitan's: the axis of experts divides GPUs that the others have divided already."""
    named = {f"{name}_parallel": {degree} for name, degree in degrees.items()}
    assert stated(f"[titan] - root - INFO - Building device mesh with {line}\n") == {
        "gpus": {gpus}, **named,
    }  # fmt: skip


def test_a_device_mesh_as_it_was_printed_before() -> None:
    """Axes of one rank are left out; axes of another program say nothing."""
    old = "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
    said = stated(old)
    assert (said["gpus"], said["tensor_parallel"], said["pipeline_parallel"]) == ({8}, {2}, {1})
    assert stated("Building 1-D device mesh with ('dp',), [4]\n")["gpus"] == {4}
    experts = "Building 2-D device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep'], [2, 3]\n"
    assert stated(experts)["gpus"] == {6}
    assert not stated("Building 2-D device mesh with ['dp', 'tp_w_sp'], [4, 2]\n")
    now = "Trainer is initialized with 4096 tokens per DP rank, 262144 tokens per train step\n"
    assert stated(now) == {"tokens": {262144}}
