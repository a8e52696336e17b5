"""What a user's own runs taught of one engine on one GPU: the constants they moved, and the
evidence.

`meshplan learn` writes it, `plan --learned` and the plan file carry it. It corrects the fitted
constants of that engine on that GPU (`tunings`), and says how far off predictions are then.
"""

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.names import Name


class LearnedConstant(Frozen):
    """A field of `Tuning`.

    name       the field's
    before     its value in what ships
    after      its value as learnt
    deviation  what is left of doubt in ln(after): the standard deviation of the posterior
    kept       of the doubt before, the fraction that is left: near 1 the runs say nothing
    """

    name: str
    before: float = Field(ge=0)
    after: float = Field(gt=0)
    deviation: float = Field(ge=0)
    kept: float = Field(ge=0)


class LearnedRun(Frozen):
    """One run: what was measured, and what was predicted before and after learning.

    log         its file
    config      that of its layout
    layout      in short
    gpus        of the run
    precision   of the matmuls' inputs
    model       its name
    measured_s  the measured step
    before_s    the step as predicted with what ships
    after_s     the same with the learnt constants
    believed    whether it is learnt from: one that is far off alone is not
    facts       what tells it from other runs (`planner.case.run_facts`)
    """

    log: str
    config: str
    layout: str
    gpus: int = Field(gt=0)
    precision: str
    model: str
    measured_s: float = Field(gt=0)
    before_s: float = Field(gt=0)
    after_s: float = Field(gt=0)
    believed: bool = True
    facts: dict[str, str] = Field(default_factory=dict)


class Learned(Frozen):
    """The data file.

    meshplan_learned  version of the file
    engine            of which the constants hold
    gpu               of which they hold: the profile's name
    cluster           that the runs ran on
    date              of learning
    source            who learnt
    prior             where the constants started
    residual          median |predicted / measured - 1| over the runs, after learning
    left_out_error    the same of each run predicted by what the others teach; None below three runs
    factor            8 of 10 further runs lie between the prediction / `factor` and x `factor`, all
                      distances (`apart`) together: the mean, weighed by the number of runs, of what
                      left-out runs of other sources say after learning from as many that were as
                      far off, and of what these runs do, each left out
    apart             what ln(`factor`) is multiplied by, where as many facts as the key says, or
                      more, differ from the nearest run's
    constants         what moved
    runs              what taught
    """

    meshplan_learned: Literal[1] = 1
    engine: Name
    gpu: Name
    cluster: str
    date: str
    source: str
    prior: str
    residual: float = Field(ge=0)
    left_out_error: float | None = Field(default=None, ge=0)
    factor: float = Field(ge=1)
    apart: dict[int, float] = Field(default_factory=dict)
    constants: tuple[LearnedConstant, ...]
    runs: tuple[LearnedRun, ...] = Field(min_length=1)

    def values(self) -> dict[str, float]:
        """The learnt constants by name."""
        return {constant.name: constant.after for constant in self.constants}

    def factor_at(self, nearest: int | None) -> float:
        """`factor` of a plan so many of whose facts differ from the nearest run's that taught."""
        if nearest is None or not self.apart:
            return self.factor
        return float(self.factor ** self.apart[reached(self.apart, nearest)])


def reached(numbers: Collection[int], nearest: int) -> int:
    """Of numbers of differing facts, the largest up to `nearest`; the least below all."""
    return max((number for number in numbers if number <= nearest), default=min(numbers))
