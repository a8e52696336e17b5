"""What the memory that a plan leaves free would buy, and one GiB more than it may use.

The plan's own degrees are asked again with more memory: another micro-batch, ZeRO stage or
schedule, other chunks, less recomputation. That is a search with its proof, so where nothing is
found it says how much more memory might buy at most. Other degrees, which might gain more, are not
searched: `plan --headroom` does that.
"""

import math
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from meshplan.costmodels.units import GIB
from meshplan.planner.answer.answer import case_at, simulation_of
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.plan_findings import LEAST_GAIN, Bought, SpareMemory
from meshplan.planner.case.predict import fits_probability, stage_memory, step_model_of
from meshplan.planner.cuts.budget import BUDGET
from meshplan.planner.search.both_roundings import faster_exactly
from meshplan.planner.search.faster import Faster
from meshplan.planner.search.progress import Fastest
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import Pins, parse_pin

KEPT = (
    "data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel",
    "expert_parallel", "expert_tensor_parallel",
)  # fmt: skip
WORK = BUDGET // 8  # budget of all these searches together: they only say what memory may buy


def spare_memory(asked: Asked, plan: Fastest, deadline: float | None = None) -> SpareMemory | None:
    """What spare memory would buy a plan; None on a CPU, where nothing is left free. What is not
    settled by the deadline may be bought: the most that bounds of rows leave.
    """
    cluster = asked.question.cluster
    if cluster.gpu.vendor == "cpu":
        return None
    usable_bytes, most_bytes = cluster.fillable_bytes, asked.profile.capacity_bytes
    degrees, one_bytes = _Degrees(asked, plan, deadline), usable_bytes + GIB
    full = degrees.gain(most_bytes) if most_bytes > usable_bytes else Gain(None, 0.0, math.inf)
    if most_bytes >= one_bytes and full.is_all_of(one_bytes):
        one = full
    else:
        one = degrees.gain(one_bytes)
        if most_bytes >= one_bytes:  # a part buys no more than all
            one = one._replace(most=min(one.most, full.most))
    return SpareMemory(
        free_bytes=cluster.gpu.memory_bytes - usable_bytes,
        chosen=not asked.usual_headroom,
        one_gib=one.bought,
        one_gib_most=one.most,
        all_bytes=max(0.0, most_bytes - usable_bytes),
        all=full.bought,
        all_most=full.most,
    )


class Gain(NamedTuple):
    """What some memory buys, None where nothing faster was found, and by which fraction a step may
    be shorter at most: by `LEAST_GAIN` where nothing gains more. `needed_bytes` of what it buys.
    """

    bought: Bought | None
    most: float
    needed_bytes: float

    def is_all_of(self, usable_bytes: float) -> bool:
        """Whether less memory surely buys the same: nothing, or what is proved and fits in it."""
        if self.bought is None:
            return self.most <= LEAST_GAIN
        return self.bought.faster_fraction == self.most and self.needed_bytes <= usable_bytes


class _Degrees:
    """The degrees of a plan, asked again with other memory."""

    def __init__(self, asked: Asked, plan: Fastest, deadline: float | None) -> None:
        self.question, self.step_s, self.deadline = asked.question, plan.step_s, deadline
        kept = {name: parse_pin(name, str(getattr(plan.layout, name))) for name in KEPT}
        self.pins = Pins({**self.question.pins.axes, **kept})
        self.left = WORK
        self.proved = plan.proved

    def gain(self, usable_bytes: float) -> Gain:
        """What `usable_bytes` of each GPU would gain them."""
        q, limit_s = self._with(usable_bytes), self.step_s / (1 + LEAST_GAIN)
        found = self._faster(q, limit_s)
        if found.layout is None:
            most = self.step_s / found.bound_s - 1 if found.bound_s < limit_s else LEAST_GAIN
            return Gain(None, most, math.inf)
        gain, most = (self._own_s / step_s - 1 for step_s in (found.step_s, found.bound_s))
        if gain < LEAST_GAIN:
            return Gain(None, max(0.0, most), math.inf)
        model = step_model_of(case_at(q, found.layout))
        memory = stage_memory(model)
        bought = Bought(
            step_time_s=found.step_s, label=found.layout.full_label, faster_fraction=gain,
            fits_probability=fits_probability(model, memory),
        )  # fmt: skip
        return Gain(bought, most, needed_bytes(memory))

    @cached_property
    def _own_s(self) -> float:
        """Their step without more memory. A search that proved nothing of the whole space may find
        them a faster one when it is asked of them alone: no memory bought that.
        """
        if self.proved:
            return self.step_s
        return self._faster(self._with(self.question.cluster.fillable_bytes), self.step_s).step_s

    def _faster(self, question: Question, limit_s: float) -> Faster:
        simulation, left = simulation_of(question), max(0, self.left)
        found = faster_exactly(question, simulation, limit_s, left, self.deadline)
        self.left -= found.work
        return found

    def _with(self, usable_bytes: float) -> Question:
        cluster = with_usable(self.question.cluster, usable_bytes)
        return replace(self.question, cluster=cluster, pins=self.pins)
