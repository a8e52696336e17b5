"""Real log lines of four frameworks, read back.

Megatron-LM: NVIDIA/Megatron-LM issue 756 (Mixtral 8x7B, 16 H100) and pull request 5662.
nanotron: huggingface/nanotron issue 390 and pull request 23.
torchtitan: pytorch/torchtitan pull requests 2389, 1287 and 3393.
AutoModel: NVIDIA-NeMo/Automodel pull request 3473. Of torchtune lines as DiskLogger writes them.
"""

import re
from pathlib import Path

import pytest

from meshplan.costmodels.units import GIB, MIB
from meshplan.planner.logs.console import (
    READERS,
    read_megatron,
    read_nanotron,
    read_torchtitan,
)
from meshplan.planner.logs.lines import plain
from meshplan.planner.logs.read import Batch, UnreadableLog, read_log, recognised

MEGATRON = """
[Rank 1] (after 1 iterations) memory (MB) | allocated: 54250.97802734375 | max allocated: \
54250.98583984375 | reserved: 61480.0 | max reserved: 61480.0
 [2024-04-06 02:55:45] iteration        2/     100 | consumed samples:          256 | elapsed \
time per iteration (ms): 5630.1 | throughput per GPU (TFLOP/s/GPU): 231.9 | learning rate: \
4.000000E-07 | global batch size:   128 | lm loss: 2.021530E+00 | load_balancing_loss: \
1.087362E+00 | loss scale: 1.0 | grad norm: 6.895 | num zeros: 0.0 | number of skipped \
iterations:   0 | number of nan iterations:   0 |
 [2024-04-06 02:55:50] iteration        3/     100 | consumed samples:          384 | elapsed \
time per iteration (ms): 5410.6 | throughput per GPU (TFLOP/s/GPU): 241.4 | learning rate: \
6.000000E-07 | global batch size:   128 | lm loss: 2.003316E+00 | load_balancing_loss: \
1.085377E+00 | loss scale: 1.0 | grad norm: 6.603 | num zeros: 0.0 |
"""
MEGATRON_2026 = """
[2026-07-10 05:46:31.627699] iteration       20/      20 | consumed samples:          320 | \
elapsed time per iteration (ms): 744.0 | learning rate: 0.000000E+00 | global batch size:    16 | \
lm loss: 1.020935E+00 | loss scale: 1.0 | grad norm: 2.939 |
[Rank 0] (after 20 iterations) memory (MB) | allocated: 3270.16 | max allocated: 5670.39 | \
reserved: 6406.00 | max reserved: 6406.00
"""
# A step whose gradients overflow prints no loss (NVIDIA/Megatron-LM issue 60).
MEGATRON_SKIPPED = (
    " iteration        5/  120000 | elapsed time per iteration (ms): 16491.5 | learning rate: "
    "0.000E+00 | loss scale: 268435456.0 | number of skipped iterations:   5 |"
)
NANOTRON = """
01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 991 / 1000 | \
consumed_tokens: 634K | elapsed_time_per_iteration_ms: 272 | tokens_per_sec: 2.35K | \
tokens_per_sec_per_gpu: 294 | global_batch_size: 20 | lm_loss: 9.63 | lr: 1e-05 | \
model_tflops_per_gpu: 0.00744 | hardware_tflops_per_gpu: 0.0075 | grad_norm: 1.11 | \
cuda_memory_allocated: 90.9M | cuda_max_memory_reserved: 570M | hd_total_memory_tb: 312G
10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 327281 / 378950 | consumed_tokens: 85.8G | \
elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | \
global_batch_size: 64 | lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | \
hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25
08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]:  Memory usage: 64.15MiB. Peak allocated 309.29MiB. \
Peak reserved: 496.00MiB
"""
TITAN = """
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  \
memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  \
memory: 66.91GiB(37.51%)  tps: 10,049  tflops: 314.68  mfu: 13.99%
[rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: \
49.66GiB(52.28%)  tps: 5,593  tflops: 323.92  mfu: 32.75%
[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  \
0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
"""

