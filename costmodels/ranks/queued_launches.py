"""Gathered tensors that a caching allocator holds because the host runs ahead of the device.

    ahead   1 - issued / computing, at least 0
    queued  min(queued_gathers, ahead m L / pp)
    held    max(queued, held_gathers_pipelined (1 - (2 / pp)^2))

    issued      seconds in which the host issues a layer, forward and backward
    computing   seconds of the device for it, collectives of tensor parallel inside a node included
    m, L, pp    micro-batches of a replica, layers, pipeline ranks
    all others  pairs: the outputs of a layer's two row-parallel products, or as many bytes

A host that issues faster than the device computes runs ahead of it by that share of all that it has
issued, until the device's queue of launches is full. What it frees meanwhile, the outputs that the
communication stream still has to reduce, cannot be given again before it is reduced. The deeper a
pipeline is, the more of them are held however slow the host: nanotron's first ranks hold 0, 30, 46,
49 and 48 tensors at 2, 4, 8, 16 and 32 stages [observed]. Of collectives between nodes the host
does not get ahead [observed]: where they stall, 3 to 7 tensors are held.

Source: huggingface/nanotron@67c5ebb6 src/nanotron/parallel/tensor_parallel/functional.py,
row_linear (gathered inputs share one buffer); pytorch c10/cuda/CUDACachingAllocator.cpp, a block
with events of another stream. `queued_gathers` [fitted], of jobs before and after nanotron's
point-to-point fix apart, came out alike.
Leaves out: layers of several kinds in turn, layers that are replayed.
"""

from meshplan.costmodels.elementwise import Number, maximum, minimum, where
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.layer import DIRECTIONS


def run_ahead(rank: Rank) -> Number:
    """The share of what it has issued by which the host is ahead; 0 where no run says what of."""
    if not rank.setting.tuning.queued_gathers:
        return 0.0
    issued: Number = 0.0
    computing: Number = 0.0
    inside = where(rank.groups["tp"].nodes <= 1, 1.0, 0.0)
    for kind in range(len(rank.setting.model.kinds)):
        layers = rank.setting.stack.count(kind)
        cost, operations = rank.plain_cost(kind, "none"), rank.operations(kind)
        for direction in DIRECTIONS:
            done = getattr(cost, direction)
            issued = issued + layers * rank.pricer.issued_s(operations, direction)
            alone = done.compute_s - done.host_s + inside * done.tensor_s
            computing = computing + layers * alone
    return maximum(1 - issued / computing, 0.0)


def held_pairs(rank: Rank, micro_batches: Number, ahead: Number) -> Number:
    """Pairs that are held beside a pipeline, `ahead` being that of the host."""
    tuning, la = rank.setting.tuning, rank.layout
    layers = rank.setting.model.num_layers / la.pipeline_parallel
    queued = minimum(tuning.queued_gathers, ahead * micro_batches * layers)
    deep = tuning.held_gathers_pipelined * (1 - (2 / la.pipeline_parallel) ** 2)
    waits = (la.tensor_parallel > 1) & (la.pipeline_parallel > 1)
    return where(waits, maximum(queued, deep), 0.0)
