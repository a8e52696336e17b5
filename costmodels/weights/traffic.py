"""What a rank sends of its weights and gradients, to whom, and how often.

The n ranks that hold the same weights are cut into shard groups of s, which ZeRO shards over, and
the n / s copies of each shard (HSDP; elsewhere s = n, and s = 1 without ZeRO). Of P bytes

    gradients   reduce_scatter of P in the shard group, then all_reduce of P / s over the copies
                (all_reduce of P under ZeRO-1 if the engine does so, after the backward, and under
                ZeRO-1 and 2 if it sums whole buckets)
    weights     all_gather of P in the shard group

and each of these two groups has its own place: shard groups are neighbours, copies s apart.

    weights     before each layer's forward and backward under ZeRO-3 (the two ends once), after the
                update under ZeRO-1 and 2; frozen ones, as they are kept, under ZeRO-3 alone
    gradients   after each micro-batch where they are kept in shards, since nothing is left to add
                the next micro-batch's to; else once per step
    sums        bf16 gradients, where they are added up in a buffer of their own, are sent from it
    pieces      ZeRO-3's collectives of one layer, if the engine sends weights one by one: each pays
                its ring, and is listed by rank if the engine does so
    buckets     each of them pays the latency of a collective again
    unpacking   ZeRO-3's gathered weights, out of the collective's buffer, if the engine does so
    copies      once per step, or after each micro-batch if the engine does so
    experts     that the engine keeps whole: s = 1, and their copies are summed once per step
    8 bits      what the update changed of weights that are kept in 8 bits, with one scale a tensor

Source: ZeRO (1910.02054, section 7), PyTorch FSDP (2304.11277, section 3.2.2, hybrid sharding).
The second reduction of a tied table is `costmodels/ranks/tied_table.py`'s.
"""

from dataclasses import replace
from typing import Self

from meshplan.costmodels.elementwise import Condition, Number, maximum, minimum, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.memory.states import Frozen, Sharding, expert_ranks, shards_gradients
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.seconds.collectives import collective_s, hops_s
from meshplan.costmodels.seconds.interference import beside_experts, interference_of
from meshplan.costmodels.seconds.process_groups import (
    Group,
    expert_data_group,
    place,
    shard_group,
)
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine, State
from meshplan.hardware_profiles.network_schema import CollectiveKind
from meshplan.hardware_profiles.schema import Cluster

SMALL_HOP = 0.19
"""Of a ring's latency, that of a message of some kilobytes, for which NCCL takes its LL protocol:
0.6 us over NVLink, 1.0 over PCIe and 2.7 over a network, where Simple takes 3.4, 5.7 and 14
(NVIDIA/nccl src/graph/tuning.cc, hwLat).
"""


@dataclass(frozen=True, slots=True)
class Sharers:
    """The ranks with the same weights: the `shard` group of one of them, and its `copies`."""

    shard: Group
    copies: Group


def sharing(
    layout: Layout | Layouts, engine: Engine, gpus_per_node: int, *, bf16: bool = False
) -> tuple[Sharding, Group]:
    """How ZeRO divides the states of `layout`, and the ranks with the same dense weights; `bf16`:
    the training's precision.
    """
    all_ranks = shard_group(layout, engine.legality.rank_order, gpus_per_node)
    hybrid = (layout.zero_stage > 0) & (layout.shard_group > 0)
    ranks = where(hybrid, layout.shard_group * 1.0, all_ranks.size)
    tensor = layout.tensor_parallel / (layout.expert_parallel * layout.expert_tensor_parallel)
    holders = expert_data_group(layout, gpus_per_node).size
    pipelined = (layout.pipeline_parallel > 1) * 1.0
    sums = _sums(layout.zero_stage * 1.0, pipelined, engine.state) * bf16
    spread = layout.expert_parallel * layout.expert_tensor_parallel > 1
    whole = where(spread, 1.0, 0.0) * engine.state.keeps_experts_whole
    shared = expert_ranks(engine.state, ranks, holders, tensor)
    sharding = Sharding(
        zero_stage=maximum(layout.zero_stage * 1.0, sums), dense_ranks=ranks,
        expert_ranks=where(whole > 0, 1.0, shared),
        pipelined=pipelined, offloaded=layout.optimizer_offload * 1.0, sums=sums, whole=whole,
    )  # fmt: skip
    return sharding, all_ranks


