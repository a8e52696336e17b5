"""Step time and memory out of the lines of four programs of pretraining.

    MaxText    completed step: 4, seconds: 5.669, TFLOP/s/device: 134.9, Tokens/s/device: 8670.2,
               total_weights: 196608, loss: 11.110
               from one step's dispatch to the next's, which the device's queue evens out after the
               first few
    OLMo-core  [step=20/1000,epoch=1,eta=2h]
                   train/CE loss=6.5
                   throughput/device/TPS=10,234
                   gpu_memory/GPU reserved mem (GiB)=61.20
               tokens per second and device, from the end of a step to the end of the next
    nanochat   step 00050/00100 (50.00%) | loss: 9.230000 | lrm: 1.00 | dt: 245.12ms | tok/sec: ...
               from a step's first forward to the end of its update, the device waited for; its
               speedruns end lines with a carriage return, and may not say the number of steps
    nanoGPT    iter 1631: loss 4.0863, time 561.94ms, mfu 31.20%
               of the step whose number it says, all its micro-steps included

Sources: AI-Hypercomputer/maxtext@e591f30c `src/maxtext/common/metric_logger.py`;
allenai/OLMo-core@fa6c5014 `src/olmo_core/train/callbacks/speed_monitor.py`, `console_logger.py`,
`gpu_memory_monitor.py`; karpathy/nanochat `scripts/base_train.py`;
karpathy/nanoGPT `train.py`.
"""

import re
from collections.abc import Iterator

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.console import BETWEEN, COUNT, NUMBER, PLAIN
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

_MAXTEXT = re.compile(
    rf"completed step: (?P<step>{COUNT}), seconds: (?P<taken>{PLAIN}){BETWEEN}"
    rf"\bloss: (?P<loss>{NUMBER})"
)
_NANOCHAT = re.compile(
    rf"\bstep (?P<step>{COUNT})(?:/{COUNT})? [^|\r\n]{{0,40}}\| loss: (?P<loss>{NUMBER}) \|"
    rf"[^\r\n]{{0,200}}? dt: (?P<ms>{PLAIN})ms \|"
)
_NANOGPT = re.compile(
    rf"\biter (?P<step>{COUNT}): loss (?P<loss>{NUMBER}), time (?P<ms>{PLAIN})ms\b"
)
_OLMO = re.compile(
    rf"\[step=(?P<step>{COUNT})/[^\]\n]{{1,100}}\][^\n]{{0,20}}\n"
    r"(?P<block>(?:[ \t][^\n]{1,200}(?:\n|\Z))+)"
)
_RATE = re.compile(r"throughput/device/TPS=(?P<value>[\d,]{1,30}(?:\.\d{1,9})?)")
_OLMO_LOSS = re.compile(rf"train/CE loss=(?P<value>{NUMBER})")
_RESERVED = re.compile(rf"gpu_memory/GPU reserved mem \(GiB\)=(?P<value>{PLAIN})")


def read_maxtext(text: str) -> TrainingLog:
    """MaxText's own log."""
    steps = (
        LoggedStep(int(m["step"]), float(m["taken"]), float(m["loss"]))
        for m in _MAXTEXT.finditer(text)
    )
    return TrainingLog(slowest(steps), None, None)


def read_nanochat(text: str) -> TrainingLog:
    """nanochat's own log, and those of programs that were made of it."""
    return _of_milliseconds(_NANOCHAT, text)


def read_nanogpt(text: str) -> TrainingLog:
    """nanoGPT's own log, and those of programs that were made of it."""
    return _of_milliseconds(_NANOGPT, text)


def _of_milliseconds(pattern: re.Pattern[str], text: str) -> TrainingLog:
    steps = (
        LoggedStep(int(m["step"]), float(m["ms"]) / 1e3, float(m["loss"]))
        for m in pattern.finditer(text)
    )
    return TrainingLog(slowest(steps), None, None)


def read_olmo(text: str, tokens_per_gpu: float) -> TrainingLog:
    """OLMo-core's own log; `tokens_per_gpu`: of a step."""
    peaks = [float(m["value"]) * GIB for m in _RESERVED.finditer(text)]
    return TrainingLog(
        slowest(_olmo_steps(text, tokens_per_gpu)), None, max(peaks, default=0.0) or None
    )


def _olmo_steps(text: str, tokens_per_gpu: float) -> Iterator[LoggedStep]:
    for block in _OLMO.finditer(text):
        rate, loss = _RATE.search(block["block"]), _OLMO_LOSS.search(block["block"])
        tokens_per_s = float(rate["value"].replace(",", "")) if rate else 0.0
        if tokens_per_s:
            yield LoggedStep(
                int(block["step"]), tokens_per_gpu / tokens_per_s,
                float(loss["value"]) if loss else None,
            )  # fmt: skip
