"""Device memory of one rank that does not depend on its stages: the CUDA context, the allocator's
slack, weights gathered whole, and buffers that outlive their use.

Every function holds for one layout or for each of a grid, as its `Rank` does.
"""

from collections.abc import Iterable
from dataclasses import replace

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.memory import states
from meshplan.costmodels.memory.kept_buffers import (
    gather_buffer_bytes,
    head_buffer_bytes,
    stand_in_bytes,
)
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.operations.adapters import largest_weight
from meshplan.costmodels.step.ranks import Rank

CONTEXT_BYTES = 1.5 * 2**30  # Ultra-Scale Playbook: CUDA kernels and context take 1-2 GB


def context_bytes(rank: Rank) -> float:
    """Device memory outside the allocator: CUDA context, libraries, communicators."""
    kernels = rank.setting.cluster.kernels
    assert kernels is not None
    return CONTEXT_BYTES if kernels.context_bytes is None else kernels.context_bytes


def constant_slack_bytes(rank: Rank, pairs: Number) -> Number:
    """The part of the allocator's slack that no category scales; `pairs` of whole tensors are held
    beside a pipeline (`queued_launches`).
    """
    return rank.setting.tuning.memory_bytes + 2 * rank.site.gathered_bytes * pairs


def gathered_bytes(rank: Rank, parameters: RankParameters) -> Number:
    """What ZeRO-3 holds whole of these parameters while it computes with them."""
    state, sharding = rank.setting.engine.state, rank.traffic.sharding
    if rank.setting.training.optimizer_states:
        state = rank.state  # the gradients of a layer are as wide as they are kept
    return states.gathered_bytes(state, parameters, sharding, rank.frozen)


def ends_gathered_bytes(rank: Rank, parameters: RankParameters) -> Number:
    """The same of so many parameters of the ends on the last stage: none where one rank holds
    a tied table for both of them.
    """
    alone = (rank.layout.pipeline_parallel == 1) & (rank.layout.virtual_stages <= 1)
    held_once = rank.setting.model.tied & alone
    dense = replace(parameters, expert=0.0, frozen_expert=0.0)
    return where(held_once, 0.0, gathered_bytes(rank, dense))


def outliving_bytes(rank: Rank, kinds: Iterable[int], *, head: bool, modules: bool) -> Number:
    """Buffers of layers of `kinds`, of the head and of prediction modules, that outlive use."""
    kinds = tuple(kinds)
    layers = stand_in_bytes(rank.site, kinds, with_modules=modules)
    layers = layers + unpacked_bytes(rank, kinds) + gather_buffer_bytes(rank.site)
    return layers + head_buffer_bytes(rank.site) if head else layers


def unpacked_bytes(rank: Rank, kinds: Iterable[int]) -> Number:
    """The largest quantised weight of layers of `kinds`, unpacked for its product."""
    if not rank.packed_bytes:
        return 0.0
    most: Number = 0.0
    for kind in kinds:
        most = maximum(most, largest_weight(rank.operations(kind)))
    return rank.site.itemsize * most
