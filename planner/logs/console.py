"""Step time and memory out of the lines that training frameworks print.

    torchtitan    step:  4  loss:  7.6  ...  memory: 66.91GiB(37.51%)  tps: 10,050  ...
                  tps (until 2025 wps) is tokens per second and GPU; memory is the reserved peak,
                  nothing or less where the device counts none; "validate step:" is none
    Megatron-LM   iteration  2/ 100 | ... | elapsed time per iteration (ms): 5630.1 | ...
                  global batch size: 128 | ...; some forks print seconds, "(s)"
                  [Rank 1] (after 1 iterations) memory (MB) | ... | max allocated: A | ... |
                  max reserved: R, where MB is 2**20 bytes
                  hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09%
                  of Primus, by hipMemGetInfo: what all processes use of the device; 2**30 bytes
    nanotron      iteration: 1 / 15 | ... | elapsed_time_per_iteration_ms: 4.71K | ...
                  or time_per_iteration_ms, since 2025
                  Memory usage: 64.15MiB. Peak allocated 309.29MiB. Peak reserved: 496.00MiB
                  numbers are shortened with K, M, B/G, T in powers of 1000
    DeepSpeed     epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03,
                  CurrSamplesPerSec=25.70, MemAllocated=4.32GB, MaxMemAllocated=38.49GB
                  sequences of the whole batch per second; GB is 2**30 bytes. Until 0.7 ("0/20,"
                  before the rates) of one micro-step, every `steps_per_print` of which is logged
                  steps: 20 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601
                  of its pipeline engine, mean of the steps since the line before

Ranks may all print the same step: the slowest counts. Sources: torchtitan@b5bcd76
`torchtitan/components/metrics.py`, Megatron-LM@d98e8a64 `megatron/training/training.py`,
nanotron@2411b02 `src/nanotron/trainer.py`, DeepSpeed 0.19.8 `deepspeed/utils/timer.py`
and v0.7.3 (`ThroughputTimer.stop`), `deepspeed/runtime/pipe/engine.py`; of seconds,
bigscience-workshop/Megatron-DeepSpeed `megatron/training.py`; AMD-AGI/Primus
`primus/backends/megatron/patches/training_log/print_rank_last_patches.py` (MemoryStatsExtension).
"""

import re
from collections.abc import Callable, Iterator

from meshplan.costmodels.units import GIB, MIB
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

COUNT = r"\d{1,12}"
PLAIN = r"\d{1,30}(?:\.\d{0,30})?"
NUMBER = rf"[-+]?(?:{PLAIN}(?:[eE][-+]?\d{{1,4}})?|nan|inf)"
BETWEEN = ".{0,400}?"  # of one line; a bound, as a line may be very long
TITAN = re.compile(
    rf"(?<!validate )step:\s{{0,9}}(?P<step>{COUNT})\s{{1,9}}loss:\s{{0,9}}(?P<loss>{NUMBER})"
    rf"{BETWEEN}memory:\s{{0,9}}(?P<gib>-?{PLAIN})GiB{BETWEEN}"
    r"[tw]ps:\s{0,9}(?P<tps>\d[\d,]{0,30})"
)
MEGATRON = re.compile(
    rf"iteration\s{{1,9}}(?P<step>{COUNT})/\s{{0,9}}\d{{1,12}} \|{BETWEEN}"
    rf"elapsed time per iteration \((?P<unit>m?s)\):\s{{0,9}}(?P<taken>{PLAIN})"
)
MEGATRON_BATCH = re.compile(rf"\| global batch size:\s{{0,9}}(?P<sequences>{COUNT})")
MEGATRON_LOSS = re.compile(rf"\| lm loss:\s{{0,9}}(?P<loss>{NUMBER})", re.I)
MEGATRON_MEMORY = re.compile(
    rf"max allocated: (?P<allocated>{PLAIN}){BETWEEN}max reserved: (?P<reserved>{PLAIN})"
)
PRIMUS_MEMORY = re.compile(rf"\bhip mem usage/free/total/usage_ratio: (?P<used>{PLAIN})GB/")
NANOTRON = re.compile(
    rf"iteration: (?P<step>{COUNT}) / \d{{1,12}} \|{BETWEEN}"
    rf"\b(?:elapsed_)?time_per_iteration_ms: (?P<ms>{PLAIN})(?P<scale>[KMBGT]?){BETWEEN}"
    rf"lm_loss: (?P<loss>{NUMBER})"
)
NANOTRON_MEMORY = re.compile(
    rf"Peak allocated (?P<allocated>{PLAIN})MiB\. Peak reserved: (?P<reserved>{PLAIN})MiB"
)
DEEPSPEED = re.compile(
    rf"(?:global_step=|\d/)(?P<step>{COUNT}), RunningAvgSamplesPerSec=.{{1,40}}?, "
    rf"CurrSamplesPerSec=(?P<rate>{PLAIN}), MemAllocated={PLAIN}GB, "
    rf"MaxMemAllocated=(?P<gib>{PLAIN})GB"
)
DEEPSPEED_MICRO_STEPS = re.compile(rf"(?<![\d/=])\d{{1,6}}/{COUNT}, RunningAvgSamplesPerSec=")
DEEPSPEED_PIPELINE = re.compile(
    rf"\bsteps: (?P<step>{COUNT}) loss: (?P<loss>{NUMBER}) {BETWEEN}"
    rf"iter time \(s\): (?P<taken>{PLAIN}) samples/sec: {PLAIN}"
)
SECONDS = {"ms": 1e-3, "s": 1.0}
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def read_torchtitan(text: str, tokens_per_gpu: float) -> TrainingLog:
    """`tokens_per_gpu`: global batch tokens over GPUs; with it, tps becomes seconds."""
    found = [
        m for m in TITAN.finditer(text) if float(m["tps"].replace(",", ""))
    ]  # 0 is no step's rate
    steps = (
        LoggedStep(
            int(m["step"]), tokens_per_gpu / float(m["tps"].replace(",", "")), float(m["loss"])
        )
        for m in found
    )
    reserved = max((float(m["gib"]) * GIB for m in found), default=0.0)
    return TrainingLog(slowest(steps), None, reserved if reserved > 0 else None)


