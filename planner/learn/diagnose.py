"""Compares a log with the prediction for its config: parts, gap and possible reasons."""

from dataclasses import asdict, fields, replace
from typing import Any

from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.plan_file import Prediction
from meshplan.planner.case.predict import prediction_of
from meshplan.planner.learn.cases import LoggedRun
from meshplan.planner.learn.levers import Lever, levers
from meshplan.planner.learn.likelihood import Kind, Seen, likeliest, seen_of
from meshplan.planner.learn.reasons import Reason, reasons
from meshplan.planner.learn.usual import Usual, mfu_of, usual
from meshplan.planner.logs.records import TIMED
from meshplan.planner.logs.warned import OVER_SOCKETS

PARTS = {
    "compute_s": "compute", "tensor_s": "exposed communication, tensor parallel",
    "context_s": "exposed communication, context parallel",
    "expert_s": "exposed communication, expert parallel",
    "data_s": "exposed communication, data parallel",
    "send_s": "exposed communication, pipeline", "offload_s": "exposed copies to the host",
    "bubble_s": "pipeline bubble", "optimizer_s": "optimizer", "fixed_s": "once per step",
}  # fmt: skip


ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """A peak of the fullest rank.

    kind          `allocated`, `reserved`, or `device`: what the driver counts
    expected_gib  predicted
    measured_gib  None where the log does not say it
    """

    kind: str
    expected_gib: float
    measured_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The comparison of one run.

    parts   seconds of each part of the expected step; they add up to it. A log has only the sum
    inside  whether the measured step is within the range of 8 in 10 runs; then the gap needs no
            reason
    mfu     measured, None where formats are mixed
    usual   None where too few runs are published near by
    """

    found: LoggedRun
    prediction: Prediction
    parts: dict[str, float]
    memory: tuple[MemoryLine, ...]
    mfu: float | None
    usual: Usual | None
    reasons: tuple[Reason, ...]
    levers: tuple[Lever, ...]

    @property
    def measured_s(self) -> float:
        """The median step after warm-up."""
        return self.found.steady.step_time_s

    @property
    def inside(self) -> bool:
        """Whether the measured step lies within the interval of the prediction."""
        low, high = self.prediction.step_time_low_s, self.prediction.step_time_high_s
        assert low is not None
        assert high is not None
        return low <= self.measured_s <= high

    @property
    def likeliest(self) -> tuple[Reason, ...]:
        """The likeliest reason, or those that cannot be told from it, or from `may_be_off`."""
        return tuple(self.reasons[at - 1] for at in self._likeliest if at)

    @property
    def may_be_off(self) -> bool:
        """Whether no reason is likelier than that the model is off."""
        return 0 in self._likeliest

    @property
    def _likeliest(self) -> list[int]:
        """Places among that the model is off (0) and the reasons."""
        off = 1 - sum(reason.probability for reason in self.reasons)
        return likeliest([off, *(reason.probability for reason in self.reasons)])

    @property
    def lacking_bytes(self) -> float | None:
        """By how much the fullest rank is expected to need more than the GPU has, None where not:
        a run that ran keeps less, or the memory is predicted too high.
        """
        needed_bytes = max(stage.needed for stage in self.prediction.memory)
        lacking_bytes = needed_bytes - self.prediction.gpu_memory_bytes
        return lacking_bytes if lacking_bytes > 0 else None


def diagnose(found: LoggedRun) -> Diagnosis:
    """Compare the run with its prediction."""
    case = found.case
    model = StepModel(
        Setting.fitted(case.model, case.training, case.cluster, case.engine), case.layout
    )
    time = model.time()
    mfu = mfu_of(model, found.steady.step_time_s)
    prediction = prediction_of(model, time)
    return Diagnosis(
        found=found, prediction=prediction,
        parts={
            PARTS[each.name]: getattr(time, each.name)
            for each in fields(time)
            if getattr(time, each.name) > ROUNDING_S
        },
        memory=_memory(prediction, found), mfu=mfu,
        usual=usual(found.run, mfu) if mfu else None,
        reasons=reasons(model, _seen(model, prediction, found), found.steady),
        levers=levers(case, model),
    )  # fmt: skip


def _seen(model: StepModel, prediction: Prediction, found: LoggedRun) -> Seen:
    assert prediction.step_time_high_s is not None
    measured = found.run.measured
    peaks: dict[Kind, float | None] = {
        "reserved": (measured.reserved_gib or 0.0) * GIB,
        "allocated": (measured.allocated_gib or 0.0) * GIB,
        "device": (found.device_gib or 0.0) * GIB,
    }
    off = prediction.step_time_high_s / prediction.step_time_s
    sockets = OVER_SOCKETS in found.notes
    seen = seen_of(model, found.steady.step_time_s, off, peaks, over_sockets=sockets)
    return replace(seen, by_execute=TIMED in found.notes)


def _memory(prediction: Prediction, found: LoggedRun) -> tuple[MemoryLine, ...]:
    peaks = {
        "allocated": found.run.measured.allocated_gib,
        "reserved": found.run.measured.reserved_gib,
        **({"device": found.device_gib} if found.device_gib else {}),
    }
    return tuple(
        MemoryLine(
            kind=kind, expected_gib=max(getattr(s, kind) for s in prediction.memory) / GIB,
            measured_gib=measured_gib,
        )
        for kind, measured_gib in peaks.items()
    )  # fmt: skip


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """As `--json` states it.

    format                  of the log
    layout                  in short
    engine, gpu             that it is priced with
    steps                   the log's steady steps
    measured_step_time_s    the median after warm-up
    expected_step_time_s    predicted
    expected_step_time_low_s, expected_step_time_high_s
                            8 of 10 runs lie between
    measured_over_expected  ratio of the two steps
    inside_8_of_10          whether the measured step lies in that range
    log                     its file
    config                  its file, or the plan's
    expected_parts_s.*      seconds of the expected step by part, named in words; they add up to it
    memory                  peaks
    expected_lacking_bytes  by how much the fullest rank is expected to need more than the GPU has;
                            None where it does not
    mfu                     measured; None where formats are mixed
    expected_mfu            predicted
    usual_mfu               of comparable published runs; None where too few are near
    reasons                 hypotheses for what the step takes too long
    likeliest               names of the likeliest of them, several where they cannot be told apart
    may_be_the_model        whether none of them is likelier than that the cost model is off
    levers                  changes that would shorten the expected step
    notes                   how the log was read
    """
    d, steady = diagnosis, diagnosis.found.steady
    p = d.prediction
    return {
        "log": str(d.found.log), "config": str(d.found.config), "format": d.found.format,
        "layout": d.found.run.layout.label, "engine": d.found.case.engine.name,
        "gpu": d.found.case.cluster.gpu.name,
        "steps": asdict(steady),
        "measured_step_time_s": d.measured_s, "expected_step_time_s": p.step_time_s,
        "expected_step_time_low_s": p.step_time_low_s,
        "expected_step_time_high_s": p.step_time_high_s,
        "measured_over_expected": d.measured_s / p.step_time_s, "inside_8_of_10": d.inside,
        "expected_parts_s": d.parts, "memory": [asdict(line) for line in d.memory],
        "expected_lacking_bytes": d.lacking_bytes,
        "mfu": d.mfu, "expected_mfu": p.mfu,
        "usual_mfu": asdict(d.usual) if d.usual else None,
        "reasons": [asdict(reason) for reason in d.reasons],
        "likeliest": [reason.name for reason in d.likeliest],
        "may_be_the_model": d.may_be_off,
        "levers": [asdict(lever) for lever in d.levers],
        "notes": list(d.found.notes),
    }  # fmt: skip
