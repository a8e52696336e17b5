"""How likely a hypothesis about a slow run is, by the step and the memory that its log has.

    L = p(ln(step / step under it) / s) p(ln(peak / peak under it) / r)

p is Student's t with `FREEDOM` degrees; s and r are standard deviations of the model's own error,
as the ranges of 8 of 10 runs have them. For something f times as slow the first factor is its mean
over ln f, a half-normal of deviation `UNUSUAL` [assumed: 1.6 x is one]: what could have been
anything counts less than what says how long the step would take (Occam's factor; MacKay, Neural
Computation 4, 1992). That nothing of all is the case, and the model is off, is a hypothesis too. A
priori all are alike [assumed].
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.intervals import reserved_interval
from meshplan.planner.case.error_class import error_depends_on
from meshplan.planner.case.predict import stage_memory

FREEDOM, UNUSUAL, MOST, POINTS = 4.0, math.log(1.6), 8.0, 7
OF_8_OF_10 = 1.2816  # standard deviations of a normal distribution on either side
TOLD, TIMES = 0.5, 3.0
Kind = Literal["allocated", "reserved", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a log says, and how far off predictions of it usually are, in logarithms.

    kind          of the memory's peak; None where the log has none
    over_sockets  the log says that the network between nodes is not used as RDMA
    by_execute    `meshplan execute` ran it: with the plan's layout and number format
    """

    step_time_s: float
    step_deviation: float
    kind: Kind | None = None
    memory_bytes: float = 0.0
    memory_deviation: float = 1.0
    over_sockets: bool = False
    by_execute: bool = False

    def of_step(self, under_s: float) -> float:
        """The likelihood of the step, were it `under_s`."""
        return _student(math.log(self.step_time_s / under_s), self.step_deviation)

    def of_slower(self, under_s: Callable[[float], float], unusual: float = UNUSUAL) -> float:
        """The likelihood of the step, of something f times as slow, f not known; `unusual`: the
        deviation of ln f.
        """
        points = round(POINTS * unusual / UNUSUAL)
        steps = (np.arange(points) + 0.5) / points  # of probability
        most = MOST ** (unusual / UNUSUAL)
        factors = (min(math.exp(unusual * _half_normal(p)), most) for p in steps)
        found = [self.of_step(under_s(factor)) for factor in factors]
        return float(np.mean(found))

    def of_memory(self, model: StepModel) -> float:
        """The likelihood of the peak under `model`; 1 where the log has none."""
        if self.kind is None:
            return 1.0
        peak = max(float(getattr(stage, self.kind)) for stage in stage_memory(model))
        return _student(math.log(self.memory_bytes / peak), self.memory_deviation)


def seen_of(
    model: StepModel,
    step_time_s: float,
    high_over_expected: float,
    peaks: dict[Kind, float | None],
    *,
    over_sockets: bool = False,
) -> Seen:
    """What a log of `model`'s run says; `peaks` in bytes."""
    kind = next((kind for kind, peak in peaks.items() if peak), None)
    interval = reserved_interval(error_depends_on(model.setting, model.layout))
    return Seen(
        step_time_s=step_time_s, step_deviation=math.log(high_over_expected) / OF_8_OF_10,
        kind=kind, memory_bytes=(peaks[kind] or 0.0) if kind else 0.0,
        memory_deviation=math.log(interval.high) / OF_8_OF_10, over_sockets=over_sockets,
    )  # fmt: skip


def likeliest(probabilities: Sequence[float]) -> list[int]:
    """The likeliest alone, if it is likelier than all else together; otherwise with all that it is
    less than `TIMES` as likely as, which cannot be told from it.
    """
    order = sorted(range(len(probabilities)), key=lambda at: -probabilities[at])
    if not order or probabilities[order[0]] > TOLD:
        return order[:1]
    return [at for at in order if probabilities[at] * TIMES > probabilities[order[0]]]


def _student(error: float, deviation: float) -> float:
    return float((1 + (error / deviation) ** 2 / FREEDOM) ** (-(FREEDOM + 1) / 2) / deviation)


def _half_normal(probability: float) -> float:
    """The deviations that as many factors are below."""
    return NormalDist().inv_cdf((1 + probability) / 2)
