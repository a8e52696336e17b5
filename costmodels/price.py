"""Closed-form price of many layouts: what one layer, the embedding and the head cost in each.

The stage problem (how many layers each stage holds, which of them recompute) is left open: these
are its coefficients, linear in the counts. With c_j the seconds of one micro-batch in stage j and D
the largest once-per-step sum of a rank,

    step = (m - 1) max c_j + sum c_j + D          one chunk per rank, 1F1B

is the simulated step of one rank exactly. For a pipeline it is never above it by more than what
comes after the slowest stage, sum over j behind it of c_j (nothing where the head is slowest), and
by D; a rank's memory is never below the simulated one. Other schedules are in
`planner.closed_form`, with their bounds in docs/search.md; `benchmarks.fidelity` prints them.

Approximations: the gradients of an end hide under what the mean rank's layers leave of their
backward; what a recomputing layer hides of its gradients is spread over the m micro-batches; what
an overlapped transfer delays the neighbour is left out; host time of a micro-batch is counted in
the m micro-batches but not in the fill; transients are those of the largest layer kind, whether a
rank holds it or not.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from costmodels.grid import Grid
from costmodels.host import copies_of_gradients, host_share_bytes, offloads, seen_s
from costmodels.layer import exposed_s
from costmodels.model import Model
from costmodels.price_tables import WeightTable, WorkTable
from costmodels.stage_model import ZERO_2
from costmodels.step import Setting
from costmodels.step_memory import constant_slack_bytes
from costmodels.training import Training
from hardware_profiles.engine_schema import Engine
from hardware_profiles.schema import Cluster
from hardware_profiles.tunings import Tuning

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Coefficients of N layouts, K layer kinds and R = 3 recompute modes (none, selective, full).

    Bytes are what the allocator reserves: its slack is in every column.

    layer_s            (N, K, R) forward + backward of one layer and micro-batch, with its exposed
                       tensor, context and expert communication, and the recomputation of mode r
    layer_saved_bytes  (N, K, R) kept for the backward of one layer and micro-batch
    layer_state_bytes  (N, K) weights, gradients and optimizer state of one layer
    layer_update_bytes (N, K) held in the optimizer step, when no activation is: a rank's peak is
                       states + max(activations + transient, update)
    layer_deferred_bytes, layer_waiting_bytes, put_off_bytes
                       (N, K), (N, K), (N,) where weight products are put off (zero bubble): kept
                       from I to W of a layer and micro-batch, gradients held whole of a layer, and
                       what a pass makes more; `planner.coefficients` says how they enter
    layer_step_s       (N, K) once per step: exposed gradient/weight communication and optimizer
                       update
    transient_bytes    (N, R) held only while some layer of mode r runs; a stage pays its largest
                       mode once
    embedding_*, head_* (N,) the same for the first and the last stage's ends (head: loss and MTP
                       too)
    head_transient_bytes (N,) logits and their gradient, on the last stage only
    send_s             (N,) exposed activation + gradient transfer per virtual stage and micro-batch
    forward_s, input_grad_s, weight_grad_s
                       (N,) of one micro-batch in all layers and both ends, recomputation apart
    fixed_bytes        (N,) of every rank: context, communicators, the framework; buffers of
                       activations that wait on the host; what stands for gradients
    capacity_bytes     usable memory of the accelerator
    fixed_step_s       (N,) once per step whatever the stages hold
    """

    layer_s: Floats
    layer_saved_bytes: Floats
    layer_state_bytes: Floats
    layer_update_bytes: Floats
    layer_deferred_bytes: Floats
    layer_waiting_bytes: Floats
    put_off_bytes: Floats
    layer_step_s: Floats
    transient_bytes: Floats
    embedding_s: Floats
    embedding_saved_bytes: Floats
    embedding_state_bytes: Floats
    embedding_update_bytes: Floats
    embedding_step_s: Floats
    head_s: Floats
    head_saved_bytes: Floats
    head_state_bytes: Floats
    head_update_bytes: Floats
    head_step_s: Floats
    head_transient_bytes: Floats
    send_s: Floats
    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    fixed_bytes: Floats
    fixed_step_s: Floats
    capacity_bytes: float


