"""Device memory of one rank that does not depend on its stages: the CUDA context, the allocator's
slack, weights gathered whole, and buffers that outlive their use.

Every function holds for one layout or for each of a grid, as its `Rank` does.
"""

from collections.abc import Iterable
from dataclasses import replace

from meshplan.costmodels.elementwise import Condition, Number, maximum, where
from meshplan.costmodels.memory import states
from meshplan.costmodels.memory.kept_buffers import (
    gather_buffer_bytes,
    head_buffer_bytes,
)
from meshplan.costmodels.memory.receive_buffers import receive_buffer_bytes
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.operations.adapters import largest_weight
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.process_groups import Group, axis_group

CONTEXT_BYTES = 1.5 * 2**30  # Ultra-Scale Playbook: CUDA kernels and context take 1-2 GB
CPU_CONTEXT_BYTES = 0.3 * 2**30
"""A process of PyTorch without a GPU: torch 2.13 and gloo have 0.21 GiB resident, after a step of
products, attention and AdamW in fp32 and bf16 0.31 (2026-11-27).
"""


def context_bytes(rank: Rank) -> Number:
    """Device memory outside the allocator: CUDA context, libraries, and where the cluster says what
    one takes, a communicator for each process group that leaves its node.
    """
    cluster = rank.setting.cluster
    assert cluster.kernels is not None
    known = cluster.kernels.context_bytes
    usual = CPU_CONTEXT_BYTES if cluster.gpu.vendor == "cpu" else CONTEXT_BYTES
    outside: Number = usual if known is None else known
    if cluster.communicator_bytes:
        leaving = sum(where(group.nodes > 1, 1.0, 0.0) for group in _collective_groups(rank))
        outside = outside + cluster.communicator_bytes * leaving
    return outside


def _collective_groups(rank: Rank) -> tuple[Group, ...]:
    """Those of tensor, context, expert and data parallelism; a pipeline sends messages."""
    order, per_node = rank.setting.engine.legality.rank_order, rank.setting.cluster.gpus_per_node
    data = axis_group(rank.layout, "dp", order, per_node)
    return (*(rank.groups[axis] for axis in ("tp", "cp", "ep")), data)


def constant_slack_bytes(rank: Rank, pairs: Number) -> Number:
    """The part of the allocator's slack that no category scales; `pairs` of whole tensors are held
    beside a pipeline (`queued_launches`).
    """
    return rank.setting.tuning.memory_bytes + 2 * rank.site.gathered_bytes * pairs


def gathered_bytes(rank: Rank, parameters: RankParameters) -> Number:
    """What ZeRO-3 holds whole of these parameters while it computes with them."""
    return states.gathered_bytes(rank.state, parameters, rank.traffic.sharding, rank.frozen)


def head_gathered_bytes(rank: Rank, parameters: RankParameters) -> Number:
    """The same at the loss of the head, and of prediction modules on the last stage."""
    return where(_holds_once(rank), 0.0, gathered_bytes(rank, _dense(parameters)))


def embedding_gathered_bytes(rank: Rank, parameters: RankParameters) -> Number:
    """The same of the embedding, where the last stage has it too: its weights, if they are in one
    unit with the head's. Its gradient comes last, when no layer keeps anything any more.
    """
    if not rank.state.ends_in_one_unit:
        return 0.0
    state = rank.state.model_copy(update={"gradient_bytes": 0.0})
    sharding, frozen = rank.traffic.sharding, rank.frozen
    held = states.gathered_bytes(state, _dense(parameters), sharding, frozen)
    return where(_holds_once(rank), 0.0, held)


def _dense(parameters: RankParameters) -> RankParameters:
    return replace(parameters, expert=0.0, frozen_expert=0.0)


def _holds_once(rank: Rank) -> Condition:
    """Whether one rank holds a tied table for both ends."""
    alone = (rank.layout.pipeline_parallel == 1) & (rank.layout.virtual_stages <= 1)
    return rank.setting.model.tied & alone


def received_bytes(rank: Rank, micro_batches: Number) -> Number:
    """What a rank of a pipeline receives into all step long, where the engine does so."""
    pipelined, apart = rank.layout.pipeline_parallel * 1.0, rank.state.receives_apart
    return receive_buffer_bytes(pipelined, rank.hops.sent_bytes, micro_batches, apart=apart)


def outliving_bytes(
    rank: Rank, kinds: Iterable[int], micro_batches: Number, *, head: bool, modules: bool
) -> Number:
    """Buffers of layers of `kinds`, of the head, of prediction modules and of messages, that
    outlive use.
    """
    kinds = tuple(kinds)
    layers = rank.stand_in_bytes(kinds, with_modules=modules)
    layers = layers + unpacked_bytes(rank, kinds) + gather_buffer_bytes(rank.site)
    layers = layers + received_bytes(rank, micro_batches)
    return layers + head_buffer_bytes(rank.site) if head else layers


def unpacked_bytes(rank: Rank, kinds: Iterable[int]) -> Number:
    """The largest quantised weight of layers of `kinds`, unpacked for its product."""
    if not rank.packed_bytes:
        return 0.0
    most: Number = 0.0
    for kind in kinds:
        most = maximum(most, largest_weight(rank.operations(kind)))
    return rank.site.itemsize * most
