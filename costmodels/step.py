"""One training step of one layout: where all costs meet.

`StepModel` lists the operations of each layer kind and of the ends once, prices them, and answers with the
step's time (`time`), by playing its schedule, and the peak memory of each pipeline rank (`memory`).

    step    = makespan of the pipeline (last rank done, gradients reduced) + update + fixed
    gradients: reduced behind the backward of the last micro-batch, as far as the engine overlaps;
               a rank that is done before the last one has that time too
    update  = bytes of gradients, master weights and moments of this rank / bandwidth, and the gathering of
               updated weights under ZeRO-1 and 2

Source: schedules as in `schedule`, overlap as in `layer`. Leaves out: data loading, checkpoints, evaluation.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property

from costmodels.blocks import input_bytes, layer_operations
from costmodels.collectives import collective_s, send_s
from costmodels.compute import Device
from costmodels.elementwise import minimum
from costmodels.ends import embedding_operations, head_operations, logits_bytes
from costmodels.feed_forward import Site
from costmodels.in_flight import in_flight, rank_of_chunk
from costmodels.layer import NOTHING, Cost, Pass, Pricer, exposed_s
from costmodels.layout import Layout
from costmodels.memory import (
    Memory,
    Sharding,
    activation_peak,
    gathered_bytes,
    state_memory,
    update_bytes,
)
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
from costmodels.schedule import Work, end_s
from costmodels.shard import shard_of
from costmodels.training import Training
from hardware_profiles.engine_schema import Engine
from hardware_profiles.schema import Cluster
from hardware_profiles.tunings import Tuning

FROZEN = {"gradient_bytes": 0.0, "master_bytes": 0.0, "moment_bytes": 0.0, "bucket_bytes": 0.0}
UPDATE_BYTES = {"adamw": 28.0, "adamw8bit": 16.0, "muon": 40.0, "sgd": 16.0}
CONTEXT_BYTES = 1.5 * 2**30  # Ultra-Scale Playbook: CUDA kernels and context take 1-2 GB
MODES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step by cause; `step_time_s` is their sum.

    compute_s       the busiest pipeline rank computing, recompute included
    tensor_s ... data_s, send_s   exposed communication of that rank
    bubble_s        that rank waiting for the others
    optimizer_s     update of the weights; fixed_s once per step
    """

    compute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    data_s: float
    send_s: float
    bubble_s: float
    optimizer_s: float
    fixed_s: float

    @property
    def step_time_s(self) -> float:
        """All of it."""
        return float(sum(getattr(self, f.name) for f in fields(self)))

    @property
    def exposed_comm_s(self) -> float:
        """Communication that is not hidden."""
        return self.tensor_s + self.context_s + self.expert_s + self.data_s + self.send_s


@dataclass(frozen=True, slots=True)
class Setting:
    """What a layout is priced against."""

    model: Model
    training: Training
    cluster: Cluster
    engine: Engine
    tuning: Tuning


