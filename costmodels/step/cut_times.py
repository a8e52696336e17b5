"""The simulated step of many cuts of one layout: what does not depend on the cut is found once.

    step_s     `StepModel.time` of the same stages, without the stops of a full allocator

A cut costs sums of a few numbers for each stage and one pass of the event simulation: the times of
passes are looked up in what was priced for all layouts at once.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from operator import add
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import MODES, Layout, Stage
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.seconds.chunk_traffic import exposed_beside_s
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.seconds import slowed_of
from meshplan.costmodels.step.step import StepModel

NONE, SELECTIVE, FULL = (MODES.index(mode) for mode in ("none", "selective", "full"))


StageKey = tuple[tuple[int, ...], int, int, bool, bool]
"""The kinds of a stage's layers, how many of them recompute selectively and in full, and whether it
is the first and the last.
"""


class _Load(NamedTuple):
    """One micro-batch of a layer, an end or a stage.

    forward_s, input_grad_s, weight_grad_s   its passes, recomputation in the input gradient's
    forward_room_s, backward_room_s          computing that traffic of its weights may hide under
    dense, expert                            its parameters
    eight_bit, eight_bit_expert              those of them that compute in 8 bits
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    forward_room_s: float
    backward_room_s: float
    dense: float
    expert: float
    eight_bit: float
    eight_bit_expert: float


PARAMETERS = _Load._fields[_Load._fields.index("dense") :]  # those of `RankParameters`
BACKWARD = 1  # of `PassSeconds.layer_room_s`
BACKWARD_ROOM = _Load._fields.index("backward_room_s")


class After(NamedTuple):
    """What each rank reduces after its last backward, and what all wait for after that."""

    reduce_s: tuple[float, ...]
    rest_s: float


