"""Closed-form price of many layouts: what one layer, the embedding and the head cost in each.

The stage problem (how many layers each stage holds, which of them recompute) is left open: these
are its coefficients, linear in the counts. With c_j the seconds of one micro-batch in stage j and D
the largest once-per-step sum of a rank,

    step = (m - 1) max c_j + sum c_j + D          one chunk per rank, 1F1B

is the simulated step of one rank exactly. For a pipeline it is never above it by more than what
comes after the slowest stage, sum over j behind it of c_j (nothing where the head is slowest), and
by D and its latencies, which `fixed_step_s` holds; a rank's memory is never below the simulated
one. Other schedules are in `planner.problem.closed_form`, with their bounds in docs/search.md
(printed by `benchmarks.search.fidelity`).

Approximations: the gradients of an end hide under what the mean rank's layers leave of their
backward; traffic once per step has one micro-batch's passes beside it under an interleaved pipeline
too, whose chunks a row does not say (`seconds.chunk_traffic`); what a recomputing layer hides of
its gradients is spread over the m micro-batches; what an overlapped transfer delays the neighbour
is left out; host time of a micro-batch is counted in the m micro-batches but not in the fill;
transients are those of the largest layer kind, whether a rank holds it or not.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layouts import Bools, Floats, Layouts
from meshplan.costmodels.prices.kind_memory import bytes_by_kind, least_of_kinds
from meshplan.costmodels.prices.memory import (
    beyond_host_bytes,
    least_columns,
    memory_columns,
    one_layer_bytes,
)
from meshplan.costmodels.prices.once_per_step import Once, Room
from meshplan.costmodels.prices.parts import all_states_bytes, parts_of
from meshplan.costmodels.prices.tables import Table, weight_table, work_table
from meshplan.costmodels.ranks.beside import Lasting, Sent, beside
from meshplan.costmodels.ranks.first_stage import tower_cost
from meshplan.costmodels.ranks.rendezvous import once_s
from meshplan.costmodels.seconds.cost import NOTHING, Cost
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.weights.offload import copies_of_gradients, offloads
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Coefficients of N layouts, K kinds of the stack and R recompute modes: none, selective
    with each of the `recompute_sets`, full.

    Bytes are what the allocator reserves: its slack is in every column.

    layer_s            (N, K, R) forward + backward of one layer and micro-batch, with its exposed
                       tensor, context and expert communication, and the recomputation of mode r
    layer_saved_bytes  (N, K, R) kept for the backward of one layer and micro-batch
    layer_state_bytes  (N, K) weights, gradients and optimizer state of one layer
    layer_update_bytes (N, K) held in the optimizer step, when no activation is: a rank's peak is
                       states + max(activations + transient, update); where gradients come late the
                       embedding's has what the last replays hold beyond the step (`last_replays`)
    layer_deferred_bytes, layer_waiting_bytes, put_off_bytes
                       (N, K), (N, K), (N,) where weight products are put off (zero bubble): kept
                       from I to W of a layer and micro-batch, gradients held whole of a layer, and
                       what a pass makes more; `planner.problem.coefficients` says how they enter
    layer_step_s       (N, K) once per step: exposed gradient/weight communication and optimizer
                       update
    transient_bytes    (N, R) held only while some layer of mode r runs; a stage pays its largest
                       mode once
    embedding_*, head_* (N,) the same for the first and the last stage's ends (head: loss, and
                       modules of multi-token prediction that the engine does not place); seconds
                       less half of `send_s`: nothing comes before the first, nor after the last
    head_transient_bytes (N,) logits and their gradient, on the last stage only
    send_s             (N,) exposed activation + gradient transfer per virtual stage and micro-batch
    forward_s, input_grad_s, weight_grad_s
                       (N,) of one micro-batch in all layers and both ends, recomputation apart; of
                       the ends less as above
    fixed_bytes        (N,) of every rank: context, communicators, the framework; buffers of
                       activations that wait on the host; what stands for gradients
    capacity_bytes     what a plan may fill of a GPU
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


def price(layouts: Layouts, setting: Setting) -> Prices:
    """The coefficients of every row of `layouts`."""
    return _Pricing(setting, layouts).prices()


def memory_bytes(layouts: Layouts, setting: Setting) -> dict[str, Floats]:
    """The columns of `Prices` that are bytes of a rank, without the seconds."""
    work, weights = work_table(setting, layouts), weight_table(setting, layouts)
    return memory_columns(layouts, work, weights, _ends_saved_bytes(work))


def least_memory_bytes(layouts: Layouts, setting: Setting) -> dict[str, Floats]:
    """What no rank holds less of where passes are counted (`prices.memory.least_columns`)."""
    return least_columns(layouts, work_table(setting, layouts), weight_table(setting, layouts))


def least_bytes_of_kinds(layouts: Layouts, setting: Setting) -> dict[str, Floats]:
    """What no rank holds less of where layers are of several kinds (`kind_memory`)."""
    return least_of_kinds(layouts, work_table(setting, layouts), weight_table(setting, layouts))


def lowest_memory_bytes(
    layouts: Layouts, setting: Setting, least: Callable[[Layouts, Table, Table], dict[str, Floats]]
) -> dict[str, Floats]:
    """`memory_bytes`, with the columns that `least` names instead (`least_columns` where passes
    are counted, `least_of_kinds` where layers are of several kinds).
    """
    work, weights = work_table(setting, layouts), weight_table(setting, layouts)
    return memory_columns(layouts, work, weights, _ends_saved_bytes(work)) | least(
        layouts, work, weights
    )


def bytes_beside_one_layer(layouts: Layouts, setting: Setting) -> Floats:
    """[row, kind] what a rank with a layer of the kind needs at least where passes are counted
    (`prices.memory.one_layer_bytes`).
    """
    return one_layer_bytes(layouts, work_table(setting, layouts), weight_table(setting, layouts))


def bytes_of_each_kind(layouts: Layouts, setting: Setting) -> Floats:
    """What a rank's need is made of where layers are of several kinds (`kind_memory`)."""
    return bytes_by_kind(layouts, work_table(setting, layouts), weight_table(setting, layouts))


