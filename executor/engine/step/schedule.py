"""The order of each pipeline rank's actions: the one whose memory the cost model counts.

A V-shaped zero-bubble order depends on how long actions take, and is timed as if it was found for
the times at hand. Here F, I and W take equal time, so that the order depends on the layout alone
and every rank works out the same; `costmodels.schedule.v_shaped` says what that costs.
"""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.schedule import held_micro_batches as held
from meshplan.costmodels.schedule.actions import Action
from meshplan.costmodels.schedule.in_flight import rank_of_chunk


def stages_of(layout: Layout, pp_rank: int) -> list[int]:
    """The virtual stages that a pipeline rank holds, in model order."""
    return [stage for stage in range(len(layout.stages)) if rank_of(layout, stage) == pp_rank]


def rank_of(layout: Layout, stage: int) -> int:
    """The pipeline rank that holds a virtual stage."""
    return rank_of_chunk(layout.schedule, layout.pipeline_parallel, stage)


def actions(layout: Layout, num_micro_batches: int) -> list[list[Action]]:
    """What each pipeline rank does, in order."""
    return held.actions(
        layout.schedule, layout.pipeline_parallel, layout.virtual_stages, num_micro_batches
    )
