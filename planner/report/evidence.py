"""The nearest measured runs in words: what they measured, and what is predicted for them."""

from collections.abc import Sequence

from meshplan.costmodels.units import format_count, format_seconds
from meshplan.planner.case.plan_findings import MeasuredRun
from meshplan.planner.runs.evidence import NEAR

NONE = "none (we know of no published runs of CPU processes)"
FAR = f"none is near (same kind of model, distance at most {NEAR:g})"


def nearest_line(runs: Sequence[MeasuredRun]) -> str:
    """The nearest run in a sentence, with a word where it is not near; or that there is none."""
    if not runs:
        return NONE
    told = evidence_line(runs[0])
    return told if runs[0].near else f"{FAR}; the nearest: {told}"


def evidence_lines(runs: Sequence[MeasuredRun]) -> list[str]:
    """All of a plan's runs; first that none of them is near, if so."""
    told = list(map(evidence_line, runs)) or [NONE]
    return told if not runs or any(run.near for run in runs) else [FAR, *told]


def evidence_line(run: MeasuredRun) -> str:
    """One run in a sentence, with its distance where it is not near."""
    told = f"measured {format_seconds(run.measured_step_time_s)}, predicted {predicted_text(run)}"
    if run.predicted_unseen_s is None:
        told += " with constants that may be fitted to this run"
    else:
        told += f", {unseen_text(run)} with constants fitted without its source"
    apart = "" if run.near else f" (distance {run.distance:.1f})"
    return f"{run_text(run)}{apart}: {told}"


def run_text(run: MeasuredRun) -> str:
    """What was run."""
    size = f"({format_count(run.parameters)})"
    model = run.model if run.model.endswith(size) else f"{run.model} {size}"
    return (
        f"{model} on {run.gpus:,} x {run.gpu}, {run.framework}, {run.precision}, "
        f"{run.seq_len:,} tokens x {run.global_batch_size:,}, {run.layout}"
    )


def predicted_text(run: MeasuredRun) -> str:
    """The prediction, and how far it is off."""
    return with_error(run.predicted_step_time_s, run.measured_step_time_s)


def unseen_text(run: MeasuredRun) -> str:
    """The prediction of constants fitted without the run's source; "n/a" where there are none."""
    if run.predicted_unseen_s is None:
        return "n/a"
    return with_error(run.predicted_unseen_s, run.measured_step_time_s)


def with_error(predicted_s: float, measured_s: float) -> str:
    """A predicted time, and how far it is off the measured one: "1.02 s (+2.0%)"."""
    return f"{format_seconds(predicted_s)} ({predicted_s / measured_s - 1:+.1%})"