# torchtitan 0.2.2 on two CPU processes, whose device module counts no memory (2026-11-22).
TITAN_ON_CPU = """
[titan] 2026-11-22 11:11:47,874 - root - INFO - \x1b[31mstep: 20  \x1b[32mloss:  4.14551  \
\x1b[38;2;180;60;0mgrad_norm:  2.8492  \x1b[38;2;54;234;195mmemory: -0.00GiB(-0.00%)  \
\x1b[34mtps: 1,327  \x1b[36mtflops: 0.05  \x1b[35mmfu: 0.02%\x1b[39m
"""


def test_a_device_that_counts_no_memory() -> None:
    """4,096 tokens on two ranks at 1,327 a second and rank are 1.54 s; no peak is no peak."""
    log = read_torchtitan(plain(TITAN_ON_CPU), tokens_per_gpu=2048)
    assert [(s.step, s.loss) for s in log.steps] == [(20, 4.14551)]
    assert log.steps[0].step_time_s == pytest.approx(2048 / 1327)
    assert log.reserved_peak_bytes is None


def test_megatron_lines() -> None:
    """Milliseconds, loss, and peaks in units of 2**20 bytes that Megatron calls MB."""
    log = read_megatron(MEGATRON, tokens_per_gpu=0)
    assert [(s.step, s.loss) for s in log.steps] == [(2, 2.02153), (3, 2.003316)]
    assert [s.step_time_s for s in log.steps] == pytest.approx([5.6301, 5.4106])
    assert log.allocated_peak_bytes == pytest.approx(54250.98583984375 * MIB)
    assert log.reserved_peak_bytes == 61480 * MIB


def test_megatron_of_this_year() -> None:
    """The date has microseconds now and the peaks two digits; both formats are read."""
    log = read_megatron(MEGATRON_2026, tokens_per_gpu=0)
    assert log.steps[0].step_time_s == pytest.approx(0.744)
    assert log.reserved_peak_bytes == 6406 * MIB


def test_megatron_step_without_a_loss() -> None:
    """A skipped step has a time and no loss."""
    (step,) = read_megatron(MEGATRON_SKIPPED, tokens_per_gpu=0).steps
    assert (step.step, step.loss) == (5, None)
    assert step.step_time_s == pytest.approx(16.4915)


def test_nanotron_lines() -> None:
    """11.5K ms is 11.5 s, with the host's name in the prefix or without; peaks are in MiB."""
    log = read_nanotron(NANOTRON, tokens_per_gpu=0)
    assert [(s.step, s.loss) for s in log.steps] == [(991, 9.63), (327281, 2.38)]
    assert [s.step_time_s for s in log.steps] == pytest.approx([0.272, 11.5])
    assert log.allocated_peak_bytes == pytest.approx(309.29 * MIB)
    assert log.reserved_peak_bytes == 496 * MIB


def test_torchtitan_lines() -> None:
    """Tokens per GPU / tps is the step; of two ranks' lines for one step the slower counts."""
    log = read_torchtitan(TITAN, tokens_per_gpu=16384)
    times = {s.step: s.step_time_s for s in log.steps}
    assert times == pytest.approx({4: 16384 / 10049, 14: 16384 / 7282, 210: 16384 / 5593})
    assert log.reserved_peak_bytes == pytest.approx(66.91 * GIB)
    assert log.allocated_peak_bytes is None  # torchtitan prints the reserved peak only


def test_torchtitan_in_colour() -> None:
    """The colours that torchtitan puts around each figure on a terminal do not matter."""
    coloured = TITAN.replace("step:", "\x1b[31mstep:").replace("tps:", "\x1b[0m\x1b[34mtps:")
    assert read_torchtitan(plain(coloured), 16384) == read_torchtitan(TITAN, 16384)


@pytest.mark.parametrize("name", READERS)
def test_a_log_without_steps_has_none(name: str) -> None:
    """A run that died while loading gives no steps and no memory, not zeros."""
    log = READERS[name]("Traceback (most recent call last):\n  RuntimeError: out of memory", 1.0)
    assert (log.steps, log.reserved_peak_bytes) == ((), None)


