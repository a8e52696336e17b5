"""The stages of one layout: what each costs for a micro-batch, and the parameters that it holds.

`StageModel` lists the operations of each layer kind and of the two ends once and prices them;
`step_time` plays the schedule over its stages, `step_memory` adds up what its ranks hold.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from costmodels.blocks import input_bytes, layer_operations
from costmodels.collectives import send_s
from costmodels.compute import Device
from costmodels.elementwise import Number, where
from costmodels.ends import embedding_operations, head_operations, module_operations
from costmodels.feed_forward import Site
from costmodels.host import HostTraffic, copies_of_gradients, host_of, offloads, seen_s
from costmodels.in_flight import rank_of_chunk
from costmodels.layer import NOTHING, Cost, Pass, Pricer, exposed_s
from costmodels.layout import Layout, RecomputeModule
from costmodels.model import Model
from costmodels.operations import Operation
from costmodels.params import (
    RankParameters,
    embedding_parameters_per_rank,
    final_norm_parameters,
    head_parameters_per_rank,
    layer_parameters_per_rank,
    mtp_parameters_per_rank,
)
from costmodels.placement import axis_group, hides_with_chunks, place, shard_group
from costmodels.precision import RECIPES
from costmodels.shard import shard_of
from costmodels.training import Training
from costmodels.weight_traffic import weight_traffic
from hardware_profiles.engine_schema import Engine
from hardware_profiles.schema import Cluster
from hardware_profiles.tunings import Tuning

MODES = ("none", "selective", "full")
ZERO_2 = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What a layout is priced against."""

    model: Model
    training: Training
    cluster: Cluster
    engine: Engine
    tuning: Tuning


def gradient_bytes(engine: Engine, itemsize: float) -> float:
    """Read and written for each number of a weight's gradient when its product is there."""
    state = engine.state
    moved = {
        "fused": 0.0,
        "added": itemsize + 2 * state.gradient_bytes,
        "copied": itemsize + state.reduce_bytes,
    }
    return moved[engine.kernels.gradient_add]


