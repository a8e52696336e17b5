"""One rank of a layout, or of each layout of a grid: what it computes and sends, and its weights.

Everything here holds for any number of layers on a stage: the costs of one layer of each kind and
of the two ends, the parameters that they have, what the traffic of these weights takes beside the
passes of a micro-batch and once per step. The parameters are counted in `ranks.parameters`, what
else it holds in `ranks.memory`, its ways to the ranks beside it in the pipeline in
`ranks.pipeline_hops`. `StageModel` adds it up for the stages of one layout, `price` looks it up for
many.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Self

from meshplan.costmodels.elementwise import Number, anywhere, where
from meshplan.costmodels.layout import Layout, Mode, RecomputeModule
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.memory.backward_peak import gradients_alive
from meshplan.costmodels.memory.kept_buffers import stand_in_bytes
from meshplan.costmodels.memory.outliving import held_gradients_bytes, returned_bytes
from meshplan.costmodels.memory.states import (
    Frozen,
    Memory,
    frozen_weights,
    kept_state,
    state_memory,
)
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.operations.embedding_head import (
    embedding_operations,
    head_operations,
    module_operations,
)
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Operation
from meshplan.costmodels.operations.layers import input_bytes, layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.operations.remade import remade_bytes
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.ranks.beside import ZERO_2, Sent
from meshplan.costmodels.ranks.first_stage import tower_cost
from meshplan.costmodels.ranks.parameters import parameters_of_ends, parameters_of_layer
from meshplan.costmodels.ranks.pipeline_hops import Hops
from meshplan.costmodels.seconds.cost import Cost
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.process_groups import (
    Group,
    hidden_exchange,
    layer_groups,
    shard_group,
)
from meshplan.costmodels.seconds.sharding_hooks import hooks_of
from meshplan.costmodels.setting import Setting, gradient_bytes, kernels_of, weight_gradient_bytes
from meshplan.costmodels.weights.offload import HostTraffic, host_of, offloads
from meshplan.costmodels.weights.traffic import WeightTraffic, weight_traffic
from meshplan.costmodels.weights.update import moved_of, on_device_s
from meshplan.hardware_profiles.engine_schema import State


class Rank:
    """One rank under `layout`, or an array of them under each layout of a grid."""

    layout: Layout | Layouts
    LISTED: tuple[str, ...] = ("site", "groups", "end_operations", "end_parameters")
    """What depends neither on tuning nor on overlap."""

    def __init__(self, setting: Setting, layout: Layout | Layouts) -> None:
        self.setting, self.layout = setting, layout
        self._operations: dict[int, tuple[Operation, ...]] = {}
        self._costs: dict[tuple[int, Mode], Cost] = {}
        self._saved: dict[tuple[int, Mode], Number] = {}
        self._parameters: dict[int, RankParameters] = {}
        self._stand_ins: dict[tuple[tuple[int, ...], bool], Number] = {}

    def with_figures(self, setting: Setting) -> Self:
        """The same rank under a `setting` that differs in tuning and overlap alone: what it
        computes, sends and holds is listed once for both.
        """
        other = type(self)(setting, self.layout)
        other._operations, other._parameters = self._operations, self._parameters
        vars(other).update({name: getattr(self, name) for name in self.LISTED})
        return other

    def _of_each_rank(self) -> dict[str, object]:
        """All that was computed here, which no stage of the layout changes."""
        names = {name for name, known in vars(Rank).items() if isinstance(known, cached_property)}
        names |= {"_operations", "_costs", "_saved", "_parameters", "_stand_ins"}
        return {name: known for name, known in vars(self).items() if name in names}

    @cached_property
    def site(self) -> Site:
        """Its share of the tokens and the matrices, and the engine's kernels."""
        setting, recipe = self.setting, RECIPES[self.setting.training.precision]
        kernels, shard = kernels_of(setting), shard_of(self.layout, setting.training)
        cp, ep = (self.groups[axis].ranks_per_node for axis in ("cp", "ep"))
        return Site(setting.model, shard, kernels, recipe.itemsize, cp, ep, recipe.experts_alone)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """The process groups of a layer's collectives."""
        order = self.setting.engine.legality.rank_order
        return layer_groups(self.layout, order, self.setting.cluster.gpus_per_node)

    @cached_property
    def hops(self) -> Hops:
        """The transfers to the ranks before and after it in the pipeline."""
        tokens = self.site.itemsize * self.site.shard.tokens_outside
        return Hops(self.setting, self.layout, tokens * self.setting.model.sent_width)

    @cached_property
    def device(self) -> Device:
        """The accelerator under this training's number formats."""
        setting, cluster = self.setting, self.setting.cluster
        recipe, kernels = RECIPES[setting.training.precision], setting.engine.kernels
        assert cluster.kernels is not None, f"{cluster.name} has no kernel measurements"
        if recipe.cast_bytes and kernels.cast_bytes:
            recipe = replace(recipe, cast_bytes=kernels.cast_bytes)
        if kernels.saves_16_bits and recipe.listed:
            recipe = replace(recipe, saved_fraction=1.0)
        held = kernels.communication_units * any(kind.experts for kind in setting.model.kinds)
        return Device(
            cluster.gpu.without_units(held),
            cluster.kernels,
            setting.tuning,
            recipe,
            attention=kernels.attention,
            permutes_by_index=kernels.permutes_by_index,
            uses_sdpa=kernels.uses_sdpa,
            sums_in_16_bits=kernels.sums_in_16_bits,
            sums_by_index=kernels.sums_by_index,
            uses_grouped_mm=kernels.uses_grouped_mm,
            weight_gradient_bytes=weight_gradient_bytes(setting.engine),
            sdpa_by_assembly=kernels.sdpa_by_assembly,
            pads_products=kernels.pads_products,
            loops_over_experts=kernels.loops_over_experts,
            kernel_order=kernels.kernel_order,
        )

    @cached_property
    def pricer(self) -> Pricer:
        """What turns operations into costs."""
        setting, cluster, engine = self.setting, self.setting.cluster, self.setting.engine
        order, g, la = engine.legality.rank_order, cluster.gpus_per_node, self.layout
        kernels = engine.kernels
        return Pricer(
            self.device,
            cluster,
            self.groups,
            crosses_nodes=self.hops.crosses_nodes,
            lora=setting.training.lora,
            gradient_bytes=gradient_bytes(engine, self.site.itemsize),
            graphed=kernels.graphed,
            products_apart=kernels.products_apart,
            fixed_capacity=kernels.fixed_capacity,
            launch_share=kernels.launch_share,
            product_share=kernels.product_share,
            adapter_casts=kernels.adapter_casts,
            dtensor=kernels.dtensor,
            functions_alone=kernels.functions_alone,
            hooks=hooks_of(la.zero_stage * 1.0, kernels.hooked_from),
            overlap=engine.overlap,
            deduplicates=self.site.sends_single_copies,
            packed_bytes=self.packed_bytes,
            expert_overlap=self._expert_overlap,
            weights_leave=(shard_group(la, order, g).nodes > 1) * 1.0,
            drops_unread=kernels.drops_unread_replay,
            keeps_unread=kernels.keeps_listed,
            launches_block=kernels.launches_block,
            checkpoint_hooks=kernels.checkpoint_hooks,
        )

    @property
    def _expert_overlap(self) -> Number:
        """Fraction of an exchange between experts that may be hidden."""
        setting, la = self.setting, self.layout
        one, several = hidden_exchange(la, setting.engine.overlap, setting.cluster.gpus_per_node)
        return where(la.virtual_stages > 1, several, one)

    # Computing: a layer, and the ends.

    def operations(self, kind: int) -> tuple[Operation, ...]:
        """What one layer of `kind` computes and sends."""
        if self.is_modules(kind):
            return self.end_operations[2]
        if kind not in self._operations:
            self._operations[kind] = layer_operations(self.site, self.setting.model.kinds[kind])
        return self._operations[kind]

    def is_modules(self, kind: int) -> bool:
        """Whether this part of the stack is modules of multi-token prediction, which nothing
        replays.
        """
        return kind == len(self.setting.model.kinds)

    def _replayed(self, mode: Mode) -> tuple[RecomputeModule, ...]:
        """The modules that a layer under `mode` replays, where it does not replay all."""
        if mode == "selective":
            assert isinstance(self.layout, Layout), "of many layouts the modules say it"
            return self.layout.selective_modules
        return () if isinstance(mode, str) else mode

    def plain_cost(self, kind: int, mode: Mode) -> Cost:
        """One layer of `kind` under recompute `mode`, without the traffic of its weights."""
        if self.is_modules(kind):
            return self.ends[2]
        if (kind, mode) not in self._costs:
            operations, saved_bytes = self.operations(kind), self.layer_saved_bytes(kind, mode)
            if mode == "none":
                self._costs[kind, mode] = self.pricer.cost(operations)
            else:
                again = None if mode == "full" else self._replayed(mode)
                plain = self.plain_cost(kind, "none")
                cost = self.pricer.replaying(plain, operations, again, saved_bytes)
                self._costs[kind, mode] = cost
        return self._costs[kind, mode]

    def run_forward(self, kind: int, mode: Mode) -> Sequence[Operation]:
        """What a replay under `mode` runs; the forward pass where nothing, or all, runs again."""
        operations = self.operations(kind)
        if self.is_modules(kind) or mode in ("none", "full"):
            return operations
        return self.pricer.run_again(operations, self._replayed(mode))

    def layer_saved_bytes(self, kind: int, mode: Mode) -> Number:
        """What a layer keeps of a micro-batch for its backward."""
        if self.is_modules(kind):
            mode = "none"
        if (kind, mode) not in self._saved:
            saved = self.pricer.saved_bytes(self.operations(kind), self._replayed(mode))
            kept = input_bytes(self.site) if mode == "full" else saved
            self._saved[kind, mode] = kept + self.returned_keys_bytes(kind, mode)
        return self._saved[kind, mode]

    def returned_keys_bytes(self, kind: int, mode: Mode) -> Number:
        """Of a layer's keys and values what outputs hold beyond what it keeps (`outliving`)."""
        kinds = self.setting.model.kinds  # modules, which come after them, return nothing
        return returned_bytes(self.site, kinds[kind].attention, mode) if kind < len(kinds) else 0.0

    def replay_bytes(self, kind: int, mode: Mode) -> Number:
        """What a replayed layer holds beyond what it kept."""
        kept = self.layer_saved_bytes(kind, mode) - self.returned_keys_bytes(kind, mode)
        return self.layer_saved_bytes(kind, "none") - self.returned_keys_bytes(kind, "none") - kept

    def working_bytes(self, kind: int, mode: Mode) -> Number:
        """What a layer holds in its backward pass beyond what it kept: what it made again
        (`operations.remade` too), and where the engine counts them the gradients that are there at
        their most.
        """
        again = self.replay_bytes(kind, mode) + remade_bytes(self.operations(kind))
        if self.is_modules(kind) or not self.setting.engine.kernels.counts_gradients:
            return again
        again = again + gradients_alive(self.site, self.setting.model.kinds[kind])
        if mode != "full" or self.setting.training.lora is None:
            return again
        layers = len(self.setting.model.pattern) / self.layout.pipeline_parallel
        return again + held_gradients_bytes(self.site, self.layout.zero_stage >= 2, layers)

    @cached_property
    def ends(self) -> tuple[Cost, ...]:
        """The costs of the embedding (and of the tower), of the head, and of multi-token
        prediction, if there are any, without the traffic of their weights.
        """
        embedding, *head = map(self.pricer.cost, self.end_operations)
        return embedding + tower_cost(self.site, self.pricer, self.setting), *head

    @cached_property
    def end_operations(self) -> tuple[tuple[Operation, ...], ...]:
        """What each of `ends` computes and sends, the tower apart."""
        plain = embedding_operations(self.site), head_operations(self.site)
        return (*plain, module_operations(self.site)) if self.has_modules else plain

    @property
    def has_modules(self) -> bool:
        """Whether the model predicts several tokens."""
        return self.setting.model.mtp_layers > 0

    def stand_in_bytes(self, kinds: Iterable[int], *, with_modules: bool) -> Number:
        """Bytes of stand-in gradients of layers of `kinds`, and of prediction modules."""
        key = tuple(kinds), with_modules
        if key not in self._stand_ins:
            operations = [op for kind in key[0] for op in self.operations(kind)]
            operations += self.end_operations[2] if with_modules else ()
            self._stand_ins[key] = stand_in_bytes(self.site, operations)
        return self._stand_ins[key]

    # Weights: how many there are, what is sent of them, and the seconds of that.

    @cached_property
    def traffic(self) -> WeightTraffic:
        """What is sent of the weights and the gradients."""
        s = self.setting
        scale, engine = s.tuning.collective_scale, s.engine
        if s.training.precision == "fp32":  # what is sent is as wide as what is kept
            engine = engine.model_copy(update={"state": self.state})
        return weight_traffic(self.layout, s.cluster, engine, scale, self.frozen, s.training)

    @cached_property
    def host(self) -> HostTraffic | None:
        """Copies to the host and updates on it, None where nothing is kept there."""
        if not offloads(self.layout):
            return None
        return HostTraffic(self.layout, host_of(self.setting.cluster), self.traffic)

    @cached_property
    def state(self) -> State:
        """Bytes per trained parameter that the engine keeps under this training."""
        return kept_state(self.setting.engine.state, self.setting.training)

    @property
    def packed_bytes(self) -> float:
        """Bytes of a quantised frozen number, which is unpacked for each product; 0 without any."""
        lora = self.setting.training.lora
        return self.frozen.quantised if lora and lora.base_precision != "bf16" else 0.0

    @cached_property
    def frozen(self) -> Frozen:
        """Bytes of a parameter that is not trained."""
        return frozen_weights(self.setting.engine.state, self.setting.training)

    def state_memory(self, parameters: RankParameters) -> Memory:
        """Weights, gradients and optimizer state of `parameters`."""
        return state_memory(self.state, parameters, self.traffic.sharding, self.frozen)

    def layer_parameters(self, kind: int) -> RankParameters:
        """Parameters of one layer of `kind`, its adapters among them."""
        if self.is_modules(kind):
            return self.end_parameters[2]
        if kind not in self._parameters:
            layer, listed = self.setting.model.kinds[kind], partial(self.operations, kind)
            own = parameters_of_layer(self.setting, self.layout, layer, listed)
            self._parameters[kind] = own
        return self._parameters[kind]

    @cached_property
    def end_parameters(self) -> tuple[RankParameters, RankParameters, RankParameters]:
        """Parameters of the embedding, of the head and of multi-token prediction."""
        ends = embedding_operations, head_operations
        modules = partial(module_operations, self.site) if self.has_modules else tuple
        listed = [*(partial(end, self.site) for end in ends), modules]
        return parameters_of_ends(self.setting, self.layout, listed)

    def sent(self, parameters: RankParameters, *, again: Number) -> Sent:
        """What these weights send of each micro-batch, gathered `again` so often."""
        gradients_s = self.host.gradients_s(parameters) if self.host else 0.0
        if not anywhere(self.layout.zero_stage >= ZERO_2):
            return Sent(0.0, 0.0, 0.0, 0.0, gradients_s, 0.0)
        traffic = self.traffic
        unpacked_s = traffic.unpacked_bytes(parameters) / self.device.moved_bytes_per_s("copy")
        listed_s = traffic.listed_s(parameters)
        gathering_s = unpacked_s + listed_s + traffic.units_s(parameters)
        return Sent(
            traffic.forward_s(parameters), traffic.backward_s(parameters, again=again),
            gathering_s, again * gathering_s + listed_s, gradients_s,
            traffic.interference_beside(parameters, self.setting.tuning.interference),
        )  # fmt: skip

    def gathered_again(self, kind: int, mode: Mode) -> Number:
        """How often ZeRO-3 gathers the weights of a layer for its backward."""
        replayed = mode == "full" and not self.is_modules(kind)
        return 1.0 + (self.traffic.given_back(self.layer_parameters(kind)) if replayed else 0.0)

    @property
    def reduce_overlap(self) -> Number:
        """Fraction of the gradients' traffic once per step that may run beside a backward."""
        overlap, la = self.setting.engine.overlap, self.layout
        hookless = (la.zero_stage == 0) | (la.pipeline_parallel > 1)
        late = self.traffic.follows_backward | (hookless & overlap.reduces_by_hooks)
        return where(late, 0.0, overlap.data_reduce)

    def optimizer_s(self, parameters: RankParameters) -> Number:
        """The update of this rank's share of `parameters`, where it runs."""
        moved = moved_of(self.setting.training, by_operator=self.site.kernels.updates_by_operator)
        updated, beside = self.traffic.updated(parameters), self.traffic.clipped_beside(parameters)
        on_device = on_device_s(moved, self.device, updated, beside)
        if self.host is None:
            return on_device
        on_host = self.host.update_s(parameters, moved.update_bytes, self.setting.engine.overlap)
        fraction = self.layout.optimizer_offload
        return fraction * on_host + (1 - fraction) * on_device
