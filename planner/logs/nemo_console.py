"""Step time out of the lines of NeMo.

    NeMo 2   Training epoch 0, iteration 12/99 | lr: 1e-05 | global_batch_size: 128 |
             global_step: 12 | reduced_train_loss: 6.2 | train_step_timing in s: 12.22 | ...
    NeMo 1   Epoch 0: :  47%|####7     | 7/15 [06:19<07:13, reduced_train_loss=11.50,
             global_step=5.000, consumed_samples=12288.0, train_step_timing in s=49.50]

The time is from a batch's start to its end, optimizer included; what lies between two batches is
not in it. Fields come in any order. NeMo 1 rounds its global step to four digits: the bar counts.

Sources: NVIDIA-NeMo/Speech `nemo/utils/exp_manager.py` (TimingCallback), `nemo/lightning/pytorch/
callbacks/progress_printer.py`; logs in AI-Hypercomputer/gpu-recipes.
"""

import re
from collections.abc import Iterator

from meshplan.planner.logs.console import BETWEEN, COUNT, NUMBER, PLAIN
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

_TIMED = "train_step_timing in s"
_TAKEN = re.compile(rf"\b{_TIMED}(?:: |=)(?P<taken>{PLAIN})")
_STEP = re.compile(
    rf"(?:\biteration (?P<printed>{COUNT})/\d{{1,12}} \||"
    rf"\| (?P<bar>{COUNT})/\d{{1,12}} \[){BETWEEN}train_step_timing"
)
_BATCH = re.compile(rf"\bglobal_batch_size: (?P<sequences>{COUNT})\b")
_LOSS = re.compile(rf"\breduced_train_loss(?:: |=)(?P<loss>{NUMBER})")


def read_nemo(text: str) -> TrainingLog:
    """NeMo's own log."""
    steps = slowest(_steps(text))
    return TrainingLog(steps, None, None, notes=(WITHIN_BATCHES,) * bool(steps))


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
