"""What is to be said of one config once it is a case: legal, fits, drifted, beaten; with margins.

peak   = what the fullest pipeline rank needs
margin = what a rank may use of its GPU - peak (`planner.case.memory_limit`)
drift  = |predicted now / predicted when the plan was written - 1|, of the step time and of the peak
beaten = step time / the best layout's step time - 1
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.units import GIB, format_bytes, format_probability, format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.memory_limit import (
    crowded_words,
    limit_bytes,
    limit_words,
    with_usual_headroom,
)
from meshplan.planner.case.plan_file import Plan, Prediction, StageMemory
from meshplan.planner.case.resolve import Case, check_case
from meshplan.planner.case.seal import moved_figures
from meshplan.planner.check.fixes import MOST_CHANGES, Price, fix_illegal, fix_memory

Verdict = Literal[
    "fits",
    "does not fit",
    "illegal",
    "drifted",
    "beaten",
    "unreadable",
    "incomplete",
    "skipped",
    "empty",
]
PASSED: tuple[Verdict, ...] = ("fits", "skipped")
USAGE: tuple[Verdict, ...] = ("unreadable", "incomplete", "empty")
PREDICTED = (
    "fits_probability", "step_time_s", "step_time_low_s", "step_time_high_s", "reserved_low_bytes",
    "reserved_high_bytes", "mfu",
)  # fmt: skip
"""What a finding states as its prediction does."""
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "transient", "context", "slack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line about one file.

    path                    the file
    verdict                 `fits` and `skipped` pass
    text                    the verdict with its numbers, one line
    line                    to annotate, from 1
    fix                     the smallest change that helps, None when there is none to name
    framework               whose format it is
    label                   of the layout
    margin_bytes            usable memory left on the fullest pipeline rank; negative when it does
                            not fit
    peak_bytes              that the fullest pipeline rank needs
    capacity_bytes          that a rank may use
    gpu_memory_bytes        that the GPU has
    fits_probability        by measured runs; None where none says
    stage                   the fullest pipeline rank, from 0
    category                its largest category of memory
    step_time_s             predicted
    step_time_low_s, step_time_high_s
                            8 of 10 runs lie between
    reserved_low_bytes, reserved_high_bytes
                            the same of reserved memory
    mfu                     predicted; None where formats are mixed
    assumed                 what the verdict holds under, that no file says; "": nothing
    notes                   how the file was read, a line each
    """

    path: str
    verdict: Verdict
    text: str
    line: int = 1
    fix: str | None = None
    framework: str | None = None
    label: str | None = None
    margin_bytes: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    gpu_memory_bytes: float | None = None
    fits_probability: float | None = None
    stage: int | None = None
    category: str | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    reserved_low_bytes: float | None = None
    reserved_high_bytes: float | None = None
    mfu: float | None = None
    assumed: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding points: the file, its format, and the line of each fact."""

    path: str
    framework: str
    line_of: Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What counts as a finding: fractions of the step time (and of memory, for `tolerance`)."""

    tolerance: float = 0.05
    slack: float | None = None


Best = Callable[[Case, Mapping[str, str]], tuple[str, float] | None]
"""The label and step time of the best layout for a case with such pins, None when none fits."""


def judge(
    case: Case,
    place: Place,
    price: Price,
    limits: Limits,
    *,
    planned: Plan | None = None,
    best: Best | None,
) -> Finding:
    """The verdict on one case, of a plan file where it is `planned`."""
    try:
        check_case(case)
    except InvalidLayout as error:
        return _illegal(case, place, str(error))
    now = price(case).whole()
    told = planned.prediction if planned else None
    case = replace(case, notes=(*case.notes, *_moved(now, told)))
    if now.mfu is not None and now.mfu > 1:
        return _impossible(case, place, now.mfu)
    margin = limit_bytes(case.cluster) - fullest(now)[1].needed
    if margin < 0:
        return _too_big(case, place, price, now)
    verdict, text, line = _drift(place, now, told, limits)
    if verdict == "fits" and best is not None and limits.slack is not None:
        rival = best(case, (planned.pins if planned else None) or {})
        verdict, text, line = _beaten(place, now, rival, limits.slack)
    said = text or _fitting(case, now)
    return _finding(case, place, now, verdict=verdict, text=said, line=line)


def _fitting(case: Case, now: Prediction) -> str:
    """How full the fullest rank is, how surely that runs, and how long a step takes."""
    rank, memory = fullest(now)
    whole, probable = format_bytes(case.cluster.gpu.memory_bytes), now.fits_probability
    filled = f"{memory.needed / GIB:.1f} of {whole} on rank {rank}"
    surely = "" if probable is None else f", fits with a probability {format_probability(probable)}"
    return f"{filled}{surely}, {format_seconds(now.step_time_s)} per step"


def fullest(prediction: Prediction) -> tuple[int, StageMemory]:
    """The pipeline rank with the largest peak, and its memory."""
    return max(enumerate(prediction.memory), key=lambda pair: pair[1].needed)