def least_micro_batch_s(layouts: Layouts, setting: Setting) -> Floats:
    """(N,) what all pipeline ranks compute and wait for in one micro-batch at least: with nothing
    recomputed, and none of the traffic of weights.
    """
    work = work_table(setting, layouts)
    return work.rows(_one_micro_batch(work, *_ends(work)).total_s)


def host_may_take(layouts: Layouts, setting: Setting) -> Bools:
    """Whether a node's memory takes what the mean pipeline rank of each row sends there: the
    fullest rank of a plan sends no less.
    """
    if not offloads(layouts):
        return np.ones(len(layouts), bool)
    work, weights = work_table(setting, layouts), weight_table(setting, layouts)
    takes: Bools = beyond_host_bytes(layouts, work, weights) == 0.0
    return takes


def mean_states_bytes(layouts: Layouts, setting: Setting) -> Floats:
    """(N,) weights, gradients and optimizer states of the mean pipeline rank: the fullest rank of a
    plan holds more.
    """
    weights = weight_table(setting, layouts)
    return weights.rows(all_states_bytes(weights)) / layouts.pipeline_parallel


class _Part(NamedTuple):
    """One micro-batch of a layer or an end in every row: its seconds, and of them what traffic of
    weights may hide under.
    """

    seconds: Floats
    forward_room_s: Floats
    backward_room_s: Floats