def price(
    grid: Grid, model: Model, training: Training, cluster: Cluster, engine: Engine, tuning: Tuning
) -> Prices:
    """The coefficients of every row of `grid`; `tuning` is `load_fit(engine, gpu).tuning`."""
    setting = Setting(model, training, cluster, engine, tuning)
    work, weights = WorkTable(setting, grid), WeightTable(setting, grid)
    once = _once_per_step(setting, grid, work, weights)
    update_layers, update_ends = weights.update_bytes()
    gathered, m = weights.gathered_bytes, grid.num_micro_batches
    held_s = (once.layers_s - once.layers_s[:, :, :1]) / m[:, None, None]
    layers_s, ends_s = _each_micro_batch(setting, grid, work, weights)
    beside = np.zeros(len(grid))
    if offloads(grid):
        layers_copied_s, ends_copied_s = _copies(grid, work, weights)
        layers_s, ends_s = layers_s + layers_copied_s, ends_s + ends_copied_s
        beside = work.buffer_bytes + _beyond_host_bytes(setting, grid, work, weights)
    fixed_s = tuning.step_s + m * tuning.micro_batch_s + once.latency_s
    gathers = work.rows(work.ranks.step.site.gathered_bytes)
    outside = work.ranks.step.context_bytes + constant_slack_bytes(tuning, grid, gathers)
    forward_s, input_grad_s, weight_grad_s = work.passes_s()
    return Prices(
        layer_s=work.layer_s + layers_s + held_s,
        layer_saved_bytes=work.layer_saved_bytes,
        layer_state_bytes=weights.layer_state_bytes,
        layer_update_bytes=update_layers,
        layer_deferred_bytes=work.layer_deferred_bytes,
        layer_waiting_bytes=weights.layer_waiting_bytes,
        put_off_bytes=work.put_off_bytes,
        layer_step_s=once.layers_s[:, :, 0],
        transient_bytes=work.replay_bytes + gathered[:, None],
        embedding_s=work.rows(work.embedding.total_s) + ends_s[:, 0],
        embedding_saved_bytes=work.end_saved_bytes(work.embedding),
        embedding_state_bytes=weights.embedding_state_bytes,
        embedding_update_bytes=update_ends[:, 0],
        embedding_step_s=once.ends_s[:, 0],
        head_s=work.rows(work.head.total_s) + ends_s[:, 1],
        head_saved_bytes=work.end_saved_bytes(work.head),
        head_state_bytes=weights.head_state_bytes + work.head_buffer_bytes,
        head_update_bytes=update_ends[:, 1],
        head_step_s=once.ends_s[:, 1],
        head_transient_bytes=work.logits_bytes + gathered,
        send_s=work.send_s,
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        fixed_bytes=outside + beside + work.stand_in_bytes,
        fixed_step_s=fixed_s,
        capacity_bytes=cluster.capacity_bytes,
    )


def _each_micro_batch(
    setting: Setting, grid: Grid, work: WorkTable, weights: WeightTable
) -> tuple[Floats, Floats]:
    """(N, K, R) of a layer, (N, 2) of the ends: what is seen of the traffic of their weights."""
    overlap, interference = setting.engine.overlap, setting.tuning.interference
    hides = np.where(grid.zero_stage > ZERO_2, overlap.weight_gather, overlap.data_reduce)[:, None]
    (forward, ends_f), (backward, ends_b) = weights.forward_s(), weights.backward_s()
    seen_f = exposed_s(forward, work.forward_room_s, hides, interference)
    seen_b = exposed_s(backward[:, :, None], work.backward_room_s, hides[:, :, None], interference)
    ends = exposed_s(ends_f, work.ends_forward_room_s, hides, interference) + exposed_s(
        ends_b, work.ends_backward_room_s, hides, interference
    )
    unpacked, unpacked_ends = weights.unpacked_s()
    layers = np.asarray(seen_f) + 2 * unpacked
    return layers[:, :, None] + seen_b, np.asarray(ends) + unpacked_ends


def _copies(grid: Grid, work: WorkTable, weights: WeightTable) -> tuple[Floats, Floats]:
    """(N, K, R) of a layer, (N, 2) of the ends: what is seen of copies to and from the host."""
    times = np.asarray(copies_of_gradients(grid.num_micro_batches.astype(np.float64)))[:, None]
    one_of_layers, one_of_ends = weights.gradient_copies_s()
    layers, ends = times * one_of_layers, times * one_of_ends
    forward = seen_s(work.copies_s, work.forward_room_s[:, :, None])
    backward = seen_s(work.copies_s + layers[:, :, None], work.backward_room_s)
    seen = seen_s(ends, work.ends_backward_room_s)
    return np.asarray(forward + backward), np.asarray(seen)


def _beyond_host_bytes(
    setting: Setting, grid: Grid, work: WorkTable, weights: WeightTable
) -> Floats:
    """(N,) more than any device holds where the host cannot take what even the mean rank sends it
    (one micro-batch of activations), 0 elsewhere and where its size is not known.
    """
    room = host_share_bytes(setting.cluster, grid.world_size * 1.0)
    if room is None:
        return np.zeros(len(grid))
    pattern = setting.model.pattern
    counts = np.array([pattern.count(kind) for kind in work.kinds], np.float64)
    layers, ends = weights.host_bytes()
    sent = ((layers + work.host_bytes) @ counts + ends.sum(axis=1)) / grid.pipeline_parallel
    return np.where(sent > room, setting.cluster.capacity_bytes + sent - room, 0.0)


