"""The stages of one layout: what each costs for a micro-batch, and the parameters that it holds.

`StageModel` lists the operations of each layer kind and of the two ends once and prices them;
`step_time` plays the schedule over its stages, `step_memory` adds up what its ranks hold.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, reduce
from operator import add
from typing import Self, TypeVar

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.ranks.beside import Lasting, beside
from meshplan.costmodels.ranks.first_stage import tower_cost
from meshplan.costmodels.ranks.memory import constant_slack_bytes
from meshplan.costmodels.ranks.queued_launches import held_pairs, run_ahead
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.seconds.chunk_traffic import Beside, beside_chunks
from meshplan.costmodels.seconds.cost import NOTHING, Cost
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.weights.offload import copies_of_gradients

T = TypeVar("T")
LayerCounts = tuple[tuple[tuple[int, str], int], ...]  # how many of each kind and recompute mode
Ends = tuple[int, ...]
EMBEDDING = 0  # the place of the embedding, and of the tower, among the ends


class StageModel(Rank):
    """The costs and parameters of the stages of one layout in one setting, computed once."""

    layout: Layout
    LISTED = (*Rank.LISTED, "_stage_contents", "stages_of_rank", "_like_rank")

    def __init__(self, setting: Setting, layout: Layout) -> None:
        super().__init__(setting, layout)
        self._whole_costs: dict[tuple[int, str], Cost] = {}

    def with_stages(self, layout: Layout) -> Self:
        """The same under a `layout` that differs in its stages alone: what a rank computes, sends
        and holds of one layer, and of the ends, is listed and priced once for both.
        """
        other = type(self)(self.setting, layout)
        vars(other).update(self._of_each_rank(), _whole_costs=self._whole_costs)
        return other

    @cached_property
    def m(self) -> int:
        """Micro-batches per replica and step."""
        return self.layout.num_micro_batches(self.setting.training)

    @cached_property
    def beside(self) -> Beside:
        """What a rank computes beside its traffic of weights and gradients once per step."""
        la, habit = self.layout, self.setting.engine.overlap.beside_chunks
        return beside_chunks(habit, la.schedule, la.pipeline_parallel, la.virtual_stages, self.m)

    @cached_property
    def held_pairs(self) -> Number:
        """Pairs of whole tensors that its ranks' allocators hold."""
        if self.layout.tensor_parallel == 1 or self.layout.pipeline_parallel == 1:
            return 0.0
        return held_pairs(self, self.m, run_ahead(self))

    @cached_property
    def constant_slack_bytes(self) -> float:
        """What its ranks' allocators reserve however much they hold."""
        return float(constant_slack_bytes(self, self.held_pairs))

    def layer_cost(self, kind: int, mode: str) -> Cost:
        """One layer of `kind` under recompute `mode`, with what its weights send meanwhile."""
        if (kind, mode) not in self._whole_costs:
            plain = self.plain_cost(kind, mode)
            self._whole_costs[kind, mode] = self._with_weights(
                plain, self.layer_parameters(kind), saved_bytes=plain.saved_bytes,
                again=self.gathered_again(kind, mode),
            )  # fmt: skip
        return self._whole_costs[kind, mode]

    def _with_weights(
        self, plain: Cost, parameters: RankParameters, *, saved_bytes: Number, again: Number
    ) -> Cost:
        """`plain` and what it does not hide of the traffic and the copies of its weights."""
        forward, backward = beside(
            self.setting,
            self.layout,
            self.sent(parameters, again=again),
            Lasting(plain.forward.total_s, plain.forward.room_s),
            Lasting(plain.backward_s, plain.backward_room_s),
            saved_s=self.host.activations_s(saved_bytes) if self.host else 0.0,
            copies=copies_of_gradients(self.m),
        )
        return replace(
            plain, forward=plain.forward + forward, input_grad=plain.input_grad + backward
        )

    @cached_property
    def stage_saved_bytes(self) -> tuple[float, ...]:
        """What each virtual stage keeps of a micro-batch, as in `stage_costs`."""
        return self._by_contents(self.saved_bytes)

    def saved_bytes(self, layers: LayerCounts, ends: Ends) -> float:
        """What a virtual stage with these layers and ends keeps of a micro-batch."""
        saved = sum(float(self.layer_saved_bytes(*key)) * count for key, count in layers)
        for end in ends:
            saved += float(self.pricer.saved_bytes(self.end_operations[end]))
        if EMBEDDING in ends:
            saved += float(tower_cost(self.site, self.pricer, self.setting).saved_bytes)
        return saved

    @cached_property
    def stage_of_end(self) -> tuple[int, ...]:
        """The virtual stage of each of `ends`."""
        last = len(self.layout.stages) - 1
        before = max(last - self.layout.modules_apart, 0)
        return (0, last, before) if self.has_modules else (0, last)

    @cached_property
    def stage_costs(self) -> tuple[Cost, ...]:
        """The cost of each virtual stage and micro-batch."""
        return self._by_contents(self._stage_cost)

    def _stage_cost(self, layers: LayerCounts, ends: Ends) -> Cost:
        parts = [self.layer_cost(*key) * count for key, count in layers]
        for part in self._ends_together:
            if held := [end for end in part if end in ends]:
                parts.append(self.ends_cost(held))
        return reduce(add, parts) if parts else NOTHING

    @property
    def _ends_together(self) -> tuple[tuple[int, ...], ...]:
        """The ends by what hides the traffic of their weights together."""
        return ((0,), (1,), (2,)) if self.setting.places_modules else ((0,), (1, 2))

    @cached_property
    def sends_outputs(self) -> tuple[tuple[bool, bool], ...]:
        """Whether each stage hands on what prediction modules put out, and the gradient back."""
        apart = self.has_modules and self.stage_of_end[2] != self.stage_of_end[1]
        return tuple(
            (apart and index == self.stage_of_end[2], apart and index == self.stage_of_end[1])
            for index in range(len(self.layout.stages))
        )

    @cached_property
    def waits_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds for which each stage's forward, and each stage's backward, waits for what it
        hands on: the last one's forward and the first one's backward have nobody to hand it to.
        """
        hop_s, outputs_s = float(self.hops.blocking_s), float(self.hops.module_outputs_s)
        last = len(self.layout.stages) - 1
        forward, backward = zip(*self.sends_outputs, strict=True)
        return (
            tuple(hop_s * (at < last) + outputs_s * sends for at, sends in enumerate(forward)),
            tuple(hop_s * (at > 0) + outputs_s * sends for at, sends in enumerate(backward)),
        )

    @cached_property
    def rank_costs(self) -> tuple[Cost, ...]:
        """The cost of each pipeline rank and micro-batch, all its stages together."""
        return self.by_rank(
            lambda rank: reduce(add, map(self.stage_costs.__getitem__, self.stages_of_rank[rank]))
        )

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
        plain = reduce(add, map(self.ends.__getitem__, ends))
        parameters = reduce(add, map(self.end_parameters.__getitem__, ends))
        return self._with_weights(plain, parameters, saved_bytes=0.0, again=0.0)

    @cached_property
    def stage_counts(self) -> tuple[dict[tuple[int, str], int], ...]:
        """How many layers of (kind, recompute mode) each virtual stage holds, in model order."""
        kinds = iter(self.setting.model.pattern)
        return tuple(
            Counter((next(kinds), mode) for mode in stage.modes) for stage in self.layout.stages
        )

    @cached_property
    def _stage_contents(self) -> tuple[tuple[LayerCounts, Ends], ...]:
        """What each virtual stage holds."""
        return tuple(
            (
                tuple(counts.items()),
                tuple(end for end, stage in enumerate(self.stage_of_end) if stage == index),
            )
            for index, counts in enumerate(self.stage_counts)
        )

    def _by_contents(self, function: Callable[[LayerCounts, Ends], T]) -> tuple[T, ...]:
        """The function of what each virtual stage holds, once where several hold the same."""
        known = {each: function(*each) for each in dict.fromkeys(self._stage_contents)}
        return tuple(known[each] for each in self._stage_contents)

    @cached_property
    def _like_rank(self) -> tuple[int, ...]:
        """For each pipeline rank the first one whose stages hold the same."""
        first: dict[object, int] = {}
        held = ([self._stage_contents[i] for i in stages] for stages in self.stages_of_rank)
        return tuple(first.setdefault(tuple(each), rank) for rank, each in enumerate(held))

    def by_rank(self, function: Callable[[int], T]) -> tuple[T, ...]:
        """The function of each pipeline rank, once where several hold the same: of what does not
        depend on how many micro-batches a rank has in flight.
        """
        known = {rank: function(rank) for rank in dict.fromkeys(self._like_rank)}
        return tuple(known[rank] for rank in self._like_rank)

    @cached_property
    def stage_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each virtual stage on one rank."""
        return self._by_contents(self._stage_parameters)

    def _stage_parameters(self, layers: LayerCounts, ends: Ends) -> RankParameters:
        parts = [self.layer_parameters(kind) * count for (kind, _), count in layers]
        parts += [self.end_parameters[end] for end in ends]
        return reduce(add, parts) if parts else RankParameters(dense=0.0)

    @cached_property
    def rank_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each pipeline rank."""
        held = self.stage_parameters
        return self.by_rank(
            lambda rank: reduce(add, map(held.__getitem__, self.stages_of_rank[rank]))
        )

    def rank_of(self, stage: int) -> int:
        """The pipeline rank of a virtual stage."""
        return rank_of_chunk(self.layout.schedule, self.layout.pipeline_parallel, stage)

    @cached_property
    def total_cost(self) -> Cost:
        """All layers and both ends on all ranks, for the whole step (its seconds add up over
        ranks).
        """
        total = NOTHING
        for cost in self.stage_costs:
            total = total + cost
        return total * (self.m * self.layout.stage_ranks)
