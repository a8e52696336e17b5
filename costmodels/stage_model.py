"""The stages of one layout: what each costs for a micro-batch, and the parameters that it holds.

`StageModel` lists the operations of each layer kind and of the two ends once and prices them;
`step_time` plays the schedule over its stages, `step_memory` adds up what its ranks hold.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from costmodels.blocks import input_bytes, layer_operations
from costmodels.collectives import collective_s, send_s
from costmodels.compute import Device
from costmodels.ends import embedding_operations, head_operations
from costmodels.feed_forward import Site
from costmodels.in_flight import rank_of_chunk
from costmodels.layer import NOTHING, Cost, Pass, Pricer, exposed_s
from costmodels.layout import InvalidLayout, Layout
from costmodels.model import Model
from costmodels.params import (
    RankParameters,
    embedding_parameters_per_rank,
    final_norm_parameters,
    head_parameters_per_rank,
    layer_parameters_per_rank,
    mtp_parameters_per_rank,
)
from costmodels.placement import axis_group, expert_data_group, place, shard_group
from costmodels.precision import RECIPES
from costmodels.shard import shard_of
from costmodels.training import Training
from hardware_profiles.engine_schema import Engine
from hardware_profiles.schema import Cluster, CollectiveKind
from hardware_profiles.tunings import Tuning

MODES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a layout is priced against."""

    model: Model
    training: Training
    cluster: Cluster
    engine: Engine
    tuning: Tuning