@dataclass(frozen=True, slots=True)
class _Once:
    """Seconds once per step: (N, K, R) of a layer, (N, 2) of the ends, (N,) of any rank."""

    layers_s: Floats
    ends_s: Floats
    latency_s: Floats

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.layers_s + other.layers_s,
            self.ends_s + other.ends_s,
            self.latency_s + other.latency_s,
        )

    def where(self, rows: Bools, other: Self) -> Self:
        """These seconds in `rows`, those of `other` in the rest."""
        return type(self)(
            np.where(rows[:, None, None], self.layers_s, other.layers_s),
            np.where(rows[:, None], self.ends_s, other.ends_s),
            np.where(rows, self.latency_s, other.latency_s),
        )


def _once_per_step(setting: Setting, grid: Grid, work: WorkTable, weights: WeightTable) -> _Once:
    """Gradients reduced, weights updated, and gathered again."""
    overlap = setting.engine.overlap
    update_layers, update_ends = weights.update_s()
    update = _Once(update_layers[:, :, None], update_ends, np.zeros(len(grid)))
    pattern = setting.model.pattern
    counts = np.array([pattern.count(kind) for kind in work.kinds], np.float64)
    ranks, interference = grid.pipeline_parallel.astype(np.float64), setting.tuning.interference
    beside = weights.reduces_beside
    backward = Room(
        work.backward_room_s * beside[:, None, None], work.ends_backward_room_s * beside[:, None],
        counts, ranks, interference,
    )  # fmt: skip
    forward = Room(
        work.forward_room_s[:, :, None], work.ends_forward_room_s, counts, ranks,
        interference,
    )  # fmt: skip
    reduce = backward.exposed(*weights.reduce_s(), overlap.data_reduce)
    gather = forward.exposed(*weights.refresh_s(), overlap.weight_gather)
    return update + reduce + gather


@dataclass(frozen=True, slots=True)
class Room:
    """Computing under which a rank's communication may hide: (N, K, R) by layer, (N, 2) by end.

    counts  layers of each kind in the model
    """

    layers_s: Floats
    ends_s: Floats
    counts: Floats
    ranks: Floats
    interference: float

    def exposed(self, layers: Floats, ends: Floats, latency: Floats, overlap: float) -> _Once:
        """What is seen of the communication of each layer, of the ends and of the latencies."""
        alone = self._on_one_rank(layers, ends, latency, overlap)
        return alone.where(self.ranks == 1, self._on_mean_rank(layers, ends, latency, overlap))

    def _on_one_rank(self, layers: Floats, ends: Floats, latency: Floats, overlap: float) -> _Once:
        """All communication hides under all computing; each part is seen in proportion."""
        whole = layers @ self.counts + ends.sum(axis=1) + latency
        room = self._all_layers_s + self.ends_s.sum(axis=1)[:, None]
        seen = self._seen(whole[:, None], room, overlap)
        fraction = _ratio(seen[:, 0], whole)
        replayed = (seen - seen[:, :1]) / self.counts.sum()
        return _Once(
            (layers * fraction[:, None])[:, :, None] + replayed[:, None, :],
            ends * fraction[:, None],
            latency * fraction,
        )

    def _on_mean_rank(self, layers: Floats, ends: Floats, latency: Floats, overlap: float) -> _Once:
        """Layers hide together, and the rest under what the layers of the mean rank leave."""
        whole, room = layers @ self.counts, self._all_layers_s
        together = layers[:, :, None] * _ratio(room, whole[:, None])[:, None, :]
        under = overlap * whole / (1 + self.interference)
        spare = np.maximum(room[:, 0] - under, 0.0) / self.ranks
        return _Once(
            self._seen(layers[:, :, None], np.maximum(self.layers_s, together), overlap),
            self._seen(ends, self.ends_s + spare[:, None], overlap),
            self._seen(latency, spare, overlap),
        )

    @property
    def _all_layers_s(self) -> Floats:
        """(N, R) of all layers of the model, recomputing alike."""
        total: Floats = np.einsum("nkr,k->nr", self.layers_s, self.counts)
        return total

    def _seen(self, whole: Floats, room: Floats, overlap: float) -> Floats:
        return np.asarray(exposed_s(whole, room, overlap, self.interference))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, 0 where there is no whole."""
    whole = np.broadcast_to(whole, part.shape)
    ratio: Floats = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return ratio
