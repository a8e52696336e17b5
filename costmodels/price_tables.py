"""The two tables that the rows of a grid are put together from, and how rows look things up.

work      depends on (tp, cp, ep, etp, micro-batch, sequence parallel), on which groups are on
          several nodes, and on whether ranks have several chunks: computing, and the
          communication inside a layer
weights   depends on (tp, dp cp, ep, etp, ZeRO stage, shard group): states, gradients, optimizer

A grid of a million rows has a few thousand different entries in each.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.blocks import input_bytes
from costmodels.elementwise import Number, where
from costmodels.ends import logits_bytes
from costmodels.feed_forward import Site
from costmodels.grid import Grid, Ints, distinct, thousandths
from costmodels.kept_buffers import head_buffer_bytes, stand_in_bytes
from costmodels.layer import NOTHING, Cost
from costmodels.memory import gathered_bytes, state_memory, update_bytes
from costmodels.model import Layer
from costmodels.params import (
    RankParameters,
    embedding_parameters_per_rank,
    final_norm_parameters,
    head_parameters_per_rank,
    mtp_parameters_per_rank,
)
from costmodels.passes import (
    backward_steps,
    left_bytes,
    loss_bytes,
    most_passing_bytes,
    most_put_off_bytes,
)
from costmodels.placement import shard_group
from costmodels.ranks import Ranks
from costmodels.step import Setting, optimizer_s
from costmodels.weight_traffic import WeightTraffic
from hardware_profiles.engine_schema import Axis

Floats = NDArray[np.float64]
MODES = range(3)
Sent = Callable[[WeightTraffic, RankParameters], Number]


class _Table:
    """Columns over the distinct rows of a grid; `of_row` finds each row's entry."""

    def __init__(self, setting: Setting, grid: Grid, key: Sequence[Ints]) -> None:
        first, self.of_row = distinct(key)
        self.grid = grid.take(first)
        self.ranks = Ranks(setting, self.grid)
        self.setting = setting
        self.kinds = range(len(setting.model.kinds))

    def rows(self, value: Number) -> Floats:
        """`value` of every row of the whole grid."""
        return self._column(value)[self.of_row]

    def rows_by_kind(self, value_of: Callable[[int], Number]) -> Floats:
        """(N, K): `value_of` each layer kind."""
        return self._stacked(value_of(kind) for kind in self.kinds)[self.of_row]

    def rows_by_mode(self, value_of: Callable[[int, int], Number]) -> Floats:
        """(N, K, R): `value_of` each layer kind and recompute mode."""
        columns = self._stacked(value_of(kind, mode) for kind in self.kinds for mode in MODES)
        return columns[self.of_row].reshape(-1, len(self.kinds), len(MODES))

    def _stacked(self, values: Iterable[Number]) -> Floats:
        return np.stack([self._column(value) for value in values], axis=1)

    def _column(self, value: Number) -> Floats:
        return np.broadcast_to(np.asarray(value, np.float64), len(self.grid))


