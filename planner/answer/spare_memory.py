"""What the memory that a plan leaves free would buy, and one GiB more than it may use.

The plan's own degrees, micro-batch and ZeRO stage are asked again with more memory: another
schedule, other chunks, less recomputation. The best of what the closed form finds first is
simulated (`planner.answer.first_layouts`), so more memory buys at least so much. Other degrees,
which might gain more, are not searched: `plan --headroom` does that.
"""

from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.units import GIB
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.first_layouts import first_layout
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.plan_findings import Bought, SpareMemory
from meshplan.planner.case.predict import fits_probability, step_model_of
from meshplan.planner.space.pins import Pins, parse_pin

LEAST_GAIN = 0.001
MOST_STEPS = 10  # of the search: more of them take CP-SAT, up to a second
KEPT = (
    "data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel",
    "expert_parallel", "expert_tensor_parallel", "zero_stage", "micro_batch_size",
)  # fmt: skip


def spare_memory(asked: Asked, plan: Plan) -> SpareMemory | None:
    """Of a plan; None on a CPU, where nothing is left free."""
    cluster = asked.question.cluster
    if cluster.gpu.vendor == "cpu":
        return None
    usable_bytes, most_bytes = cluster.fillable_bytes, asked.profile.capacity_bytes
    return SpareMemory(
        free_bytes=cluster.gpu.memory_bytes - usable_bytes,
        chosen=not asked.usual_headroom,
        one_gib=_bought(asked, plan, usable_bytes + GIB),
        all_bytes=max(0.0, most_bytes - usable_bytes),
        all=_bought(asked, plan, most_bytes) if most_bytes > usable_bytes else None,
    )


def _bought(asked: Asked, plan: Plan, usable_bytes: float) -> Bought | None:
    """What the plan's degrees do with so much of each GPU, None where it is not faster."""
    assert plan.prediction is not None
    q, own_s = asked.question, plan.prediction.step_time_s
    more = replace(
        q, cluster=with_usable(q.cluster, usable_bytes), pins=_pinned(q.pins, plan.layout)
    )
    found = first_layout(more, own_s / (1 + LEAST_GAIN), MOST_STEPS)
    if found is None:
        return None
    return Bought(
        step_time_s=found.step_s,
        label=found.layout.label,
        faster_fraction=own_s / found.step_s - 1,
        fits_probability=fits_probability(step_model_of(case_at(q, found.layout))),
    )


def _pinned(pins: Pins, layout: Layout) -> Pins:
    """The user's pins, and what of the plan is kept."""
    kept = {name: parse_pin(name, str(getattr(layout, name))) for name in KEPT}
    return Pins({**pins.axes, **kept})
