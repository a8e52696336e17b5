"""Step time and memory out of the blocks that Composer (llm-foundry) prints.

    [batch=21/4800]:
             Train time/batch: 20
             Train time/sample: 20480
             Train loss/train/total: 8.4213
             Train throughput/samples_per_sec: 2.7330
             Train memory/peak_reserved_mem: 26.1730

Samples per second are a mean over the batches of `SpeedMonitor`'s window, of all GPUs, without
evaluations. A batch's own rate has four decimals, which of a long step is one digit. Memory is in
1e9 bytes. `time/batch` and `time/sample` count what was before the batch.

Source: mosaicml/composer `composer/loggers/console_logger.py`, `composer/callbacks/
speed_monitor.py`, `composer/callbacks/memory_monitor.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from meshplan.costmodels.units import GB
from meshplan.planner.logs.console import NUMBER
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

_BLOCK = re.compile(
    r"\[batch=\d{1,12}(?:/\d{1,12})?\]:[^\n]{0,20}\n((?:[ \t]+Train [^\n]{1,400}\n?)+)"
)
_FIELD = re.compile(rf"^[ \t]+Train (?P<name>[\w/-]{{1,100}}): (?P<value>{NUMBER})[ \t]*$", re.M)


def read_composer(text: str, sequences: int) -> TrainingLog:
    """Composer's own log; `sequences`: of a step, over all ranks."""
    blocks = [
        {m["name"]: float(m["value"]) for m in _FIELD.finditer(block[1])}
        for block in _BLOCK.finditer(text)
    ]
    steps = slowest(_steps(blocks, sequences))
    allocated, reserved = (
        max((block.get(f"memory/peak_{kind}_mem", 0.0) for block in blocks), default=0.0) * GB
        for kind in ("allocated", "reserved")
    )
    return TrainingLog(
        steps, allocated or None, reserved or None, notes=(WINDOWED,) * bool(steps)
    )  # fmt: skip


def _steps(blocks: Sequence[Mapping[str, float]], sequences: int) -> Iterator[LoggedStep]:
    for block in blocks:
        batches, rate = block.get("time/batch"), block.get("throughput/samples_per_sec")
        if batches is None or not rate:
            continue
        seen = block.get("time/sample")
        each = seen / batches if seen and batches else sequences
        yield LoggedStep(
            int(batches) + 1, sequences / rate, block.get("loss/train/total"),
            sequences=round(each),
        )  # fmt: skip


WINDOWED = "Composer's samples_per_sec: means over the batches of SpeedMonitor's window"