class StageModel:
    """The costs and parameters of the stages of one layout in one setting, computed once."""

    def __init__(self, setting: Setting, layout: Layout) -> None:
        self.setting, self.layout = setting, layout
        model, cluster, engine = setting.model, setting.cluster, setting.engine
        assert cluster.kernels is not None, f"{cluster.name} has no kernel measurements"
        recipe, kernels = RECIPES[setting.training.precision], engine.kernels
        if not recipe.cast_bytes:
            kernels = kernels.model_copy(update={"gathers_cast": False})
        elif kernels.cast_bytes:
            recipe = replace(recipe, cast_bytes=kernels.cast_bytes)
        if setting.training.adapters_only:  # no gradients of the weights for anything to stand for
            kernels = kernels.model_copy(update={"keeps_buffers": False})
        device = Device(
            cluster.gpu,
            cluster.kernels,
            setting.tuning,
            recipe,
            engine.kernels.attention,
        )
        shard = shard_of(layout, setting.training)
        self.site = Site(model, shard, kernels, recipe.itemsize)
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
            engine.kernels.adapts_all,
            self._expert_overlap(),
            (shard_group(layout, order, g).nodes > 1) * 1.0,
            gradient_bytes(engine, recipe.itemsize),
        )
        scale, frozen = setting.tuning.collective_scale, setting.training.adapters_only
        self.traffic = weight_traffic(layout, cluster, engine, scale, frozen=frozen)
        self.sharding = self.traffic.sharding
        self._layers: dict[int, tuple[Operation, ...]] = {}
        self._saved_bytes: dict[tuple[int, str], Number] = {}
        self.host = (
            HostTraffic(layout, host_of(cluster), self.traffic) if offloads(layout) else None
        )
        self._costs: dict[tuple[int, str], Cost] = {}

    def _expert_overlap(self) -> Number:
        """Fraction of an exchange between experts that may be hidden."""
        overlap, la = self.setting.engine.overlap, self.layout
        more = hides_with_chunks(la, overlap, self.setting.cluster.gpus_per_node)
        return where((la.virtual_stages > 1) & more, overlap.expert_interleaved, overlap.expert)

    @cached_property
    def m(self) -> int:
        """Micro-batches per replica and step."""
        return self.layout.num_micro_batches(self.setting.training)

    def layer_cost(self, kind: int, mode: str) -> Cost:
        """One layer of `kind` under recompute `mode`, with what its weights send meanwhile."""
        if (kind, mode) not in self._costs:
            plain, parameters = self._plain_cost(kind, mode), self.layer_parameters(kind)
            cost = self._with_traffic(parameters, plain, again=True)
            self._costs[kind, mode] = self._with_copies(parameters, cost, plain.saved_bytes)
        return self._costs[kind, mode]

    def _plain_cost(self, kind: int, mode: str) -> Cost:
        if mode == "full":
            return self.pricer.full_cost(self._operations(kind), input_bytes(self.site))
        return self.pricer.cost(self._operations(kind), self._replayed(mode))

    def layer_saved_bytes(self, kind: int, mode: str) -> Number:
        """What `layer_cost` keeps for the backward, without its seconds."""
        if (kind, mode) not in self._saved_bytes:
            self._saved_bytes[kind, mode] = (
                input_bytes(self.site)
                if mode == "full"
                else self.pricer.saved_bytes(self._operations(kind), self._replayed(mode))
            )
        return self._saved_bytes[kind, mode]

    @cached_property
    def stage_saved_bytes(self) -> tuple[float, ...]:
        """What each virtual stage keeps of a micro-batch, as in `stage_costs`."""
        saved = [
            sum(float(self.layer_saved_bytes(*key)) * count for key, count in counts.items())
            for counts in self.stage_counts
        ]
        for operations, stage in zip(self._end_operations, self.stage_of_end, strict=True):
            saved[stage] += float(self.pricer.saved_bytes(operations))
        return tuple(saved)

    def _operations(self, kind: int) -> tuple[Operation, ...]:
        if kind not in self._layers:
            self._layers[kind] = layer_operations(self.site, self.setting.model.kinds[kind])
        return self._layers[kind]

    def _replayed(self, mode: str) -> tuple[RecomputeModule, ...]:
        return self.layout.selective_modules if mode == "selective" else ()

    def _with_traffic(self, parameters: RankParameters, cost: Cost, *, again: bool) -> Cost:
        """`cost` and what it does not hide of the traffic of its weights (`weight_traffic`)."""
        if self.layout.zero_stage < ZERO_2:
            return cost
        forward_s = self.traffic.forward_s(parameters)
        backward_s = self.traffic.backward_s(parameters, again=again)
        overlap, tuning = self.setting.engine.overlap, self.setting.tuning
        hides = overlap.weight_gather if self.layout.zero_stage > ZERO_2 else overlap.data_reduce
        seen_f = exposed_s(forward_s, cost.forward.room_s, hides, tuning.interference)
        seen_b = exposed_s(backward_s, cost.backward_room_s, hides, tuning.interference)
        unpacked_s = self.unpacked_s(parameters)
        forward = Pass(data_s=seen_f, pointwise_s=unpacked_s)
        backward = Pass(data_s=seen_b, pointwise_s=unpacked_s if again else 0.0)
        return cost + replace(NOTHING, forward=forward, input_grad=backward)

    def unpacked_s(self, parameters: RankParameters) -> Number:
        """Bringing what one gathering of these weights left in its buffer to where it is used."""
        device = self.pricer.device
        return self.traffic.unpacked_bytes(parameters) / device.moved_bytes_per_s("copy")

    def _with_copies(self, parameters: RankParameters, cost: Cost, saved_bytes: Number) -> Cost:
        """`cost` and what it waits for copies to and from the host (`host`)."""
        if self.host is None:
            return cost
        saved = self.host.activations_s(saved_bytes)
        gradients = copies_of_gradients(self.m) * self.host.gradients_s(parameters)
        forward = Pass(offload_s=seen_s(saved, cost.forward.room_s))
        backward = Pass(offload_s=seen_s(saved + gradients, cost.backward_room_s))
        return cost + replace(NOTHING, forward=forward, input_grad=backward)

    def layer_parameters(self, kind: int) -> RankParameters:
        """Parameters of one layer of `kind` on one rank."""
        la, model = self.layout, self.setting.model
        return layer_parameters_per_rank(
            model, model.kinds[kind], la.tensor_parallel, la.expert_parallel,
            la.expert_tensor_parallel,
        )  # fmt: skip

    @cached_property
    def ends(self) -> tuple[Cost, ...]:
        """The costs of the embedding, of the head and, if there are any, of the multi-token
        prediction modules before it, without the traffic of their weights.
        """
        return tuple(map(self.pricer.cost, self._end_operations))

    @cached_property
    def _end_operations(self) -> tuple[tuple[Operation, ...], ...]:
        plain = embedding_operations(self.site), head_operations(self.site)
        return (*plain, module_operations(self.site)) if self._has_modules else plain

    @property
    def _has_modules(self) -> bool:
        return self.setting.model.mtp_layers > 0

    @cached_property
    def stage_of_end(self) -> tuple[int, ...]:
        """The virtual stage of each of `ends`."""
        last = len(self.layout.stages) - 1
        before = max(last - self.layout.modules_apart, 0)
        return (0, last, before) if self._has_modules else (0, last)

    @cached_property
    def stage_costs(self) -> tuple[Cost, ...]:
        """The cost of each virtual stage and micro-batch."""
        known: dict[tuple[object, ...], Cost] = {}
        costs = []
        for index, counts in enumerate(self.stage_counts):
            ends = [end for end, stage in enumerate(self.stage_of_end) if stage == index]
            holds = (*counts.items(), *ends)
            if holds not in known:
                known[holds] = self._stage_cost(counts, ends)
            costs.append(known[holds])
        return tuple(costs)

    def _stage_cost(self, counts: dict[tuple[int, str], int], ends: list[int]) -> Cost:
        cost = NOTHING
        for (kind, mode), count in counts.items():
            cost = cost + self.layer_cost(kind, mode) * count
        for part in ([end for end in ends if end == 0], [end for end in ends if end > 0]):
            if part:
                cost = cost + self.ends_cost(part)
        return cost

    @cached_property
    def rank_costs(self) -> tuple[Cost, ...]:
        """The cost of each pipeline rank and micro-batch, all its stages together."""
        known: dict[tuple[Cost, ...], Cost] = {}
        totals = []
        for rank in self.stages_of_rank:
            held = tuple(self.stage_costs[index] for index in rank)
            if held not in known:
                known[held] = sum(held, start=NOTHING)
            totals.append(known[held])
        return tuple(totals)

    @cached_property
    def stages_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """The virtual stages that each pipeline rank holds."""
        la = self.layout
        held: list[list[int]] = [[] for _ in range(la.pipeline_parallel)]
        for index in range(len(la.stages)):
            held[self.rank_of(index)].append(index)
        return tuple(map(tuple, held))

    def ends_cost(self, ends: list[int]) -> Cost:
        """Some of `ends` together, with what their weights send meanwhile."""
        plain, parameters = NOTHING, RankParameters(dense=0.0)
        for end in ends:
            plain, parameters = plain + self.ends[end], parameters + self.end_parameters[end]
        cost = self._with_traffic(parameters, plain, again=False)
        return self._with_copies(parameters, cost, 0.0)

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
        result = []
        for counts in self.stage_counts:
            total = RankParameters(dense=0.0)
            for (kind, _), count in counts.items():
                layer = self.layer_parameters(kind)
                total += RankParameters(dense=layer.dense * count, expert=layer.expert * count)
            result.append(total)
        for end, stage in enumerate(self.stage_of_end):
            result[stage] += self.end_parameters[end]
        return tuple(result)

    @cached_property
    def end_parameters(self) -> tuple[RankParameters, RankParameters, RankParameters]:
        """Parameters of the embedding, of the head and of multi-token prediction."""
        model, la = self.setting.model, self.layout
        tp, ep, etp = la.tensor_parallel, la.expert_parallel, la.expert_tensor_parallel
        alone = model.tied and self.shares_table
        head = final_norm_parameters(model) if alone else head_parameters_per_rank(model, tp)
        return (
            RankParameters(dense=embedding_parameters_per_rank(model, tp)),
            RankParameters(dense=head),
            mtp_parameters_per_rank(model, tp, ep, etp),
        )

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

    @property
    def boundary_s(self) -> Number:
        """Seconds that each crossing of a pipeline boundary waits beside the transfer."""
        waits = self.setting.engine.overlap.waits_at_boundaries
        return self.setting.tuning.boundary_s * waits * self.pricer.crosses_nodes

    @cached_property
    def hop_s(self) -> float:
        """Seconds to hand a micro-batch's activation to the next pipeline rank."""
        la, cluster = self.layout, self.setting.cluster
        if la.pipeline_parallel == 1:
            return 0.0
        size = self.site.itemsize * self.site.shard.tokens_outside * self.setting.model.hidden
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