def read_megatron(text: str, tokens_per_gpu: float) -> TrainingLog:
    """Megatron-LM's own log; `tokens_per_gpu` is not needed."""
    del tokens_per_gpu
    used = max((float(m["used"]) * GIB for m in PRIMUS_MEMORY.finditer(text)), default=0.0)
    peaks = _peaks(MEGATRON_MEMORY, text)
    return TrainingLog(slowest(_megatron_steps(text)), *peaks, used or None)


def _megatron_steps(text: str) -> Iterator[LoggedStep]:
    for line in text.splitlines():
        match, loss = MEGATRON.search(line), MEGATRON_LOSS.search(line)
        if match:
            value = float(loss["loss"]) if loss else None  # none is printed for a skipped step
            batch = MEGATRON_BATCH.search(line)
            yield LoggedStep(
                int(match["step"]), float(match["taken"]) * SECONDS[match["unit"]], value,
                sequences=int(batch["sequences"]) if batch else None,
            )  # fmt: skip


def read_nanotron(text: str, tokens_per_gpu: float) -> TrainingLog:
    """nanotron's own log; `tokens_per_gpu` is not needed."""
    del tokens_per_gpu
    steps = (
        LoggedStep(int(m["step"]), float(m["ms"]) * SCALES[m["scale"]] / 1e3, float(m["loss"]))
        for m in NANOTRON.finditer(text)
    )
    return TrainingLog(slowest(steps), *_peaks(NANOTRON_MEMORY, text))


def read_deepspeed(text: str, batch: float) -> TrainingLog:
    """DeepSpeed's throughput timer; `batch`: sequences of a step, over all ranks. What its pipeline
    engine prints is a step's time already.
    """
    found = [m for m in DEEPSPEED.finditer(text) if float(m["rate"])]
    pipelined = [
        LoggedStep(int(m["step"]), float(m["taken"]), float(m["loss"]))
        for m in DEEPSPEED_PIPELINE.finditer(text)
    ]
    steps = pipelined or [LoggedStep(int(m["step"]), batch / float(m["rate"]), None) for m in found]
    allocated = max((float(m["gib"]) * GIB for m in found), default=0.0)
    micro = not pipelined and DEEPSPEED_MICRO_STEPS.search(text)
    return TrainingLog(
        slowest(steps), allocated or None, None, notes=(OF_MICRO_STEPS,) * bool(micro)
    )


OF_MICRO_STEPS = (
    "DeepSpeed before 0.8 times single micro-steps: right without gradient accumulation, else with "
    "an optimizer step for each micro-batch"
)


READERS: dict[str, Callable[[str, float], TrainingLog]] = {
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
    "nanotron": read_nanotron,
}


def _peaks(pattern: re.Pattern[str], text: str) -> tuple[float | None, float | None]:
    """Largest allocated and reserved peaks of any rank, in bytes."""
    found = list(pattern.finditer(text))
    allocated, reserved = (
        max((float(m[name]) * MIB for m in found), default=None)
        for name in ("allocated", "reserved")
    )
    return allocated, reserved
