"""Which of many layouts or engines every change runs: those that show what none before them does.

What is left out runs nightly.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from meshplan.costmodels.layout import Layout
from meshplan.hardware_profiles.engines import load_engine

Case = TypeVar("Case")
AXES = ("tensor", "pipeline", "context", "expert", "data")


def first_shown(cases: Iterable[Case], facts: Callable[[Case], set[Hashable]]) -> tuple[Case, ...]:
    """Cases that show every fact between them, each of them most that none before it shows: the
    greedy cover of a set (Chvatal, Mathematics of Operations Research 4 (1979), p. 233).
    """
    of_each = [(case, facts(case)) for case in cases]
    missing = set[Hashable]().union(*(shown for _, shown in of_each))
    chosen = []
    while missing:
        case, shown = max(of_each, key=lambda each: len(each[1] & missing))
        chosen.append(case)
        missing -= shown
    return tuple(chosen)


def facts_of(layout: Layout) -> set[Hashable]:
    """Each axis, used or not; ZeRO stage, recompute mode, schedule and kinds of stages; whether
    what experts exchange is split by tensor parallelism too.
    """
    found: dict[str, Hashable] = {axis: getattr(layout, f"{axis}_parallel") > 1 for axis in AXES}
    return set(found.items()) | {
        ("zero_stage", layout.zero_stage),
        ("hybrid_shard", bool(layout.shard_group)),
        ("recompute", layout.recompute),
        ("schedule", layout.schedule if layout.pipeline_parallel > 1 else None),
        ("uneven stages", len({stage.layers for stage in layout.stages}) > 1),
        ("several sequences", layout.micro_batch_size > 1),
        ("split experts' tokens", min(layout.tensor_parallel, layout.expert_parallel) > 1),
    }


def habits_of(engine: str) -> set[Hashable]:
    """What it does or does not: the words and answers of its file, whatever its numbers."""
    found = load_engine(engine).model_dump(include={"state", "overlap", "kernels"})
    return {
        (part, name, str(value))
        for part, habits in found.items()
        for name, value in habits.items()
        if isinstance(value, bool | str | tuple)
    }