def _sums(zero_stage: Number, pipelined: Number, state: State) -> Number:
    """1 where bf16 gradients are added up in a buffer of their own."""
    if not state.bf16_sums_bytes:
        return 0.0
    if state.bf16_sums_always:
        return where(zero_stage <= 1, 1.0, 0.0)
    return where(zero_stage == 0, pipelined, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTraffic:
    """Seconds of these collectives, none of it hidden, of one layout or of each row of a grid.

    frozen  bytes of weights that are not trained: of them there are no gradients
    scale   seconds over what the links say [fitted]
    gathers_8bit  whether updated weights of 8-bit products are gathered in 8 bits
    """

    cluster: Cluster
    state: State
    sharding: Sharding
    dense: Sharers
    expert: Sharers
    frozen: Frozen
    scale: float
    gathers_8bit: bool = False

    def unpacked_bytes(self, parameters: RankParameters) -> Number:
        """Read and written for each gathering to put its weights where they are used."""
        both_ways = 2 * self.state.weight_bytes * self.state.unpacks_gathered
        dense = where(self.dense.shard.size > 1, parameters.dense, 0.0)
        expert = where(self.expert.shard.size > 1, parameters.expert, 0.0)
        trained = both_ways * where(self.sharding.zero_stage >= 3, dense + expert, 0.0)
        dense = where(self.dense.shard.size > 1, self.frozen.dense_bytes(parameters), 0.0)
        expert = where(self.expert.shard.size > 1, self.frozen.expert_bytes(parameters), 0.0)
        frozen = where(self.sharding.zero_stage >= 3, dense + expert, 0.0)
        return trained + 2 * frozen * self.state.unpacks_gathered

    def forward_s(self, parameters: RankParameters) -> Number:
        """Each micro-batch, before the forward."""
        gather = self._gather_s(parameters) + self._apart_s("all_gather", parameters)
        return where(self.sharding.zero_stage >= 3, gather, 0.0)

    def backward_s(self, parameters: RankParameters, *, again: Number) -> Number:
        """Each micro-batch, beside the backward, which gathers the weights `again` so often."""
        gather = again * self.forward_s(parameters)
        copies = self._within_s(parameters) if self.state.copies_each_micro_batch else 0.0
        apart = self._apart_s("reduce_scatter", parameters)
        apart = where(self.sharding.zero_stage >= 3, apart, 0.0)
        return gather + where(self._scatters, self._scatter_s(parameters) + copies + apart, 0.0)

    def listed_s(self, parameters: RankParameters) -> Number:
        """Seconds of the host for which the device waits at each gathering, and each scattering."""
        ranks = where(self.dense.shard.size > 1, self.dense.shard.size, 0.0)
        listed = self.state.listed_rank_s * ranks * self._pieces(parameters)
        return where(self.sharding.zero_stage >= 3, listed, 0.0)

    def units_s(self, parameters: RankParameters) -> Number:
        """Seconds for which the device waits at each gathering of adapters that are units of their
        own: FSDP lets no more than two gathers be under way, so the host, which takes so long for a
        unit, is at most two units ahead; a ring over many ranks takes longer than the host.
        """
        if not self.state.adapter_unit_s:
            return 0.0
        group = self.dense.shard
        host_s = self.state.adapter_unit_s * self.cluster.host_slowdown
        ring_s = self.scale * SMALL_HOP * hops_s(self.cluster, "all_gather", group)
        each_s = where(group.size > 1, maximum(host_s, ring_s), 0.0)
        return where(self.sharding.zero_stage >= 3, parameters.adapters * each_s, 0.0)

    def once_s(self, parameters: RankParameters) -> Number:
        """The gradients that are left for the end of the step."""
        whole = self._scatter_s(parameters) + self._copies_s(parameters)
        return where(self._scatters, self._late_copies_s(parameters), whole)

    def refresh_s(self, parameters: RankParameters) -> Number:
        """Gathering what the optimizer updated."""
        zero = self.sharding.zero_stage
        narrow = parameters.eight_bit, parameters.eight_bit_expert
        dense, expert = narrow if self.gathers_8bit else (0.0, 0.0)
        wide = RankParameters(dense=parameters.dense - dense, expert=parameters.expert - expert)
        return where((zero >= 1) & (zero < 3), self._gather_s(wide, (dense, expert)), 0.0)

    def updated(self, parameters: RankParameters) -> Number:
        """Parameters that this rank's optimizer updates."""
        return parameters.dense / self.dense.shard.size + parameters.expert / self.expert.shard.size

    def clipped_beside(self, parameters: RankParameters) -> Number:
        """Others whose gradients it norms and scales too: all of the rank's, where ZeRO-1 adds up
        whole gradients.
        """
        held = parameters.dense + parameters.expert
        return where(self.reduces_late, held - self.updated(parameters), 0.0)

    def interference(self, fitted: float) -> Number:
        """By how much it slows computing (`interference_of`), experts' as dense weights'."""
        return interference_of(self.cluster, fitted, self.dense.shard)

    def interference_beside(self, parameters: RankParameters, fitted: float) -> Number:
        """The same of one part of the model, with these parameters."""
        beside = beside_experts(self.cluster, fitted, self.dense.shard)
        return where(
            parameters.expert + parameters.frozen_expert > 0, beside, self.interference(fitted)
        )

    @property
    def latencies(self) -> Self:
        """The same of collectives without a payload."""
        return replace(self, state=self.state.model_copy(update=EMPTY), gathers_8bit=False)

    @property
    def reduces_late(self) -> Condition:
        """Whether no gradient is sent before the last backward is done."""
        return (self.sharding.zero_stage == 1) & self.state.zero_1_reduces_late

    @property
    def follows_backward(self) -> Condition:
        """Whether what is left for the end of the step is one sweep after the last backward: all
        gradients, or those of whole experts.
        """
        return self.reduces_late | (self.sharding.whole > 0)

    @property
    def _sums_buckets(self) -> Condition:
        """Whether ZeRO-1 and 2 send gradients by all_reduce; sums beside 16-bit ones do not."""
        zero = self.sharding.zero_stage
        return (zero < 3) & (self.sharding.sums == 0) & self.state.all_reduces_shards

    @property
    def _scatters(self) -> Condition:
        return shards_gradients(self.state, self.sharding)

    @property
    def _sent_bytes(self) -> Number:
        """Of each parameter's gradient."""
        state = self.state
        if not state.bf16_sent_bytes:
            return state.reduce_bytes
        return where(self.sharding.sums > 0, state.bf16_sent_bytes, state.reduce_bytes)

    def given_back(self, parameters: RankParameters) -> Number:
        """Fraction of a wholly replayed layer's weights that are gathered once more between its
        replay and its backward. These use its P numbers in one order and then in the other, so a
        weight with p behind it meets 2 p in between, and is given back above `reuse_distance`.
        """
        if not self.state.reuse_distance:
            return 0.0
        whole = maximum(_numbers(parameters), 1.0)
        return maximum(1.0 - self.state.reuse_distance / (2.0 * whole), 0.0)

    def _pieces(self, parameters: RankParameters) -> Number:
        """Collectives that one gathering of `parameters` takes."""
        if not self.state.gather_bucket:
            return 1.0
        buckets = maximum(_numbers(parameters) / self.state.gather_bucket, 1.0)
        return minimum(maximum(parameters.matrices, 1.0), buckets)

    def _apart_s(self, kind: CollectiveKind, parameters: RankParameters) -> Number:
        """What sending weights one by one costs beside their bytes."""
        if not self.state.gather_bucket:
            return 0.0
        hops = where(self.dense.shard.size > 1, hops_s(self.cluster, kind, self.dense.shard), 0.0)
        return self.scale * (self._pieces(parameters) - 1.0) * hops

    def _gather_s(
        self, parameters: RankParameters, narrow: tuple[Number, Number] = (0.0, 0.0)
    ) -> Number:
        """All weights, and `narrow` bytes of other dense and expert ones."""
        each, groups = self.state.weight_bytes, (self.dense.shard, self.expert.shard)
        frozen = self.frozen.dense_bytes(parameters), self.frozen.expert_bytes(parameters)
        others = frozen[0] + narrow[0], frozen[1] + narrow[1]
        return self._sum_s("all_gather", parameters, each, groups, others)

    def _scatter_s(self, parameters: RankParameters) -> Number:
        each, groups = self._sent_bytes, (self.dense.shard, self.expert.shard)
        scattered = self._sum_s("reduce_scatter", parameters, each, groups)
        state = self.state
        if not (state.zero_1_reduces_late or state.all_reduces_shards):
            return scattered
        whole = self._sum_s("all_reduce", parameters, each, groups)
        return where(self.reduces_late | self._sums_buckets, whole, scattered)

    def _copies_s(self, parameters: RankParameters) -> Number:
        shard = RankParameters(
            dense=parameters.dense / self.dense.shard.size,
            expert=parameters.expert / self.expert.shard.size,
        )
        each, groups = self._sent_bytes, (self.dense.copies, self.expert.copies)
        return self._sum_s("all_reduce", shard, each, groups) + self._buckets_s(shard, groups)

    def _within_s(self, parameters: RankParameters) -> Number:
        """Without those of experts that are kept whole."""
        if not self.state.keeps_experts_whole:
            return self._copies_s(parameters)
        experts = where(self.sharding.whole > 0, 0.0, parameters.expert)
        return self._copies_s(replace(parameters, expert=experts))

    def _late_copies_s(self, parameters: RankParameters) -> Number:
        """Those that are summed once per step, although gradients are scattered before."""
        if not self.state.copies_each_micro_batch:
            return self._copies_s(parameters)
        if not self.state.keeps_experts_whole:
            return 0.0
        experts = where(self.sharding.whole > 0, parameters.expert, 0.0)
        return self._copies_s(replace(parameters, dense=0.0, expert=experts))

    def _buckets_s(self, shard: RankParameters, groups: tuple[Group, Group]) -> Number:
        """What sending the gradients in buckets costs beside their bytes."""
        if not self.state.reduce_bucket:
            return 0.0
        dense, expert = (
            count / self.state.reduce_bucket * hops_s(self.cluster, "all_reduce", group)
            for count, group in zip((shard.dense, shard.expert), groups, strict=True)
        )
        return self.scale * (dense + expert)

    def _sum_s(
        self,
        kind: CollectiveKind,
        parameters: RankParameters,
        each: Number,
        groups: tuple[Group, Group],
        others: tuple[Number, Number] = (0.0, 0.0),
    ) -> Number:
        """Of `each` byte of trained parameters, dense and expert, and so many bytes of `others`."""
        counts = parameters.dense, parameters.expert
        dense, expert = (
            where(
                count + more > 0,
                collective_s(self.cluster, kind, count * each + more, group, one_message=False),
                0.0,
            )
            for count, more, group in zip(counts, others, groups, strict=True)
        )
        return self.scale * (dense + expert)


EMPTY = dict.fromkeys(("weight_bytes", "reduce_bytes", "bf16_sent_bytes", "reduce_bucket"), 0.0)


def weight_traffic(
    layout: Layout | Layouts,
    cluster: Cluster,
    engine: Engine,
    scale: float,
    frozen: Frozen,
    training: Training,
) -> WeightTraffic:
    """Who shares the weights of `layout`, and where they are."""
    per_node = cluster.gpus_per_node
    sharding, dense = sharing(layout, engine, per_node, bf16=training.precision == "bf16")
    hybrid = sharding.dense_ranks < dense.size
    expert = expert_data_group(layout, per_node)
    cut = hybrid | (sharding.whole > 0)
    held = minimum(expert.size, where(cut, sharding.expert_ranks, expert.size))
    zero = sharding.zero_stage
    return WeightTraffic(
        cluster=cluster, state=engine.state, sharding=sharding, frozen=frozen, scale=scale,
        dense=_cut(dense, where(zero >= 1, sharding.dense_ranks, 1.0), per_node),
        expert=_cut(expert, where(zero >= 1, held, 1.0), per_node),
        gathers_8bit=engine.state.gathers_8bit and training.precision == "fp8",
    )  # fmt: skip


def _numbers(parameters: RankParameters) -> Number:
    return parameters.dense + parameters.expert + parameters.frozen + parameters.frozen_expert


def _cut(ranks: Group, shard: Number, gpus_per_node: int) -> Sharers:
    """`ranks`, cut into neighbours of `shard` and the copies of each."""
    stride, world = ranks.stride, ranks.world
    return Sharers(
        place(shard, stride, gpus_per_node, world),
        place(ranks.size / shard, stride * shard, gpus_per_node, world),
    )
