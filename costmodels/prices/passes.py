"""What the event simulation times, of many layouts: each pass of a layer and of the ends.

The same sums as `StageModel.stage_costs` and `schedule_work` make for the stages of one layout, so
that bounds which are put together from them hold for the simulation. Nothing is approximate here
(`costmodels.prices.prices` says what is in its once-per-step costs).
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Mode
from meshplan.costmodels.layouts import Floats, Ints, Layouts, packed_column
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.prices.late_traffic import LateTraffic, late_traffic
from meshplan.costmodels.prices.parts import parts_of
from meshplan.costmodels.prices.tables import weight_table, work_table
from meshplan.costmodels.ranks.beside import Lasting, beside
from meshplan.costmodels.ranks.rendezvous import once_s
from meshplan.costmodels.seconds.cost import NOTHING, Cost
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.weights.offload import copies_of_gradients
from meshplan.hardware_profiles.dataclass import dataclass

FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """Seconds of one micro-batch in N layouts, K kinds of the stack and R recompute modes.

    layer_s        (N, K, R, 3) forward, input gradient with its recomputation, weight gradient
    embedding_s, head_s   (N, 3) the same of the ends, less the way that their stage hands nothing
                   on by: `blocking_s` of the first stage's backward and of the last one's forward
    hop_s          (N,) an activation's way to the next rank that no rank waits for
    blocking_s     (N,) of each stage's forward and each backward: the way that it waits for
    module_outputs_s (N,) the same of what prediction modules apart from the loss put out
    layer_update_s, ends_update_s
                   (N, K), (N, 2) the optimizer on the parameters of a layer and of the ends
    layer_room_s, ends_room_s
                   (N, K, R, 2), (N, 2, 2) of a forward and of a backward, what late traffic hides
                   under
    dense, expert, eight_bit, eight_bit_expert
                   (N, K + 2) parameters of a layer of each kind, of the embedding and of the head
    reduce, refresh
                   gradients after the last backward; weights after the update
    micro_batch_s  of each rank and micro-batch, shared by its stages' passes
    step_s         (N,) once per step
    beside_chunks  the engine's habit (`Overlap.beside_chunks`)
    """

    layer_s: Floats
    embedding_s: Floats
    head_s: Floats
    hop_s: Floats
    blocking_s: Floats
    module_outputs_s: Floats
    layer_update_s: Floats
    ends_update_s: Floats
    layer_room_s: Floats
    ends_room_s: Floats
    dense: Floats
    expert: Floats
    eight_bit: Floats
    eight_bit_expert: Floats
    reduce: LateTraffic
    refresh: LateTraffic
    micro_batch_s: float
    step_s: Floats
    beside_chunks: bool

    def take(self, rows: Ints) -> "PassSeconds":
        """Some of the rows."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        traffic: dict[str, Any] = {name: getattr(self, name).take(rows) for name in TRAFFIC}
        return replace(self, **columns, **traffic)

    @classmethod
    def joined(cls, parts: list["PassSeconds"]) -> "PassSeconds":
        """The rows of all `parts`, of one setting, one after the other. The list is emptied, and
        each column let go when it is joined, so that no two copies of all are in memory; it is
        `packed_column`.
        """
        same: dict[str, Any] = {name: getattr(parts[0], name) for name in OF_SETTING}
        lists = {name: [getattr(part, name) for part in parts] for name in (*COLUMNS, *TRAFFIC)}
        parts.clear()
        columns: dict[str, Any] = {
            name: packed_column(np.concatenate(lists.pop(name))) for name in COLUMNS
        }
        traffic: dict[str, Any] = {name: LateTraffic.joined(lists.pop(name)) for name in TRAFFIC}
        return cls(**columns, **traffic, **same)


TRAFFIC, OF_SETTING = ("reduce", "refresh"), ("micro_batch_s", "beside_chunks")
COLUMNS = tuple(
    field.name for field in fields(PassSeconds) if field.name not in (*TRAFFIC, *OF_SETTING)
)


def pass_seconds(layouts: Layouts, setting: Setting) -> PassSeconds:
    """The passes of every row of `layouts`."""
    return _Passes(setting, layouts).seconds()