class WorkTable(_Table):
    """Seconds and saved bytes of one micro-batch, by layer kind and recompute mode; the ends."""

    def __init__(self, setting: Setting, grid: Grid) -> None:
        stride = math.prod(_inner_degrees(setting, grid, ("pp",)))
        pipelined = grid.pipeline_parallel > 1
        order, per_node = setting.engine.legality.rank_order, setting.cluster.gpus_per_node
        leave = np.broadcast_to(shard_group(grid, order, per_node).nodes > 1, len(grid))
        places = ((stride >= per_node) & pipelined, pipelined, leave, grid.virtual_stages > 1)
        super().__init__(setting, grid, (
            grid.tensor_parallel, grid.context_parallel, grid.expert_parallel,
            grid.expert_tensor_parallel, grid.micro_batch_size, grid.sequence_parallel,
            *(place.astype(np.int64) for place in places),
            thousandths(grid.activation_offload), *_inner_degrees(setting, grid, ("tp", "cp")),
        ))  # fmt: skip
        self.layers = [self.ranks.layer_work(kind) for kind in self.kinds]
        self.embedding, *head = self.ranks.step.ends
        self.head = sum(head, start=NOTHING)
        self.on_host = self.grid.activation_offload

    @property
    def layer_s(self) -> Floats:
        """(N, K, R)."""
        return self.rows_by_mode(lambda kind, mode: self.layers[kind].total_s(mode))

    @property
    def layer_saved_bytes(self) -> Floats:
        """(N, K, R) on the device."""
        stays, kept = 1 - self.on_host, self._kept_bytes
        return self.rows_by_mode(lambda kind, mode: stays * kept(kind, mode))

    @property
    def copies_s(self) -> Floats:
        """(N, K, R) of what a layer saves to the host, one way."""
        host, layers = self.ranks.step.host, self.layers
        if host is None:
            return self.rows_by_mode(lambda kind, mode: 0.0)
        return self.rows_by_mode(
            lambda kind, mode: host.activations_s(layers[kind].saved_bytes[mode])
        )

    @property
    def host_bytes(self) -> Floats:
        """(N, K) the least that a layer saves to the host, of one micro-batch."""
        return self.rows_by_kind(lambda kind: self.on_host * self.layers[kind].saved_bytes[-1])

    @property
    def forward_room_s(self) -> Floats:
        """(N, K) seconds under which the forward's communication of weights may hide."""
        return self.rows_by_kind(lambda kind: self.layers[kind].cost.forward.room_s)

    @property
    def backward_room_s(self) -> Floats:
        """(N, K, R) the same of the backward, replay included."""
        return self.rows_by_mode(lambda kind, mode: self.layers[kind].backward_room_s(mode))

    @property
    def ends_forward_room_s(self) -> Floats:
        """(N, 2) the forward's of the embedding and of the head."""
        ends = (self.embedding, self.head)
        return self._stacked(end.forward.room_s for end in ends)[self.of_row]

    @property
    def ends_backward_room_s(self) -> Floats:
        """(N, 2) the backward's."""
        ends = (self.embedding, self.head)
        return self._stacked(end.backward_room_s for end in ends)[self.of_row]

    @property
    def replay_bytes(self) -> Floats:
        """(N, R) what the largest replayed layer holds beyond what it kept."""
        extra = [
            [
                self._column(self._kept_bytes(kind, 0) - self._kept_bytes(kind, mode))
                for mode in MODES
            ]
            for kind in self.kinds
        ]
        most: Floats = np.max(np.array(extra), axis=0).T[self.of_row]
        return most + self.passing_bytes[:, None]

    @property
    def buffer_bytes(self) -> Floats:
        """(N,) two layers of the largest kind on their way to the host or back."""
        some = self.on_host > 0
        each = [self._column(some * self._kept_bytes(kind, 0)) for kind in self.kinds]
        most: Floats = 2 * np.max(each, axis=0)[self.of_row]
        return most

    @property
    def passing_bytes(self) -> Floats:
        """(N,) the most alive for a moment in a backward pass, where the engine's are counted."""
        if not self.setting.engine.kernels.counts_passes:
            return np.zeros(len(self.of_row))
        return self._most(most_passing_bytes)

    @property
    def put_off_bytes(self) -> Floats:
        """(N,) what is alive beyond that where weight products are put off."""
        if not self.setting.engine.kernels.counts_passes:
            return np.zeros(len(self.of_row))
        return self._most(most_put_off_bytes)

    def _most(self, bytes_of: Callable[[Site, Layer], Number]) -> Floats:
        """(N,) of the layer kind that makes most."""
        site, kinds = self.ranks.step.site, self.setting.model.kinds
        each = [self._column(bytes_of(site, kind)) for kind in kinds]
        most: Floats = np.max(each, axis=0)[self.of_row]
        return self.ranks.working_scale * most

    @property
    def layer_deferred_bytes(self) -> Floats:
        """(N, K) kept from a layer's input gradient to its weight gradient; 0 where the engine's
        passes are not counted, which keeps what it saved.
        """
        if not self.setting.engine.kernels.counts_passes:
            return np.zeros((len(self.of_row), len(self.kinds)))
        site, kinds = self.ranks.step.site, self.setting.model.kinds
        scale = self.ranks.working_scale
        return self.rows_by_kind(
            lambda kind: (
                self._kept_bytes(kind, 0) + scale * left_bytes(backward_steps(site, kinds[kind]))
            )
        )

    @property
    def logits_bytes(self) -> Floats:
        """(N,)."""
        site = self.ranks.step.site
        held = logits_bytes(site)
        if self.setting.engine.kernels.counts_passes:
            held = loss_bytes(site) + 2 * input_bytes(site)  # and two messages of a pipeline
        return self.rows(self.ranks.working_scale * held)

    @property
    def stand_in_bytes(self) -> Floats:
        """(N,) what stands for gradients, on a rank with layers of every kind."""
        held = stand_in_bytes(self.ranks.step.site, self.kinds, with_modules=True)
        return self.rows(self.ranks.working_scale * held)

    @property
    def head_buffer_bytes(self) -> Floats:
        """(N,) what outlives its use on the last stage."""
        return self.rows(self.ranks.working_scale * head_buffer_bytes(self.ranks.step.site))

    def end_saved_bytes(self, end: Cost) -> Floats:
        """(N,) of `embedding` or `head`."""
        return self.rows(self.ranks.working_scale * end.saved_bytes)

    def _kept_bytes(self, kind: int, mode: int) -> Number:
        return self.ranks.working_scale * self.layers[kind].saved_bytes[mode]

    def passes_s(self) -> tuple[Floats, Floats, Floats]:
        """(N,) of one micro-batch in all layers and ends: F, I and W of the zero-bubble papers."""
        pattern = self.setting.model.pattern
        whole = self.embedding + self.head
        for kind, work in enumerate(self.layers):
            whole = whole + work.cost * pattern.count(kind)
        passes = (whole.forward, whole.input_grad, whole.weight_grad)
        forward, input_grad, weight_grad = (self.rows(each.total_s) for each in passes)
        return forward, input_grad, weight_grad

    @property
    def send_s(self) -> Floats:
        """(N,) of both directions of a virtual stage."""
        return self.rows(self.ranks.send_s)