class CutTimes:
    """Steps of `layout` under other cuts than its own stages.

    passes, row  the priced passes, and the layout's row in them
    columns      where its three recompute modes stand in them
    """

    def __init__(
        self,
        setting: Setting,
        layout: Layout,
        passes: PassSeconds,
        row: int,
        columns: tuple[int, int, int] = (0, 1, 2),
    ) -> None:
        self.model, self.layout = StepModel(setting, layout), layout
        self.passes, self.row, self.columns = passes, row, columns
        self._stages: dict[StageKey, tuple[float, ...]] = {}
        self._placed: dict[tuple[int, int, int, int, bool, bool], tuple[float, ...]] = {}
        self._last: tuple[Sequence[Stage], list[tuple[float, ...]]] = ((), [])
        self._sent: dict[tuple[float, float], float] = {}
        self._reduced: dict[tuple[float, ...], float] = {}
        self._updated: dict[tuple[float, ...], float] = {}

    def step_s(self, stages: Sequence[Stage], after: "After | None" = None) -> float:
        """The simulated step of this cut; `after`: what follows its pipeline, if known already."""
        la, after = self.layout, after or self.after_s(stages)
        work = self.work(stages)
        ends = end_s(la.schedule, la.pipeline_parallel, la.virtual_stages, self.model.m, work)
        last = max(end + reduce for end, reduce in zip(ends, after.reduce_s, strict=True))
        return last + after.rest_s

    def least_after_s(
        self, stages: Sequence[Stage], ranks: Collection[int], limit_s: float
    ) -> "After":
        """A lower bound of what follows the pipeline if `ranks` recompute more: longer backwards
        hide more of the gradient reduction. Holds for steps below `limit_s`.

        With one chunk per rank nothing is gained: the last backward gets longer by as much as it
        hides more. With several, a rank can recompute only for the time that its work leaves of
        `limit_s`.
        """
        after = self.after_s(stages)
        if self.layout.virtual_stages == 1 or not ranks:
            return after
        loads, reduce = self._loads(stages), list(after.reduce_s)
        for rank in ranks:
            chunks = self._stages_of_rank[rank]
            sums = [sum(column) for column in zip(*(loads[j] for j in chunks), strict=True)]
            work_s = sum(sums[:3]) + 2 * len(chunks) * self.extra_s
            most_s = max(0.0, (limit_s - after.rest_s) / self.model.m - work_s)
            sums[BACKWARD_ROOM] += most_s
            reduce[rank] = self.reduce_s_of(sums)
        return After(tuple(reduce), after.rest_s)

    def work(self, stages: Sequence[Stage]) -> Work:
        """The schedule's actions in seconds."""
        return self._work(self._loads(stages))

    def _work(self, loads: Sequence[Sequence[float]]) -> Work:
        extra = self.extra_s
        return Work(
            tuple(load[0] + extra for load in loads),
            tuple(load[1] + extra for load in loads),
            tuple(load[2] for load in loads),
            self.hop_s,
        )

    def after_s(self, stages: Sequence[Stage]) -> "After":
        """What follows the pipeline."""
        loads, reduce, update = self._loads(stages), [], 0.0
        for chunks in self._stages_of_rank:
            rank: Sequence[float] = loads[chunks[0]]
            for j in chunks[1:]:
                rank = tuple(map(add, rank, loads[j]))
            reduce.append(self.reduce_s_of(rank))
            update = max(update, self.update_s_of(rank))
        return After(tuple(reduce), update + float(self.passes.step_s[self.row]))

    def after_near_s(self, stages: Sequence[Stage]) -> tuple[list[list[float]], list[list[float]]]:
        """[a layer less, as it is, one more][rank] what each rank reduces, and what it updates."""
        loads, reduce, update = self._loads(stages), list[list[float]](), list[list[float]]()
        ranks = [
            [sum(column) for column in zip(*(loads[j] for j in chunks), strict=True)]
            for chunks in self._stages_of_rank
        ]
        for more in (-1, 0, 1):
            near = [
                [max(0.0, a + more * b) for a, b in zip(rank, self._mean_layer, strict=True)]
                for rank in ranks
            ]
            reduce.append([self.reduce_s_of(rank) for rank in near])
            update.append([self.update_s_of(rank) for rank in near])
        return reduce, update

    @cached_property
    def _mean_layer(self) -> list[float]:
        """The mean `_Load` of the stack's layers, with nothing recomputed."""
        stack = self.model.setting.stack
        columns = zip(*(self._layers[kind, NONE] for kind in stack), strict=True)
        return [sum(column) / len(stack) for column in columns]

    def update_s(self, stages: Sequence[Stage]) -> list[float]:
        """The update of each rank, of one chunk per rank."""
        return [self.update_s_of(load) for load in self._loads(stages)]

    @cached_property
    def extra_s(self) -> float:
        """Seconds that each pass of a stage waits for its transfers and the host's per-micro-batch
        work.
        """
        each = self.model.setting.tuning.micro_batch_s / 2 / self.layout.virtual_stages
        return float(self.passes.blocking_s[self.row]) + each

    @cached_property
    def hop_s(self) -> float:
        """Seconds of an activation's transfer to the next rank that run beside computing."""
        return float(self.passes.hop_s[self.row])

    @cached_property
    def _stages_of_rank(self) -> list[list[int]]:
        la = self.layout
        chunks = range(la.pipeline_parallel * la.virtual_stages)
        held: list[list[int]] = [[] for _ in range(la.pipeline_parallel)]
        for j in chunks:
            held[self.model.rank_of(j)].append(j)
        return held

    def _loads(self, stages: Sequence[Stage]) -> list[tuple[float, ...]]:
        """The `_Load` of each stage; kept for the last cut, which is asked for several times."""
        if self._last[0] is stages:
            return self._last[1]
        position, last, loads = 0, len(stages) - 1, []
        for index, stage in enumerate(stages):
            layers, modes = stage.layers, (stage.selective_layers, stage.full_layers)
            place = (position, layers, *modes, index == 0, index == last)
            load = self._placed.get(place)
            if load is None:
                kinds = self.model.setting.stack[position : position + layers]
                load = self._placed[place] = self.load((kinds, *place[2:]))
            loads.append(load)
            position += layers
        if isinstance(stages, tuple):  # nobody changes it
            self._last = stages, loads
        return loads

    def load(self, key: StageKey) -> tuple[float, ...]:
        """The `_Load` of a stage."""
        if key not in self._stages:
            self._stages[key] = self._sum(key)
        return self._stages[key]

    def _sum(self, key: StageKey) -> tuple[float, ...]:
        kinds, selective, full, first, last = key
        modes = [FULL] * full + [SELECTIVE] * selective
        modes += [NONE] * (len(kinds) - len(modes))
        total = [0.0] * len(_Load._fields)
        parts = [
            (self._layers[each], n) for each, n in Counter(zip(kinds, modes, strict=True)).items()
        ]
        parts += [(end, 1) for end in (*self._ends[:1] * first, *self._ends[1:] * last)]
        for load, count in parts:
            total = [a + count * b for a, b in zip(total, load, strict=True)]
        modules = self.model.is_modules(kinds[-1]) if kinds else False
        if self._places_modules and modules != last:  # apart from the loss
            total[0 if modules else 1] += float(self.passes.module_outputs_s[self.row])
        return tuple(total)

    @cached_property
    def _places_modules(self) -> bool:
        return self.model.setting.places_modules

    @cached_property
    def _layers(self) -> dict[tuple[int, int], _Load]:
        """Of a layer of each kind under each recompute mode."""
        p, row = self.passes, self.row
        return {
            (kind, mode): _Load._make([
                *p.layer_s[row, kind, column].tolist(), *p.layer_room_s[row, kind, column].tolist(),
                *self._parameters(kind),
            ])
            for kind in range(p.layer_s.shape[1]) for mode, column in enumerate(self.columns)
        }  # fmt: skip

    def _parameters(self, part: int) -> list[float]:
        """`PARAMETERS` of a layer kind or an end."""
        return [float(getattr(self.passes, name)[self.row, part]) for name in PARAMETERS]

    @cached_property
    def _ends(self) -> list[_Load]:
        """Of the embedding and of the head."""
        p, row = self.passes, self.row
        return [
            _Load._make([
                *passes[row].tolist(), *p.ends_room_s[row, end].tolist(),
                *self._parameters(end - 2),
            ])
            for end, passes in enumerate((p.embedding_s, p.head_s))
        ]  # fmt: skip

    def reduced_s(self, stages: Sequence[Stage], rank: int, more_room_s: float) -> float:
        """Exposed gradient reduction of `rank` if its last backward hides `more_room_s` more."""
        loads = self._loads(stages)
        held = zip(*(loads[j] for j in self._stages_of_rank[rank]), strict=True)
        sums = [sum(column) for column in held]
        sums[BACKWARD_ROOM] += more_room_s
        return self.reduce_s_of(sums)

    def hidden_more(self, modes: Sequence[int]) -> tuple[float, list[float]]:
        """(a, b[kind]): in any of `modes`, compared with the first, the last backward of a layer of
        a kind hides at most a x (the seconds by which its passes are longer) more, and what b more
        seconds of computing hide.
        """
        p, columns = self.passes, [self.columns[mode] for mode in modes]
        room = p.layer_room_s[self.row][:, columns, BACKWARD]
        longer = p.layer_s[self.row][:, columns].sum(axis=2)
        room, longer = room - room[:, :1], longer - longer[:, :1]
        costs = longer > 0
        share = float((room[costs] / longer[costs]).max(initial=0.0))
        beyond: list[float] = (room - share * longer).max(axis=1).tolist()
        return share * float(self.model.beside.passes), beyond

    def most_hidden(self, modes: Sequence[int]) -> float:
        """How much more of the traffic the last backward hides at most, in seconds for each by
        which a layer's passes are longer in one of `modes` than in another.
        """
        p, columns = self.passes, [self.columns[mode] for mode in modes]
        room = p.layer_room_s[self.row][:, columns, BACKWARD]
        taken = p.layer_s[self.row][:, columns].sum(axis=2)
        more, longer = (each[:, None] - each[:, :, None] for each in (room, taken))
        counts = (longer >= 0) & (more > 0)
        share = np.divide(more, longer, out=np.full_like(more, math.inf), where=longer > 0)
        return float(share[counts].max(initial=0.0)) * float(self.model.beside.passes)

    def reduce_s_of(self, rank: Sequence[float]) -> float:
        """`seconds.reduce_s` of a rank."""
        key = (rank[4], rank[5], rank[6])
        if key not in self._reduced:
            model = self.model
            self._reduced[key] = float(exposed_beside_s(
                self._once_s(rank[5], rank[6]), rank[4],
                model.reduce_overlap, slowed_of(model), model.beside,
            ))  # fmt: skip
        return self._reduced[key]

    def reduced_lines_s(self, stages: Sequence[Stage]) -> list[tuple[tuple[float, float], ...]]:
        """(seconds, passes) of each rank: its exposed reduction is the largest of the seconds, less
        so many times what its last backward hides. All traffic is hidden as far as it may be; or
        that of the chunk that has one pass beside it is not; or none is.
        """
        loads, found = self._loads(stages), []
        for chunks in self._stages_of_rank:
            dense, expert = (sum(loads[j][weights] for j in chunks) for weights in (5, 6))
            shown = self.reduce_s_of((0.0, 0.0, 0.0, 0.0, math.inf, dense, expert))
            whole, beside = self._once_s(dense, expert), self.model.beside
            alone, passes = float(beside.alone), float(beside.passes)
            first = (alone * whole + (1 - alone) * shown, alone)
            found.append(((shown, 0.0), *[first] * (alone < 1), (whole, passes)))
        return found

    def _once_s(self, dense: float, expert: float) -> float:
        """Seconds in which a rank with so many parameters reduces its gradients, hidden or not."""
        if (dense, expert) not in self._sent:
            parameters = RankParameters(dense=dense, expert=expert)
            self._sent[dense, expert] = float(self.model.traffic.once_s(parameters))
        return self._sent[dense, expert]

    def update_s_of(self, rank: Sequence[float]) -> float:
        """`seconds.update_s` of a rank."""
        key = (rank[3], *rank[5:])
        if key not in self._updated:
            model = self.model
            parameters = RankParameters(**dict(zip(PARAMETERS, rank[5:], strict=True)))
            overlap = model.setting.engine.overlap.weight_gather
            gather = model.traffic.refresh_s(parameters)
            self._updated[key] = float(
                model.optimizer_s(parameters)
                + exposed_beside_s(gather, rank[3], overlap, slowed_of(model), model.beside)
            )
        return self._updated[key]
