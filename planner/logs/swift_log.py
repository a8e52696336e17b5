"""Step time and memory out of ms-swift's entries, as its logging.jsonl has them and as it prints.

    {"loss": 1.7, ..., "global_step/max_steps": "3/30", "elapsed_time": "2m 21s", ...,
     "memory(GiB)": 76.4, "train_speed(s/it)": 47.1}

The time is since the job's start, evaluations and checkpoints included: in whole seconds, and by
the mean `train_speed` (until 3.8 "iter/s"), which gives it to microseconds where the job began at
step 0. An entry of an evaluation has the step before it, and its end: what it takes is in no step.
Megatron-SWIFT writes "iteration" for the step. Memory is the reserved peak.

Source: modelscope/ms-swift@3602360a `swift/trainers/patcher.py` (add_train_message),
`swift/megatron/callbacks/print.py`, `swift/utils/utils.py` (format_time).
"""

import re

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.trainer_console import APART_S, Clock, entries, of_training
from meshplan.planner.logs.training_log import TrainingLog, slowest

_Q = "['\"]"
_STEP = re.compile(
    rf"{_Q}(?:global_step/max_steps|iteration){_Q}: "
    rf"{_Q}(?P<step>\d{{1,12}})/(?P<total>\d{{1,12}}){_Q}"
)
_ELAPSED = re.compile(
    rf"{_Q}elapsed_time{_Q}: {_Q}(?:(\d{{1,4}})d )?(?:(\d{{1,2}})h )?(?:(\d{{1,2}})m )?"
    rf"(\d{{1,2}})s{_Q}"
)
_SPEED = re.compile(
    rf"{_Q}train_speed\((?P<unit>s/it|iter/s)\){_Q}: {_Q}?(?P<value>\d{{1,9}}(?:\.\d{{1,12}})?)"
)
_MEMORY = re.compile(rf"{_Q}memory\(GiB\){_Q}: {_Q}?(?P<gib>\d{{1,9}}(?:\.\d{{1,6}})?)")
_ROUNDED_S = 1.0
"""How far the printed time and the one by the mean speed may be apart."""


def read_swift(text: str) -> TrainingLog:
    """Steps between entries; none where ms-swift did not write the text."""
    found = [line for line in text.splitlines() if _STEP.search(line) and _ELAPSED.search(line)]
    clock = [_clock(line) for line in found]
    exact = [_by_speed(line, each) for line, each in zip(found, clock, strict=True)]
    whole = [each for each in exact if each is not None]
    alone = len(whole) == len(clock)
    steps = entries(of_training(whole if alone else clock), 0.0 if alone else APART_S)
    peaks = [float(m["gib"]) * GIB for line in found if (m := _MEMORY.search(line))]
    return TrainingLog(slowest(steps), None, max(peaks, default=0.0) or None)


def _clock(line: str) -> Clock:
    step, elapsed = _STEP.search(line), _ELAPSED.search(line)
    assert step is not None
    assert elapsed is not None
    days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
    clock_s = 86400 * days + 3600 * hours + 60 * minutes + seconds
    return int(step["step"]), int(step["total"]), clock_s


def _by_speed(line: str, clock: Clock) -> Clock | None:
    """The time by the mean speed; None where it is of a job that was resumed, or not exact."""
    speed = _SPEED.search(line)
    step, total, clock_s = clock
    if speed is None or speed["unit"] != "s/it" or not float(speed["value"]):
        return None
    exact_s = step * float(speed["value"])
    return (step, total, exact_s) if abs(exact_s - clock_s) <= _ROUNDED_S else None
