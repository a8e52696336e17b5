"""Step time out of the lines of NeMo.

    NeMo 2   Training epoch 0, iteration 12/99 | lr: 1e-05 | global_batch_size: 128 |
             global_step: 12 | reduced_train_loss: 6.2 | train_step_timing in s: 12.22 | ...
    NeMo 1   Epoch 0: :  47%|####7     | 7/15 [06:19<07:13, reduced_train_loss=11.50,
             global_step=5.000, consumed_samples=12288.0, train_step_timing in s=49.50]

    the same, without a timing: `| 795/77225 [9:07:58<878:01:48, 41.36s/it, ...,
             reduced_train_loss=3.090, global_step=794.0]`: between entries 30 s and more apart

The time is from a batch's start to its end, optimizer included; what lies between two batches is
not in it. Fields come in any order. NeMo 1 rounds its global step to four digits: the bar counts.

Sources: NVIDIA-NeMo/Speech `nemo/utils/exp_manager.py` (TimingCallback), `nemo/lightning/pytorch/
callbacks/progress_printer.py`; logs in AI-Hypercomputer/gpu-recipes and
NVIDIA/NeMo-Framework-Launcher issue 55.
"""

import re
from collections.abc import Iterator

from meshplan.planner.logs.console import BETWEEN, COUNT, NUMBER, PLAIN
from meshplan.planner.logs.trainer_console import Clock, entries
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

_TIMED = "train_step_timing in s"
_TAKEN = re.compile(rf"\b{_TIMED}(?:: |=)(?P<taken>{PLAIN})")
_STEP = re.compile(
    rf"(?:\biteration (?P<printed>{COUNT})/\d{{1,12}} \||"
    rf"\| (?P<bar>{COUNT})/\d{{1,12}} \[){BETWEEN}train_step_timing"
)
_BATCH = re.compile(rf"\bglobal_batch_size: (?P<sequences>{COUNT})\b")
_LOSS = re.compile(rf"\breduced_train_loss(?:: |=)(?P<loss>{NUMBER})")


_BAR = re.compile(
    rf"\| (?P<step>{COUNT})/(?P<total>\d{{1,12}}) \[(?:(?P<hours>\d{{1,4}}):)?(?P<minutes>\d{{2}}):"
    r"(?P<seconds>\d{2})<[^\]]{0,400}\breduced_train_loss="
)


def read_nemo(text: str) -> TrainingLog:
    """NeMo's own log, by its timing, else by the clock of NeMo 1's bar."""
    steps = slowest(_steps(text))
    if steps:
        return TrainingLog(steps, None, None, notes=(WITHIN_BATCHES,))
    steps = slowest(entries(_clock(text)))
    return TrainingLog(steps, None, None, notes=(OF_BAR,) * bool(steps))


def _clock(text: str) -> Iterator[Clock]:
    for line in re.split(r"[\r\n]+", text) if "reduced_train_loss=" in text else ():
        if bar := _BAR.search(line):
            seconds = 60 * int(bar["minutes"]) + int(bar["seconds"])
            yield int(bar["step"]), int(bar["total"]), 3600 * int(bar["hours"] or 0) + seconds


def _steps(text: str) -> Iterator[LoggedStep]:
    for line in re.split(r"[\r\n]+", text) if _TIMED in text else ():
        taken, step = _TAKEN.search(line), _STEP.search(line)
        if taken and step:
            batch, loss = _BATCH.search(line), _LOSS.search(line)
            yield LoggedStep(
                int(step["printed"] or step["bar"]), float(taken["taken"]),
                float(loss["loss"]) if loss else None,
                sequences=int(batch["sequences"]) if batch else None,
            )  # fmt: skip


WITHIN_BATCHES = "NeMo's train_step_timing: without what lies between two batches"
OF_BAR = "step times are those of the progress bar, whose clock has whole seconds"