class StepModel:
    """The costs of one layout in one setting, computed once and asked often."""

    def __init__(self, setting: Setting, layout: Layout) -> None:
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
        self.pricer = Pricer(device, cluster, engine.overlap, groups, crosses * 1.0,
            engine.kernels.dispatch == "deduplicated", setting.training.adapters_only)
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
        forward = self._collective("all_gather", self.layer_parameters(kind), 2.0)
        backward = forward + self._collective("reduce_scatter", self.layer_parameters(kind), 4.0)
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

    def _collective(self, kind: str, parameters: RankParameters, bytes_each: float) -> float:
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
                alone = model.tied and last == 0
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
            totals[self._rank_of(index)] += parameters
        return tuple(totals)

    def _rank_of(self, stage: int) -> int:
        return rank_of_chunk(self.layout.schedule, self.layout.pipeline_parallel, stage)

    @property
    def neighbour_stride(self) -> int:
        """Ranks between two neighbours of the pipeline, the outermost axis unless the engine differs."""
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
    def work(self) -> Work:
        """The schedule's actions in seconds."""
        tuning, shown = self.setting.tuning, 1.0 - self.setting.engine.overlap.pipeline
        pipelined = self.layout.pipeline_parallel > 1
        waits = tuning.boundary_s * self.pricer.crosses_nodes
        blocking = (shown * self.hop_s + waits) if pipelined else 0.0
        extra = blocking + tuning.micro_batch_s / 2 / self.layout.virtual_stages
        return Work(
            tuple(float(c.forward.total_s) + extra for c in self.stage_costs),
            tuple(float(c.replay.total_s + c.input_grad.total_s) + extra for c in self.stage_costs),
            tuple(float(c.weight_grad.total_s) for c in self.stage_costs),
            self.hop_s - shown * self.hop_s,
        )

    def time(self) -> StepTime:
        """Seconds of one step, by cause."""
        la = self.layout
        ends = end_s(la.schedule, la.pipeline_parallel, la.virtual_stages, self.m, self.work)
        reduced = [end + self.reduce_s(rank) for rank, end in enumerate(ends)]
        busy = [self._busy(rank) for rank in range(la.pipeline_parallel)]
        worst = max(range(len(busy)), key=lambda rank: busy[rank].total_s)
        makespan, work = max(reduced), busy[worst]
        crossings = la.virtual_stages if la.pipeline_parallel > 1 else 0
        send = 2 * crossings * self.m * (1 - self.setting.engine.overlap.pipeline) * self.hop_s
        overhead = self.m * self.setting.tuning.micro_batch_s
        waits = self.setting.tuning.boundary_s * self.pricer.crosses_nodes
        overhead += 2 * crossings * self.m * waits
        data = self.m * work.data_s + self.reduce_s(worst)
        update = max(self.update_s(rank) for rank in range(la.pipeline_parallel))
        known = self.m * (work.total_s - work.data_s) + data + send + overhead
        return StepTime(
            compute_s=self.m * work.compute_s + overhead,
            tensor_s=self.m * work.tensor_s,
            context_s=self.m * work.context_s,
            expert_s=self.m * work.expert_s,
            data_s=data,
            send_s=send,
            bubble_s=makespan - known,
            optimizer_s=update,
            fixed_s=self.setting.tuning.step_s,
        )

    def _busy(self, rank: int) -> Pass:
        """One micro-batch's work of a pipeline rank, all its stages and directions together."""
        total = Pass()
        for index, cost in enumerate(self.stage_costs):
            if self._rank_of(index) == rank:
                total = total + cost.forward + cost.input_grad + cost.weight_grad + cost.replay
        return total

    def reduce_s(self, rank: int) -> float:
        """Exposed gradient communication after the rank's last backward."""
        if self.layout.zero_stage >= 3 or self.setting.training.adapters_only:
            return 0.0
        engine, tuning = self.setting.engine, self.setting.tuning
        kind = "all_reduce" if self.layout.zero_stage == 0 else "reduce_scatter"
        whole = self._collective(kind, self.rank_parameters[rank], engine.state.reduce_bytes)
        room = sum(
            float(cost.input_grad.compute_s + cost.weight_grad.compute_s + cost.replay.compute_s)
            for index, cost in enumerate(self.stage_costs)
            if self._rank_of(index) == rank
        )
        return float(exposed_s(whole, room, engine.overlap.data_reduce, tuning.interference))

    def update_s(self, rank: int) -> float:
        """The optimizer step of a rank, and the gathering of what it updated."""
        if self.setting.training.adapters_only:
            return 0.0
        device, la = self.pricer.device, self.layout
        parameters = self.rank_parameters[rank]
        moved = UPDATE_BYTES[self.setting.training.optimizer]
        sharded = la.zero_stage >= 1
        dense = parameters.dense / (self.dense_group.size if sharded else 1)
        expert = parameters.expert / (self.expert_group.size if sharded else 1)
        update = (dense + expert) * moved / device.bandwidth_bytes_per_s
        if la.zero_stage not in (1, 2):
            return float(update)
        gather = self._collective("all_gather", parameters, self.setting.engine.state.weight_bytes)
        forward = sum(
            float(c.forward.compute_s)
            for i, c in enumerate(self.stage_costs)
            if self._rank_of(i) == rank
        )
        overlap, tuning = self.setting.engine.overlap.weight_gather, self.setting.tuning
        return float(update + exposed_s(gather, forward, overlap, tuning.interference))

    @cached_property
    def total_cost(self) -> Cost:
        """All layers and both ends on all ranks, for the whole step (its seconds add up over ranks)."""
        la, total = self.layout, NOTHING
        for cost in self.stage_costs:
            total = total + cost
        return total * (self.m * la.data_parallel * la.context_parallel * la.tensor_parallel)

    @property
    def context_bytes(self) -> float:
        """Device memory outside the framework's allocator: CUDA context, libraries, communicators."""
        kernels = self.setting.cluster.kernels
        assert kernels is not None
        return kernels.context_bytes or CONTEXT_BYTES

    def slack_bytes(self, memory: Memory) -> float:
        """What the caching allocator reserves beyond `memory` [fitted]."""
        tuning = self.setting.tuning
        working = memory.activations + memory.transient
        return float(
            memory.states * tuning.state_slack_fraction
            + working * tuning.activation_slack_fraction
            + tuning.memory_bytes
        )

    @property
    def held_bytes(self) -> float:
        """What the allocator holds back for the communication stream, and gives back when pressed."""
        tuning, la = self.setting.tuning, self.layout
        pairs = tuning.held_gathers if la.pipeline_parallel == 1 else tuning.held_gathers_pipelined
        return float(2 * self.site.gathered_bytes * pairs) if la.tensor_parallel > 1 else 0.0

    def reserved_bytes(self, memory: Memory) -> float:
        """The allocator's peak with `memory`: never more than the device has but for what is in use."""
        needed = float(memory.allocated) + self.slack_bytes(memory)
        capacity = self.setting.cluster.gpu.memory_bytes - self.context_bytes
        return max(needed, min(needed + self.held_bytes, capacity))

    @cached_property
    def sharding(self) -> Sharding:
        """How ZeRO divides this layout's states."""
        la = self.layout
        ranks = float(la.shard_group or self.dense_group.size)
        return Sharding(
            zero_stage=la.zero_stage, dense_ranks=ranks,
            expert_ranks=minimum(self.expert_group.size, ranks),
            pipelined=la.pipeline_parallel > 1,
        )  # fmt: skip

    def memory(self) -> tuple[Memory, ...]:
        """Peak of each pipeline rank, by category."""
        return tuple(self._rank_memory(rank) for rank in range(self.layout.pipeline_parallel))

    def _rank_memory(self, rank: int) -> Memory:
        la, state = self.layout, self.setting.engine.state
        chunks = [i for i in range(len(la.stages)) if self._rank_of(i) == rank]
        vectors = in_flight(la.schedule, la.pipeline_parallel, la.virtual_stages, self.m)[rank]
        held = activation_peak(vectors, [float(self.stage_costs[i].saved_bytes) for i in chunks])
        if self.setting.training.adapters_only:
            state = state.model_copy(update=FROZEN)
        states = state_memory(state, self.rank_parameters[rank], self.sharding)
        working = self._transient(chunks)
        update = float(update_bytes(state, self.rank_parameters[rank].dense, self.sharding))
        if update > held + working:
            return states + Memory(transient=update)
        return states + Memory(activations=held, transient=working)

    def _transient(self, chunks: list[int]) -> float:
        """Logits on the last rank, a replayed layer's activations, ZeRO-3's gathered layers."""
        state, last = self.setting.engine.state, len(self.layout.stages) - 1
        kinds = {kind for i in chunks for kind, _ in self.stage_counts[i]}
        replayed = {key for i in chunks for key in self.stage_counts[i] if key[1] != "none"}
        working = max((self._replay_bytes(*key) for key in replayed), default=0.0)
        gathered = max((self._gathered(kind) for kind in kinds), default=0.0)
        if last not in chunks:
            return working + 2 * gathered
        alone = self.setting.model.tied and last == 0
        ends = float(
            gathered_bytes(state, 0.0 if alone else self.stage_parameters[last].dense
                           - sum(self.layer_parameters(k).dense * n
                                 for (k, _), n in self.stage_counts[last].items()), self.sharding)
        )  # fmt: skip
        return max(float(logits_bytes(self.site)), working) + 2 * gathered + ends

    def _replay_bytes(self, kind: int, mode: str) -> float:
        """What a replayed layer holds beyond what it kept."""
        whole = self.layer_cost(kind, "none").saved_bytes
        return float(whole - self.layer_cost(kind, mode).saved_bytes)

    def _gathered(self, kind: int) -> float:
        parameters = self.layer_parameters(kind)
        return float(
            gathered_bytes(
                self.setting.engine.state, parameters.dense + parameters.expert, self.sharding
            )
        )
