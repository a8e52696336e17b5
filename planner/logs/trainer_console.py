"""What Hugging Face's Trainer prints: a progress bar, and dicts of metrics.

    {'train_runtime': 510.0, 'train_samples_per_second': 15.5, 'train_steps_per_second': 1.941, ...}
    {'eval_loss': 1.1, 'eval_runtime': 15.0, ...}
    {'loss': '1.3', ..., 'memory/max_allocated (GiB)': '2.98',
     'memory/device_reserved (GiB)': '4.12'}   axolotl's: peaks since the line before
      50%|#####     | 495/990 [04:15<04:15,  1.94it/s]

The last line of a job that is done gives one mean over all its steps, its first ones included, less
the evaluations; a job that is not is read off its bar, whose clock has whole seconds: entries are
at least `APART_S` apart. transformers 5 prints the numbers as text. A job that was resumed times
its last start alone, over the steps of all: its bar jumps to where that began, and evaluations of
earlier starts are not in its time.

Sources: transformers 5.23 `trainer_utils.py` (speed_metrics), `trainer_callback.py`
(ProgressCallback); tqdm's default bar; axolotl-ai-cloud/axolotl@067b021c
`src/axolotl/core/trainers/base.py` (log), `src/axolotl/utils/bench.py`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from meshplan.costmodels.units import GIB, counted
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

APART_S = 30
Clock = tuple[int, int, float]
"""Step, steps in all, and seconds so far."""
_NUMBER = r"'?(?P<value>\d{1,15}(?:\.\d{0,15})?(?:[eE][-+]?\d{1,3})?)'?"
_RUNTIME = re.compile(rf"'train_runtime': {_NUMBER}")
_RATE = re.compile(rf"'train_steps_per_second': {_NUMBER}")
_EVALUATION = re.compile(rf"'eval_runtime': {_NUMBER}")
_METRICS = re.compile(r"\{'(?:loss|train_runtime|eval_loss)': ")
BAR_CLOCK = (
    r"\d{1,3}%\|[^|\r\n]{0,200}\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) "
    r"\[(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d{2}):(?P<seconds>\d{2})<"
    r"[^\]\r\n]{0,40}(?:it/s|s/it)"
)
"""Of tqdm's bar, without what it says it is of."""

_BAR = re.compile(rf"(?:^|[\r\n])[ \t]{{0,9}}{BAR_CLOCK}")
_PEAK = re.compile(rf"'memory/(?P<kind>max_allocated|device_reserved) \(GiB\)': {_NUMBER}")
_ROUNDED = 0.0005  # the printed rate has three decimals


def read_trainer(text: str) -> TrainingLog:
    """The steps of a job; none where no Trainer prints."""
    if not _METRICS.search(text):
        return TrainingLog((), None, None)
    bar = _bar(text)
    log = _whole(text, bar) or TrainingLog(slowest(entries(bar.values())), None, None)
    allocated, reserved = (
        max((float(m["value"]) * GIB for m in _PEAK.finditer(text) if m["kind"] == kind), default=0)
        for kind in ("max_allocated", "device_reserved")
    )
    return replace(
        log, allocated_peak_bytes=allocated or None, reserved_peak_bytes=reserved or None
    )


Bar = dict[int, Clock]
"""The clock by its place in the text."""


def _bar(text: str) -> Bar:
    """The clock of the bar that runs longest: the others are of evaluations."""
    found = {
        m.start(): (int(m["step"]), int(m["total"]), clock_seconds(m))
        for m in _BAR.finditer(text)
    }  # fmt: skip
    longest = max(found.values(), key=lambda each: each[2], default=(0, 0, 0))
    return {at: each for at, each in found.items() if each[1] == longest[1]}


def clock_seconds(bar: re.Match[str]) -> int:
    """The time so far of a match of `BAR_CLOCK`."""
    return 3600 * int(bar["hours"] or 0) + 60 * int(bar["minutes"]) + int(bar["seconds"])