class WeightTable(_Table):
    """What the weights of a layer and of the ends cost once per step, and the memory they take."""

    def __init__(self, setting: Setting, grid: Grid) -> None:
        super().__init__(setting, grid, (
            grid.tensor_parallel, grid.data_parallel * grid.context_parallel,
            grid.expert_parallel, grid.expert_tensor_parallel,
            grid.zero_stage, grid.shard_group, (grid.pipeline_parallel > 1).astype(np.int64),
            thousandths(grid.optimizer_offload),
            *_inner_degrees(setting, grid, ("dp",), but=("tp", "cp")),
        ))  # fmt: skip
        model, tp = setting.model, self.grid.tensor_parallel * 1.0
        self.layers = [self.ranks.layer_parameters(kind) for kind in self.kinds]
        self.embedding = RankParameters(dense=embedding_parameters_per_rank(model, tp))
        self.single = self.grid.pipeline_parallel == 1
        own_head = head_parameters_per_rank(model, tp)
        shared = self.single if model.tied else np.zeros(len(self.grid), dtype=bool)
        head = where(shared, final_norm_parameters(model), own_head)
        degrees = (tp, self.grid.expert_parallel * 1.0, self.grid.expert_tensor_parallel * 1.0)
        self.head = RankParameters(dense=head) + mtp_parameters_per_rank(model, *degrees)
        self.parts = (*self.layers, self.embedding, self.head)
        self.traffic = self.ranks.step.traffic

    @property
    def layer_state_bytes(self) -> Floats:
        """(N, K)."""
        return self.rows_by_kind(lambda kind: self._state_bytes(self.layers[kind]))

    @property
    def layer_waiting_bytes(self) -> Floats:
        """(N, K) gradients that ZeRO-2 and 3 hold whole while weight products are put off."""
        if not self.setting.engine.kernels.counts_passes:
            return np.zeros((len(self.of_row), len(self.kinds)))
        whole = where(self.grid.zero_stage >= 2, 4.0 * self.ranks.working_scale, 0.0)
        return self.rows_by_kind(
            lambda kind: whole * (self.layers[kind].dense + self.layers[kind].expert)
        )

    @property
    def embedding_state_bytes(self) -> Floats:
        """(N,)."""
        alone = self.single & (not self.setting.model.tied)
        gathered = where(alone, self._gathered(self.embedding.dense), 0.0)
        return self.rows(self._state_bytes(self.embedding) + gathered)

    @property
    def head_state_bytes(self) -> Floats:
        """(N,)."""
        tied = self.single & self.setting.model.tied
        gathered = where(tied, 0.0, self._gathered(self.head.dense))
        return self.rows(self._state_bytes(self.head) + gathered)

    @property
    def gathered_bytes(self) -> Floats:
        """(N,) two layers of the largest kind as ZeRO-3 holds them."""
        if self.setting.engine.kernels.counts_passes:
            return self._whole_bytes
        each = [self._gathered(layer.dense + layer.expert) for layer in self.layers]
        return self.rows(2 * np.max([self._column(size) for size in each], axis=0))

    @property
    def _whole_bytes(self) -> Floats:
        """(N,) no less than `pass_memory` finds whole for a moment on any rank: of the two largest
        parts weights under ZeRO-3, gradients from ZeRO-2 and what arrives of them from ZeRO-1.
        """
        sizes = [self._column(part.dense + part.expert) for part in self.parts]
        zero, ranks = self.grid.zero_stage, self.ranks.step.sharding.dense_ranks
        gradient = where(zero >= 2, 8.0, 0.0) + where((zero >= 1) & (ranks > 1), 8.0 / ranks, 0.0)
        whole = gradient + where(zero >= 3, 4.0, 0.0)
        return self.rows(self.ranks.working_scale * whole * np.max(sizes, axis=0))

    def update_bytes(self) -> tuple[Floats, Floats]:
        """(N, K) of each layer and (N, 2) of the ends, held in the optimizer step only."""
        ranks, sharding = self.ranks, self.ranks.step.sharding
        return self._by_part(
            lambda part: ranks.working_scale * update_bytes(ranks.state, part.dense, sharding)
        )

    def update_s(self) -> tuple[Floats, Floats]:
        """(N, K) of each layer and (N, 2) of the ends: the optimizer's own time."""
        return self._by_part(lambda part: optimizer_s(self.ranks.step, part))

    def gradient_copies_s(self) -> tuple[Floats, Floats]:
        """(N, K) and (N, 2) one copy of the gradients to the host, where they are kept there."""
        host = self.ranks.step.host
        return self._by_part(host.gradients_s if host else lambda part: 0.0)

    def host_bytes(self) -> tuple[Floats, Floats]:
        """(N, K) and (N, 2) of the optimizer, on the host."""
        state, sharding = self.ranks.state, self.ranks.step.sharding
        return self._by_part(lambda part: state_memory(state, part, sharding).host)

    @property
    def reduces_beside(self) -> Floats:
        """(N,) 1 where gradients may be sent beside the backward, 0 where only after it."""
        return np.where(self.traffic.reduces_late, 0.0, 1.0)[self.of_row]

    def reduce_s(self) -> tuple[Floats, Floats, Floats]:
        """(N, K), (N, 2), (N,) of layers, ends and latencies: gradients, none of it hidden."""
        return self._wire(lambda traffic, part: traffic.once_s(part))

    def refresh_s(self) -> tuple[Floats, Floats, Floats]:
        """The same of the weights that ZeRO-1 and 2 gather after the update."""
        return self._wire(lambda traffic, part: traffic.refresh_s(part))

    def forward_s(self) -> tuple[Floats, Floats]:
        """(N, K) and (N, 2) what the weights of layers and ends send in each forward."""
        return self._by_part(self.traffic.forward_s)

    def backward_s(self) -> tuple[Floats, Floats]:
        """The same in each backward."""
        sent = self.traffic.backward_s
        ends = self._stacked(sent(end, again=False) for end in self.parts[-2:])
        layers = self.rows_by_kind(lambda kind: sent(self.layers[kind], again=True))
        return layers, ends[self.of_row]

    def unpacked_s(self) -> tuple[Floats, Floats]:
        """Bringing what one gathering of them left in its buffer to where it is used."""
        return self._by_part(self.ranks.step.unpacked_s)

    def _wire(self, seconds: Sent) -> tuple[Floats, Floats, Floats]:
        """A rank communicates all its parts at once: bytes add up, the latency counts once."""
        bare = self.traffic.latencies
        latency = [self._column(seconds(bare, part)) for part in self.parts]
        layers, ends = self._by_part(lambda part: seconds(self.traffic, part) - seconds(bare, part))
        return layers, ends, np.max(latency, axis=0)[self.of_row]

    def _by_part(self, value_of: Callable[[RankParameters], Number]) -> tuple[Floats, Floats]:
        columns = self._stacked(value_of(part) for part in self.parts)[self.of_row]
        return columns[:, :-2], columns[:, -2:]

    def _state_bytes(self, parameters: RankParameters) -> Number:
        states = state_memory(self.ranks.state, parameters, self.ranks.step.sharding).allocated
        return self.ranks.state_scale * states

    def _gathered(self, parameters: Number) -> Number:
        state, sharding = self.setting.engine.state, self.ranks.step.sharding
        return self.ranks.working_scale * gathered_bytes(state, parameters, sharding)


def _inner_degrees(
    setting: Setting, grid: Grid, axes: tuple[Axis, ...], but: tuple[Axis, ...] = ()
) -> tuple[Ints, ...]:
    """The degrees of the axes inside `axes` in the engine's rank order: they place their groups."""
    columns: dict[Axis, Ints] = {
        "tp": grid.tensor_parallel, "cp": grid.context_parallel,
        "dp": grid.data_parallel, "pp": grid.pipeline_parallel,
    }  # fmt: skip
    order = setting.engine.legality.rank_order
    inner = {axis for outer in axes for axis in order[: order.index(outer)]}
    return tuple(columns[axis] for axis in sorted(inner - {"ep", *but}))
