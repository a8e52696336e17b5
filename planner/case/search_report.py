"""How the search for a plan ended, as the plan file states it."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from meshplan.hardware_profiles.frozen import Frozen

ROUNDING = 1e-9
"""A gap below it is none."""


class OpenKind(Frozen):
    """Degrees of which no layout is shown.

    tensor_parallel, context_parallel, pipeline_parallel, expert_parallel
                            the degrees
    bound_s                 none of their layouts is faster
    """

    tensor_parallel: int
    context_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    bound_s: float


class SearchReport(Frozen):
    """How the search for the fastest layout ended. `OPTIMAL` only when every layout of the space
    was solved, simulated or bounded away.

    status             `OPTIMAL`: nothing of the space is faster
    price              what steps were compared by; bound and gap are under the same
    cuts               listed: a layout of several chunks per rank may be faster if it is cut as no
                       list says; runners-up listed: not than the plan, but than a runner-up; None
                       in older plan files
    space              what was searched and what was not, in words; empty in older plan files
    bound_s            nothing in the space is faster, however it is cut
    listed_bound_s     nothing is faster that is cut as a list says; None in older plan files
    every_cut_bound_s  of files of November 2026 alone, whose `bound_s` is of listed cuts
    kinds_bound_s      no other degrees (tp, cp, pp, ep) are faster than that, nor those of a
                       runner-up with other settings, of what is cut as a list says; None where none
                       were looked for, and in older plan files
    open_kinds         degrees of which neither the plan nor a runner-up is and that may be faster
                       than the slowest runner-up, however they are cut: those with the least
                       bounds, the least first; None where that is not known, and as above
    rest_bound_s       no degrees are faster that are none of these all: at most the step of the
                       slowest runner-up, beyond which nothing is said; None as `open_kinds`
    gap                fraction by which the bound is below the fastest
    candidates         legal layouts, all axes but the cut into stages
    priced             of them those that the cost model priced
    cpsat_solves       cuts that CP-SAT solved
    simulated          cuts into stages that the event simulation timed
    wall_s             how long the search took
    dropped            layouts that each rule of legality dropped
    """

    status: Literal["OPTIMAL", "FEASIBLE"]
    price: Literal["closed form", "event simulation"] = "closed form"
    cuts: Literal["all", "runners-up listed", "listed"] | None = None
    space: tuple[str, ...] = ()
    bound_s: float
    listed_bound_s: float | None = None
    every_cut_bound_s: float | None = Field(default=None, exclude=True)
    kinds_bound_s: float | None = None
    open_kinds: tuple[OpenKind, ...] | None = None
    rest_bound_s: float | None = None
    gap: float
    candidates: int
    priced: int
    cpsat_solves: int
    simulated: int = 0
    wall_s: float
    dropped: dict[str, int] = {}

    @property
    def best_s(self) -> float:
        """The fastest step that was found; infinite where no bound says anything."""
        return self.bound_s / (1 - self.gap) if self.bound_s and self.gap < 1 else math.inf

    @property
    def listed_gap(self) -> float:
        """How far below the fastest the bound of what is cut as a list says is, or of all."""
        bound_s = self.bound_s if self.listed_bound_s is None else self.listed_bound_s
        return max(0.0, 1 - bound_s / self.best_s)

    @model_validator(mode="after")
    def _of_every_cut(self) -> Self:
        """Status, bound and gap of an older file, which were of the listed cuts alone."""
        if self.cuts != "listed" or self.listed_bound_s is not None:
            return self
        bound_s = self.every_cut_bound_s or 0.0
        return self.model_copy(update={
            "status": "FEASIBLE", "bound_s": bound_s, "gap": 1 - bound_s / self.best_s,
            "listed_bound_s": self.bound_s, "every_cut_bound_s": None,
        })  # fmt: skip