def _of_last_start(bar: Bar) -> Bar:
    """From where the clock goes back for the last time."""
    back = [at for (_, before), (at, after) in pairwise(bar.items()) if after[2] < before[2]]
    return {at: clock for at, clock in bar.items() if not back or at >= back[-1]}


def _trains(last: Bar, runtime_s: float) -> bool:
    """Whether a bar is training's own: an evaluation's may have as many steps, and is shorter, or
    training's goes on behind it.
    """
    clocks = [*last.values()]
    if not clocks:
        return False
    onward = all(before[0] <= after[0] for before, after in pairwise(clocks))
    return onward and clocks[-1][2] >= runtime_s / 2


def _whole(text: str, bar: Bar) -> TrainingLog | None:
    """One mean of a job that is done; None of one that is not, or whose steps are not known."""
    runtime, rate = _last(_RUNTIME, text), _last(_RATE, text)
    if not runtime or not rate:
        return None
    totals = {total for _, total, _ in bar.values()}
    within = runtime * _ROUNDED + 1
    steps = next((each for each in totals if abs(each - runtime * rate) <= within), None)
    if steps is None and rate < 100 * _ROUNDED:  # two digits of a rate are no measurement
        return None
    last = _of_last_start(bar)
    last = last if _trains(last, runtime) else bar
    steps = (steps or max(round(runtime * rate), 1)) - (began := _began(text, last.values()))
    if steps <= 0:
        return None
    since = min(last) if len(last) < len(bar) else 0
    evaluations = [float(m["value"]) for m in _EVALUATION.finditer(text, since)]
    taken_s = runtime - sum(evaluations)
    if taken_s <= 0:
        return None
    whole = f"since the job was resumed at step {began:,}" if began else "of the whole job"
    notes = [f"mean of {counted(steps, 'step')} {whole}, its first steps included"]
    notes += [f"{counted(len(evaluations), 'evaluation')} taken off"] * bool(evaluations)
    step = LoggedStep(steps, taken_s / steps, None)
    return TrainingLog((step,), None, None, whole=True, notes=tuple(notes))


def _began(text: str, bar: Iterable[Clock]) -> int:
    """The step at which the last start, of that bar, began: what the Trainer says, or where its bar
    jumps to, more than `JUMP` times as many steps as it takes in that time.
    """
    said = _CONTINUED.findall(text)
    if said:
        return int(said[-1])
    moved = [(step, clock_s) for step, _, clock_s in bar if step]
    if len(moved) < 2 or moved[-1][1] <= moved[0][1]:
        return 0
    (first, first_s), (last, last_s) = moved[0], moved[-1]
    a_second = (last - first) / (last_s - first_s)
    return first - 1 if first - 1 > JUMP * a_second * max(first_s, 1) else 0


JUMP = 2.0
_CONTINUED = re.compile(r"Continuing training from global step (\d{1,12})")


def _last(pattern: re.Pattern[str], text: str) -> float | None:
    found = [m["value"] for m in pattern.finditer(text)]
    return float(found[-1]) if found else None


def entries(clock: Iterable[Clock], apart_s: float = APART_S) -> Iterator[LoggedStep]:
    """Seconds per step between entries of a clock, which a restart begins anew."""
    last: tuple[int, float] | None = None
    attempt = 0
    for step, _, clock_s in clock:
        if last is None or step < last[0] or clock_s < last[1]:
            attempt += last is not None
            last = (step, clock_s)
        elif clock_s - last[1] >= apart_s and step > last[0]:
            taken_s = (clock_s - last[1]) / (step - last[0])
            yield LoggedStep(step, taken_s, None, attempt=attempt)
            last = (step, clock_s)


def of_training(clock: Iterable[Clock]) -> Iterator[Clock]:
    """A clock that stands still from an entry to the next of the same step: an evaluation."""
    before: Clock | None = None
    stood_s = 0.0
    for step, total, clock_s in clock:
        if before is None or clock_s < before[2]:
            stood_s = 0.0
        elif step == before[0]:
            stood_s += clock_s - before[2]
        before = (step, total, clock_s)
        yield step, total, clock_s - stood_s