class _Pricing:
    """The rows of a grid, put together from the two tables."""

    def __init__(self, setting: Setting, layouts: Layouts) -> None:
        self.setting, self.layouts = setting, layouts
        self.work, self.weights = work_table(setting, layouts), weight_table(setting, layouts)
        self.embedding, self.head = _ends(self.work)
        self.parts = parts_of(self.weights)

    def prices(self) -> Prices:
        """Every column of `Prices`."""
        work, m = self.work, self.layouts.num_micro_batches
        layers = [self._layer(kind) for kind in work.kinds]
        ends = [
            self._part(cost, self.weights.sent(parameters))
            for cost, parameters in zip((self.embedding, self.head), self.parts[-2:], strict=True)
        ]
        once, tuning = self._once_per_step(layers, ends), self.setting.tuning
        ends_saved_bytes = self.embedding.saved_bytes, self.head.saved_bytes
        held_s = (once.layers_s - once.layers_s[:, :, :1]) / m[:, None, None]
        forward_s, input_grad_s, weight_grad_s = self._passes_s()
        hop_s = work.rows(work.rank.hops.blocking_s)
        return Prices(
            layer_s=_by_mode(layers, "seconds") + held_s,
            layer_step_s=once.layers_s[:, :, 0],
            embedding_s=ends[0].seconds - hop_s,
            embedding_step_s=once.ends_s[:, 0],
            head_s=ends[1].seconds - hop_s,
            head_step_s=once.ends_s[:, 1],
            send_s=2 * hop_s,
            forward_s=forward_s - hop_s,
            input_grad_s=input_grad_s - hop_s,
            weight_grad_s=weight_grad_s,
            fixed_step_s=once_s(self.setting, self.layouts)
            + m * tuning.micro_batch_s
            + once.latency_s,
            capacity_bytes=self.setting.cluster.fillable_bytes,
            **memory_columns(self.layouts, work, self.weights, ends_saved_bytes),
        )

    def _layer(self, kind: int) -> list[_Part]:
        """One layer of `kind` by recompute mode."""
        work, replays = self.work.rank, not self.work.rank.is_modules(kind)
        host, parts = work.host if replays else None, []
        sent = self.weights.sent(self.parts[kind], again=float(replays))
        modes = self.work.modes if replays else self.work.modes[:1]  # modules replay nothing
        for mode in modes:
            cost = work.plain_cost(kind, mode)
            saved_s = self.work.rows(host.activations_s(cost.saved_bytes)) if host else 0.0
            seen = self._sent_replaying(kind) or sent if mode == "full" else sent
            parts.append(self._part(cost, seen, saved_s=saved_s))
        return parts if replays else parts * len(self.work.modes)

    def _part(self, cost: Cost, sent: Sent, *, saved_s: Number = 0.0) -> _Part:
        rows = self.work.rows
        once_room_s, backward_room_s = rows(cost.forward.once_room_s), rows(cost.backward_room_s)
        plain_f = Lasting(rows(cost.forward.total_s), rows(cost.forward.room_s))
        plain_b = Lasting(rows(cost.backward_s), backward_room_s)
        copies = copies_of_gradients(self.layouts.num_micro_batches * 1.0)
        forward, backward = beside(
            self.setting, self.layouts, sent, plain_f, plain_b,
            saved_s=saved_s, copies=copies,
        )  # fmt: skip
        seconds = rows(cost.total_s) + (forward.total_s + backward.total_s)
        return _Part(
            seconds, once_room_s + forward.more_room_s, backward_room_s + backward.more_room_s
        )

    def _sent_replaying(self, kind: int) -> Sent | None:
        """What a wholly replayed layer sends, where that is more than others do."""
        again = self.weights.rank.gathered_again(kind, "full")
        return self.weights.sent(self.parts[kind], again=again) if np.any(again != 1.0) else None

    def _once_per_step(self, layers: list[list[_Part]], ends: list[_Part]) -> Once:
        """Gradients reduced, weights updated, and gathered again."""
        setting, weights = self.setting, self.weights
        counts = np.array([setting.stack.count(kind) for kind in weights.kinds], np.float64)
        slowed = weights.rows(weights.rank.traffic.interference(setting.tuning.interference))
        ranks = self.layouts.pipeline_parallel.astype(np.float64)
        backward = Room(
            _by_mode(layers, "backward_room_s"),
            np.stack([end.backward_room_s for end in ends], axis=1),
            weights.rows(weights.rank.reduce_overlap), counts, ranks, slowed,
        )  # fmt: skip
        forward = Room(
            _by_mode(layers, "forward_room_s"),
            np.stack([end.forward_room_s for end in ends], axis=1),
            np.full(len(self.layouts), setting.engine.overlap.weight_gather), counts, ranks, slowed,
        )  # fmt: skip
        updated = self._by_part([weights.rank.optimizer_s(part) for part in self.parts])
        update = Once(updated[0][:, :, None], updated[1], np.zeros(len(self.layouts)))
        reduce = backward.exposed(*self._wire("once_s"))
        return update + reduce + forward.exposed(*self._wire("refresh_s"))

    def _wire(self, name: Literal["once_s", "refresh_s"]) -> tuple[Floats, Floats, Floats]:
        """(N, K), (N, 2), (N,) of layers, ends and latencies: a rank communicates all its parts at
        once, so bytes add up, and the latency counts once.
        """
        traffic = self.weights.rank.traffic
        bare = [getattr(traffic.latencies, name)(part) for part in self.parts]
        whole = [getattr(traffic, name)(part) for part in self.parts]
        layers, ends = self._by_part([all - empty for all, empty in zip(whole, bare, strict=True)])
        return layers, ends, self.weights.most(bare)

    def _by_part(self, values: list[Number]) -> tuple[Floats, Floats]:
        columns = self.weights.stacked(values)
        return columns[:, :-2], columns[:, -2:]

    def _passes_s(self) -> tuple[Floats, Floats, Floats]:
        """(N,) of one micro-batch in all layers and ends: F, I and W of the zero-bubble papers."""
        whole = _one_micro_batch(self.work, self.embedding, self.head)
        passes = (whole.forward, whole.input_grad, whole.weight_grad)
        forward, input_grad, weight_grad = (self.work.rows(each.total_s) for each in passes)
        return forward, input_grad, weight_grad


def _ends(work: Table) -> tuple[Cost, Cost]:
    """The embedding, and the head with what modules of multi-token prediction are of no stage."""
    embedding, *head = work.rank.ends
    return embedding, head[0] if work.setting.places_modules else sum(head, start=NOTHING)


def _ends_saved_bytes(work: Table) -> tuple[Number, Number]:
    """What `_ends` keep of a micro-batch, without pricing their seconds."""
    rank, setting = work.rank, work.setting
    embedding, *head = map(rank.pricer.saved_bytes, rank.end_operations)
    embedding = embedding + tower_cost(rank.site, rank.pricer, setting).saved_bytes
    return embedding, head[0] if setting.places_modules else sum(head)


def _one_micro_batch(work: Table, embedding: Cost, head: Cost) -> Cost:
    """Of one micro-batch in all layers and both ends."""
    whole = embedding + head
    for kind in work.kinds:
        whole = whole + work.rank.plain_cost(kind, "none") * work.setting.stack.count(kind)
    return whole


def _by_mode(layers: list[list[_Part]], name: str) -> Floats:
    """(N, K, R)."""
    return np.stack(
        [np.stack([getattr(part, name) for part in modes], axis=1) for modes in layers], axis=1
    )