class StageModel:
    """The costs and parameters of the stages of one layout in one setting, computed once."""

    def __init__(self, setting: Setting, layout: Layout) -> None:
        if isinstance(layout, Layout) and (layout.optimizer_offload or layout.activation_offload):
            raise InvalidLayout("offload to the host is not modelled; price the layout without it")
        self.setting, self.layout = setting, layout
        model, cluster, engine = setting.model, setting.cluster, setting.engine
        assert cluster.kernels is not None, f"{cluster.name} has no kernel measurements"
        device = Device(
            cluster.gpu,
            cluster.kernels,
            setting.tuning,
            RECIPES[setting.training.precision],
            engine.kernels.attention,
        )
        self.site = Site(model, shard_of(layout, setting.training), engine.kernels)
        order, g = engine.legality.rank_order, cluster.gpus_per_node
        groups = {axis: axis_group(layout, axis, order, g) for axis in ("tp", "cp", "ep")}
        groups["etp"] = place(layout.expert_tensor_parallel, 1.0, g)
        crosses = (layout.pipeline_parallel > 1) & (self.neighbour_stride >= g)
        self.pricer = Pricer(
            device,
            cluster,
            engine.overlap,
            groups,
            crosses * 1.0,
            engine.kernels.dispatch == "deduplicated",
            setting.training.adapters_only,
        )
        self.dense_group = shard_group(layout, order, g)
        self.expert_group = expert_data_group(layout, g)
        self._costs: dict[tuple[int, str], Cost] = {}

    @cached_property
    def m(self) -> int:
        """Micro-batches per replica and step."""
        return self.layout.num_micro_batches(self.setting.training)

    def layer_cost(self, kind: int, mode: str) -> Cost:
        """One layer of `kind` under recompute `mode`, with ZeRO-3's gathering of its weights."""
        if (kind, mode) not in self._costs:
            self._costs[kind, mode] = self._gathering(kind, self._plain_cost(kind, mode))
        return self._costs[kind, mode]

    def _plain_cost(self, kind: int, mode: str) -> Cost:
        operations = layer_operations(self.site, self.setting.model.kinds[kind])
        if mode == "full":
            return self.pricer.full_cost(operations, input_bytes(self.site))
        replayed = self.layout.selective_modules if mode == "selective" else ()
        return self.pricer.cost(operations, replayed)

    def _gathering(self, kind: int, cost: Cost) -> Cost:
        if self.layout.zero_stage < 3:
            return cost
        forward = self.collective_s("all_gather", self.layer_parameters(kind), 2.0)
        backward = forward + self.collective_s("reduce_scatter", self.layer_parameters(kind), 4.0)
        overlap, tuning = self.setting.engine.overlap.weight_gather, self.setting.tuning
        seen_f = exposed_s(forward, cost.forward.compute_s, overlap, tuning.interference)
        room_b = cost.input_grad.compute_s + cost.weight_grad.compute_s + cost.replay.compute_s
        seen_b = exposed_s(backward, room_b, overlap, tuning.interference)
        gather = Cost(
            forward=Pass(data_s=seen_f), input_grad=Pass(data_s=seen_b), weight_grad=Pass(),
            replay=Pass(), model_flops=0.0, full_model_flops=0.0, replay_flops=0.0,
            saved_bytes=0.0,
        )  # fmt: skip
        return cost + gather

    def collective_s(
        self, kind: CollectiveKind, parameters: RankParameters, bytes_each: float
    ) -> float:
        """Seconds to reduce or gather `parameters` over the ranks that share them."""
        parts = ((parameters.dense, self.dense_group), (parameters.expert, self.expert_group))
        scale = self.setting.tuning.collective_scale
        return scale * sum(
            float(collective_s(self.setting.cluster, kind, size * bytes_each, group))
            for size, group in parts
            if size > 0
        )

    def layer_parameters(self, kind: int) -> RankParameters:
        """Parameters of one layer of `kind` on one rank."""
        la, model = self.layout, self.setting.model
        return layer_parameters_per_rank(
            model, model.kinds[kind], la.tensor_parallel, la.expert_parallel,
            la.expert_tensor_parallel,
        )  # fmt: skip

    @cached_property
    def ends(self) -> tuple[Cost, Cost]:
        """The embedding's cost and the head's."""
        return (
            self.pricer.cost(embedding_operations(self.site)),
            self.pricer.cost(head_operations(self.site)),
        )

    @cached_property
    def stage_costs(self) -> tuple[Cost, ...]:
        """The cost of each virtual stage and micro-batch."""
        costs = []
        for index, counts in enumerate(self.stage_counts):
            cost = NOTHING
            for (kind, mode), count in counts.items():
                cost = cost + self.layer_cost(kind, mode) * count
            if index == 0:
                cost = cost + self.ends[0]
            if index == len(self.stage_counts) - 1:
                cost = cost + self.ends[1]
            costs.append(cost)
        return tuple(costs)

    @cached_property
    def stage_counts(self) -> tuple[dict[tuple[int, str], int], ...]:
        """How many layers of (kind, recompute mode) each virtual stage holds, in model order.

        The first layers of a stage recompute fully, the next selectively, the rest not at all.
        """
        pattern, position, stages = self.setting.model.pattern, 0, []
        for stage in self.layout.stages:
            counts: dict[tuple[int, str], int] = {}
            for offset in range(stage.layers):
                full, selective = stage.full_layers, stage.selective_layers
                mode = MODES[2 if offset < full else 1 if offset < full + selective else 0]
                key = (pattern[position + offset], mode)
                counts[key] = counts.get(key, 0) + 1
            position += stage.layers
            stages.append(counts)
        return tuple(stages)

    @cached_property
    def stage_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each virtual stage on one rank."""
        model, la = self.setting.model, self.layout
        tp, last = la.tensor_parallel, len(self.layout.stages) - 1
        result = []
        for index, counts in enumerate(self.stage_counts):
            total = RankParameters(dense=0.0)
            for (kind, _), count in counts.items():
                layer = self.layer_parameters(kind)
                total += RankParameters(dense=layer.dense * count, expert=layer.expert * count)
            if index == 0:
                total += RankParameters(dense=embedding_parameters_per_rank(model, tp))
            if index == last:
                alone = model.tied and self.shares_table
                head = (
                    final_norm_parameters(model) if alone else head_parameters_per_rank(model, tp)
                )
                total += RankParameters(dense=head)
                ep, etp = la.expert_parallel, la.expert_tensor_parallel
                total += mtp_parameters_per_rank(model, tp, ep, etp)
            result.append(total)
        return tuple(result)

    @cached_property
    def rank_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each pipeline rank."""
        totals = [RankParameters(dense=0.0)] * self.layout.pipeline_parallel
        for index, parameters in enumerate(self.stage_parameters):
            totals[self.rank_of(index)] += parameters
        return tuple(totals)

    @property
    def shares_table(self) -> bool:
        """Whether a tied head reads the embedding's own table: on one stage, or on one rank of a
        V-shaped pipeline if the engine keeps one table per rank.
        """
        last = len(self.layout.stages) - 1
        if last == 0:
            return True
        one = self.setting.engine.state.one_table_per_rank
        return one and self.rank_of(0) == self.rank_of(last)

    def rank_of(self, stage: int) -> int:
        """The pipeline rank of a virtual stage."""
        return rank_of_chunk(self.layout.schedule, self.layout.pipeline_parallel, stage)

    @property
    def neighbour_stride(self) -> int:
        """Ranks between two neighbours of the pipeline, the outermost axis unless the engine
        differs.
        """
        order, la = self.setting.engine.legality.rank_order, self.layout
        inner = order[: order.index("pp")]
        degrees = {
            "tp": la.tensor_parallel, "cp": la.context_parallel, "dp": la.data_parallel, "ep": 1,
        }  # fmt: skip
        return math.prod(degrees[axis] for axis in inner)

    @cached_property
    def hop_s(self) -> float:
        """Seconds to hand a micro-batch's activation to the next pipeline rank."""
        la, cluster = self.layout, self.setting.cluster
        if la.pipeline_parallel == 1:
            return 0.0
        size = 2.0 * self.site.shard.tokens_outside * self.setting.model.hidden
        across = self.neighbour_stride >= cluster.gpus_per_node
        return (
            float(send_s(cluster, size, across_nodes=across)) * self.setting.tuning.collective_scale
        )

    @cached_property
    def total_cost(self) -> Cost:
        """All layers and both ends on all ranks, for the whole step (its seconds add up over
        ranks).
        """
        la, total = self.layout, NOTHING
        for cost in self.stage_costs:
            total = total + cost
        return total * (self.m * la.data_parallel * la.context_parallel * la.tensor_parallel)