class _Passes:
    """The rows of a grid, put together from the two tables."""

    def __init__(self, setting: Setting, layouts: Layouts) -> None:
        self.setting, self.layouts = setting, layouts
        self.work, self.weights = work_table(setting, layouts), weight_table(setting, layouts)
        self.parts = parts_of(self.weights)

    def seconds(self) -> PassSeconds:
        """All columns."""
        work, rank, setting = self.work, self.work.rank, self.setting
        embedding, *ends_cost = rank.ends
        head = ends_cost[0] if setting.places_modules else sum(ends_cost, start=NOTHING)
        # (N, K, R, 5): three passes and the rooms of two.
        layers = np.stack([
            np.stack(self._by_mode(kind), axis=1) for kind in work.kinds
        ], axis=1)  # fmt: skip
        ends = np.stack([
            self._passes(cost, parameters)
            for cost, parameters in zip(
                (embedding, head), self.parts[-2:], strict=True
            )
        ], axis=1)  # fmt: skip
        updates = self.weights.stacked([self.weights.rank.optimizer_s(part) for part in self.parts])
        overlap, gathers = setting.engine.overlap, np.zeros(len(self.layouts))
        gathers += overlap.weight_gather
        reduces = self.weights.rows(self.weights.rank.reduce_overlap)
        blocking_s = work.rows(rank.hops.blocking_s)
        ends[:, 0, INPUT_GRAD] -= blocking_s
        ends[:, 1, FORWARD] -= blocking_s
        return PassSeconds(
            layer_s=layers[..., :3], embedding_s=ends[:, 0, :3], head_s=ends[:, 1, :3],
            hop_s=work.rows(overlap.pipeline * rank.hops.hop_s),
            blocking_s=blocking_s,
            module_outputs_s=work.rows(rank.hops.module_outputs_s),
            layer_update_s=updates[:, :-2], ends_update_s=updates[:, -2:],
            layer_room_s=layers[..., 3:], ends_room_s=ends[..., 3:],
            dense=self._counts("dense"), expert=self._counts("expert"),
            eight_bit=self._counts("eight_bit"), eight_bit_expert=self._counts("eight_bit_expert"),
            reduce=late_traffic(self.weights, "once_s", reduces),
            refresh=late_traffic(self.weights, "refresh_s", gathers),
            micro_batch_s=setting.tuning.micro_batch_s, step_s=once_s(setting, self.layouts),
            beside_chunks=overlap.beside_chunks,
        )  # fmt: skip

    def _counts(self, name: str) -> Floats:
        return self.weights.stacked(getattr(part, name) for part in self.parts)

    def _by_mode(self, kind: int) -> list[Floats]:
        """One part of the stack by recompute mode: modules replay nothing."""
        rank, modes = self.work.rank, self.work.modes
        if rank.is_modules(kind):
            return [self._passes(rank.ends[2], self.parts[kind])] * len(modes)
        return [self._layer(kind, mode) for mode in modes]

    def _layer(self, kind: int, mode: Mode) -> Floats:
        again = self.weights.rank.gathered_again(kind, mode)
        return self._passes(self.work.rank.plain_cost(kind, mode), self.parts[kind], again=again)

    def _passes(self, cost: Cost, parameters: RankParameters, *, again: Number = 0.0) -> Floats:
        """(N, 5): the three passes; of a forward and of a backward the room for late traffic."""
        rows, host = self.work.rows, self.work.rank.host
        sent = self.weights.sent(parameters, again=again)
        saved_s = rows(host.activations_s(cost.saved_bytes)) if host and np.any(again) else 0.0
        plain_f = Lasting(rows(cost.forward.total_s), rows(cost.forward.room_s))
        plain_b = Lasting(rows(cost.backward_s), rows(cost.backward_room_s))
        forward, backward = beside(
            self.setting, self.layouts, sent, plain_f, plain_b,
            saved_s=saved_s, copies=copies_of_gradients(self.layouts.num_micro_batches * 1.0),
        )  # fmt: skip
        replayed = rows(cost.replay.total_s + cost.input_grad.total_s)
        return np.stack([
            plain_f.total_s + forward.total_s,
            replayed + backward.total_s,
            rows(cost.weight_grad.total_s) + np.zeros(len(self.layouts)),
            rows(cost.forward.once_room_s) + forward.room_s,
            plain_b.room_s + backward.room_s,
        ], axis=1)  # fmt: skip