AUTOMODEL = """
2026-08-10 15:55:23 | INFO | root | step 10 | epoch 0 | loss 0.8534 | grad_norm 1.5040 | \
lr 1.00e-05 | mem 29.67 GiB | tps 13746.23(1718.28/gpu) | num_label_tokens 29550
2026-08-10 15:55:25 | INFO | root | step 11 | epoch 0 | loss 0.6172 | grad_norm 1.4094 | \
lr 1.00e-05 | mem 24.46 GiB | tps 9808.31(1226.04/gpu) | num_label_tokens 19744
"""
TORCHTUNE = """
Step 1 | loss:1.7535 lr:2e-05 tokens_per_second_per_gpu:2048.0 peak_memory_active:9.1 \
peak_memory_alloc:9.0 peak_memory_reserved:12.5 \nStep 2 | loss:1.5729 lr:2e-05 \
tokens_per_second_per_gpu:4096 peak_memory_active:9.6 peak_memory_alloc:9.5 \
peak_memory_reserved:12.0 \n"""
OF_EIGHT = Batch(sequences=8, tokens_per_gpu=4096, gpus=8)


def test_automodel_lines() -> None:
    """8 x 4,096 tokens over the rate of all GPUs; the number behind it is of replicas alone."""
    found = recognised(AUTOMODEL, "train.log", OF_EIGHT)
    assert found.format == "automodel"
    assert [(s.step, s.loss) for s in found.log.steps] == [(10, 0.8534), (11, 0.6172)]
    times = [s.step_time_s for s in found.log.steps]
    assert times == pytest.approx([32768 / 13746.23, 32768 / 9808.31])
    assert found.log.allocated_peak_bytes == pytest.approx(29.67 * GIB)
    assert "every token counts" in found.log.notes[0]


def test_torchtune_lines() -> None:
    """4,096 tokens of each GPU: 4,096 / 2,048 = 2 s, then 1 s; the largest peaks, in GiB."""
    found = recognised(TORCHTUNE, "log_1.txt", OF_EIGHT)
    assert found.format == "torchtune"
    assert [(s.step, s.step_time_s) for s in found.log.steps] == [(1, 2.0), (2, 1.0)]
    assert found.log.allocated_peak_bytes == 9.5 * GIB
    assert found.log.reserved_peak_bytes == 12.5 * GIB


@pytest.mark.parametrize(
    ("row", "taken_s"),
    [
        ('"tps": 8192.0, "tps_per_gpu": 1024.0, "num_tokens_per_step": 24576', 3.0),
        ('"tokens_per_second_per_gpu": 2048.0, "peak_memory_alloc": 9.5', 2.0),
    ],
    ids=["AutoModel: its own 24,576 tokens / 8,192", "torchtune: 4,096 / 2,048"],
)
def test_both_as_json_lines(row: str, taken_s: float) -> None:
    """A record a step, as their loggers write them."""
    rows = "".join(f'{{"step": {step}, "loss": 1.5, {row}}}\n' for step in (3, 4))
    log = recognised(rows, "training.jsonl", OF_EIGHT).log
    assert [(s.step, s.step_time_s, s.loss) for s in log.steps] == [(3, taken_s, 1.5),
                                                                    (4, taken_s, 1.5)]  # fmt: skip


def test_a_step_that_took_no_time_is_none(tmp_path: Path) -> None:
    """Of two steps one; of a log whose clock stands still none."""
    path, still = tmp_path / "train.log", re.compile(r"\(ms\): 5630\.1")
    path.write_text(still.sub("(ms): 0.0", MEGATRON))
    batch = Batch(sequences=128, tokens_per_gpu=8192, gpus=16)
    assert [step.step for step in read_log(path, batch).log.steps] == [3]
    path.write_text(re.sub(r"\(ms\): [\d.]+", "(ms): 0.0", MEGATRON))
    with pytest.raises(UnreadableLog, match="no step times found"):
        read_log(path, batch)