def largest_category(memory: StageMemory) -> str:
    """The category that fills most of it."""
    return max(CATEGORIES, key=lambda name: getattr(memory, name))


def _finding(
    case: Case,
    place: Place,
    now: Prediction,
    *,
    verdict: Verdict,
    text: str,
    line: int,
    fix: str | None = None,
) -> Finding:
    rank, memory = fullest(now)
    usable, peak = limit_bytes(case.cluster), memory.needed
    crowded = () if peak > usable else _crowded(case, peak, now.fits_probability)
    return replace(
        _unpriced(case, place, verdict=verdict, text=text, line=line, fix=fix),
        margin_bytes=usable - peak,
        peak_bytes=peak,
        capacity_bytes=usable,
        gpu_memory_bytes=case.cluster.gpu.memory_bytes,
        stage=rank,
        category=largest_category(memory),
        notes=(*case.notes, *crowded),
        **{name: getattr(now, name) for name in PREDICTED},
    )


def _unpriced(
    case: Case,
    place: Place,
    *,
    verdict: Verdict,
    text: str,
    line: int = 1,
    fix: str | None = None,
) -> Finding:
    """A finding without the figures of a price."""
    return Finding(
        path=place.path,
        framework=place.framework,
        verdict=verdict,
        text=text,
        assumed=case.assumed,
        line=line,
        fix=fix,
        label=case.layout.full_label,
        notes=case.notes,
    )


def _crowded(case: Case, peak: float, probable: float | None) -> tuple[str, ...]:
    """That `plan` would not offer what fits all the same, and how surely it fits."""
    said = crowded_words(peak, with_usual_headroom(case.cluster, case.engine.name))
    if not said or probable is None:
        return (said,) if said else ()
    return (f"{said}: it fits with a probability {format_probability(probable)}",)


def _illegal(case: Case, place: Place, text: str) -> Finding:
    fix, line = fix_illegal(case), place.line_of(text)
    named = fix.text if fix else None
    return _unpriced(case, place, verdict="illegal", text=text, line=line, fix=named)


def _impossible(case: Case, place: Place, mfu: float) -> Finding:
    """No hardware runs above its peak: the price is wrong, and says nothing of the config."""
    text = (
        f"the price has an MFU of {mfu:.2f}, above 1: a defect of meshplan for this model, no "
        "verdict on the config; please report it"
    )
    return _unpriced(case, place, verdict="incomplete", text=text)


def _too_big(case: Case, place: Place, price: Price, now: Prediction) -> Finding:
    usable = limit_bytes(case.cluster)
    rank, memory = fullest(now)
    category = largest_category(memory)
    fix = fix_memory(case, price, usable)
    over = memory.needed - usable
    stages = len(now.memory)
    who = f"pipeline rank {rank} of {stages}" if stages > 1 else "a rank"
    text = (
        f"{who} needs {memory.needed / GIB:.1f} GiB, "
        f"{over / GIB:.1f} GiB ({over:,.0f} bytes) more than {limit_words(case.cluster)}; the "
        f"largest part is {category}, {format_bytes(getattr(memory, category))}"
    ) + ("" if fix else f"; no fix of up to {MOST_CHANGES} changes was found")
    line = place.line_of(fix.text if fix else "micro_batch_size tensor_parallel")
    named = fix.text if fix else None
    return _finding(case, place, now, verdict="does not fit", text=text, line=line, fix=named)


def _moved(now: Prediction, planned: Prediction | None) -> tuple[str, ...]:
    """Which figures of the file are not those of this version."""
    if planned is None:
        return ()
    names = ", ".join(moved_figures(planned.model_dump(), now.model_dump()))
    return (f"this version predicts other figures than the file: {names}",) if names else ()


def _drift(
    place: Place, now: Prediction, planned: Prediction | None, limits: Limits
) -> tuple[Verdict, str, int]:
    line = place.line_of("prediction") if planned else 1
    if planned is None:
        return "fits", "", line
    pairs = {
        "step time": (now.step_time_s, planned.step_time_s, format_seconds),
        "peak memory": (fullest(now)[1].needed, fullest(planned)[1].needed, format_bytes),
    }
    for name, (after, before, shown) in pairs.items():
        change = after / before - 1
        if abs(change) > limits.tolerance:
            text = (
                f"{name} is now predicted as {shown(after)}, {change:+.1%} from the plan's "
                f"{shown(before)} (tolerance {limits.tolerance:.0%})"
            )
            return "drifted", text, line
    return "fits", "", line


def _beaten(
    place: Place, now: Prediction, rival: tuple[str, float] | None, slack: float
) -> tuple[Verdict, str, int]:
    line = place.line_of("data_parallel")
    if rival is None:
        return "fits", "", line
    label, step_time_s = rival
    lost = now.step_time_s / step_time_s - 1
    if lost <= slack:
        return "fits", "", line
    text = (
        f"{format_seconds(now.step_time_s)} per step, {lost:.1%} slower than {label} "
        f"({format_seconds(step_time_s)}; slack {slack:.0%})"
    )
    return "beaten", text, line
