"""The order of each pipeline rank's actions: the one that the cost model plays and counts."""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.schedule.actions import Action
from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.schedule.orders import order


def stages_of(layout: Layout, pp_rank: int) -> list[int]:
    """The virtual stages that a pipeline rank holds, in model order."""
    return [stage for stage in range(len(layout.stages)) if rank_of(layout, stage) == pp_rank]


def rank_of(layout: Layout, stage: int) -> int:
    """The pipeline rank that holds a virtual stage."""
    return rank_of_chunk(layout.schedule, layout.pipeline_parallel, stage)


def actions(layout: Layout, num_micro_batches: int) -> list[list[Action]]:
    """What each pipeline rank does, in order."""
    la, m = layout, num_micro_batches
    ranks = range(la.pipeline_parallel)
    return [list(order(la.schedule, la.pipeline_parallel, la.virtual_stages, m, s)) for s in ranks]
