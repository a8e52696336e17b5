"""What the memory that a plan leaves free would buy, and one GiB more than it may use.

The plan's own degrees are asked again with more memory: another micro-batch, ZeRO stage or
schedule, other chunks, less recomputation. That is a search with its proof, so where nothing is
found it says how much more memory might buy at most. Other degrees, which might gain more, are not
searched: `plan --headroom` does that.
"""

from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.units import GIB
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.plan_findings import LEAST_GAIN, Bought, SpareMemory
from meshplan.planner.case.predict import fits_probability, step_model_of
from meshplan.planner.search.search import NoLayoutFits, SearchResult
from meshplan.planner.space.pins import Pins, parse_pin

KEPT = (
    "data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel",
    "expert_parallel", "expert_tensor_parallel",
)  # fmt: skip


def spare_memory(asked: Asked, plan: Plan) -> SpareMemory | None:
    """Of a plan; None on a CPU, where nothing is left free."""
    cluster = asked.question.cluster
    if cluster.gpu.vendor == "cpu":
        return None
    usable_bytes, most_bytes = cluster.fillable_bytes, asked.profile.capacity_bytes
    own_s = _own_s(asked, plan)
    one_gib, one_gib_most = _bought(asked, plan, usable_bytes + GIB, own_s)
    more = most_bytes > usable_bytes
    full, full_most = _bought(asked, plan, most_bytes, own_s) if more else (None, 0.0)
    return SpareMemory(
        free_bytes=cluster.gpu.memory_bytes - usable_bytes,
        chosen=not asked.usual_headroom,
        one_gib=one_gib,
        one_gib_most=one_gib_most,
        all_bytes=max(0.0, most_bytes - usable_bytes),
        all=full,
        all_most=full_most,
    )


def _own_s(asked: Asked, plan: Plan) -> float:
    """The step of the plan's degrees without more memory. A search that proved nothing of the whole
    space may find them a faster one when it is asked of them alone: no memory bought that.
    """
    assert plan.prediction is not None
    step_s = plan.prediction.step_time_s
    if plan.search and plan.search.status == "OPTIMAL":
        return step_s
    again = _solved(asked, plan, asked.question.cluster.fillable_bytes)
    return min(step_s, again.solutions[0].step_time_s) if again else step_s


def _solved(asked: Asked, plan: Plan, usable_bytes: float) -> SearchResult | None:
    """The plan's degrees with so much of each GPU; None where the search finds nothing: the plan
    fits, but another search starts from other first layouts.
    """
    q = asked.question
    cluster, pins = with_usable(q.cluster, usable_bytes), _pinned(q.pins, plan.layout)
    try:
        return solve(replace(q, cluster=cluster, pins=pins), 1)
    except NoLayoutFits:
        return None


def _bought(
    asked: Asked, plan: Plan, usable_bytes: float, own_s: float
) -> tuple[Bought | None, float | None]:
    """What the plan's degrees do with so much of each GPU, None where nothing faster was found, and
    by which fraction they may be faster at most, None where nothing is known.
    """
    result = _solved(asked, plan, usable_bytes)
    if result is None:
        return None, None
    q, best = asked.question, result.solutions[0]
    gain, most = (own_s / step_s - 1 for step_s in (best.step_time_s, result.bound_s))
    if gain < LEAST_GAIN:
        return None, max(0.0, most)
    probability = fits_probability(step_model_of(case_at(q, best.layout)))
    bought = Bought(
        step_time_s=best.step_time_s, label=best.layout.label, faster_fraction=gain,
        fits_probability=probability,
    )  # fmt: skip
    return bought, most


def _pinned(pins: Pins, layout: Layout) -> Pins:
    """The user's pins, and what of the plan is kept."""
    kept = {name: parse_pin(name, str(getattr(layout, name))) for name in KEPT}
    return Pins({**pins.axes, **kept})
