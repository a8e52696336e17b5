"""The stages of one layout: what each costs for a micro-batch, and the parameters that it holds.

`StageModel` lists the operations of each layer kind and of the two ends once and prices them;
`step_time` plays the schedule over its stages, `step_memory` adds up what its ranks hold.
"""

from collections import Counter
from dataclasses import replace
from functools import cached_property

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.seconds.cost import NOTHING, Cost
from meshplan.costmodels.step.beside import beside
from meshplan.costmodels.step.first_stage import tower_cost
from meshplan.costmodels.step.queued_launches import held_pairs, run_ahead
from meshplan.costmodels.step.ranks import Rank
from meshplan.costmodels.step.setting import Setting
from meshplan.costmodels.weights.offload import copies_of_gradients


class StageModel(Rank):
    """The costs and parameters of the stages of one layout in one setting, computed once."""

    layout: Layout

    def __init__(self, setting: Setting, layout: Layout) -> None:
        super().__init__(setting, layout)
        self._whole_costs: dict[tuple[int, str], Cost] = {}

    @cached_property
    def m(self) -> int:
        """Micro-batches per replica and step."""
        return self.layout.num_micro_batches(self.setting.training)

    @cached_property
    def held_pairs(self) -> Number:
        """Pairs of whole tensors that its ranks' allocators hold."""
        return held_pairs(self, self.m, run_ahead(self))

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
            plain.forward.room_s,
            plain.backward_room_s,
            saved_s=self.host.activations_s(saved_bytes) if self.host else 0.0,
            copies=copies_of_gradients(self.m),
        )
        return plain + replace(NOTHING, forward=forward, input_grad=backward)

    @cached_property
    def stage_saved_bytes(self) -> tuple[float, ...]:
        """What each virtual stage keeps of a micro-batch, as in `stage_costs`."""
        saved = [
            sum(float(self.layer_saved_bytes(*key)) * count for key, count in counts.items())
            for counts in self.stage_counts
        ]
        for operations, stage in zip(self.end_operations, self.stage_of_end, strict=True):
            saved[stage] += float(self.pricer.saved_bytes(operations))
        saved[0] += float(tower_cost(self.site, self.pricer, self.setting).saved_bytes)
        return tuple(saved)

    @cached_property
    def stage_of_end(self) -> tuple[int, ...]:
        """The virtual stage of each of `ends`."""
        last = len(self.layout.stages) - 1
        before = max(last - self.layout.modules_apart, 0)
        return (0, last, before) if self.has_modules else (0, last)

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
        for part in self._ends_together:
            if held := [end for end in part if end in ends]:
                cost = cost + self.ends_cost(held)
        return cost

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
        return self._with_weights(plain, parameters, saved_bytes=0.0, again=0.0)

    @cached_property
    def stage_counts(self) -> tuple[dict[tuple[int, str], int], ...]:
        """How many layers of (kind, recompute mode) each virtual stage holds, in model order."""
        kinds = iter(self.setting.model.pattern)
        return tuple(
            Counter((next(kinds), mode) for mode in stage.modes) for stage in self.layout.stages
        )

    @cached_property
    def stage_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each virtual stage on one rank."""
        result = []
        for counts in self.stage_counts:
            total = RankParameters(dense=0.0)
            for (kind, _), count in counts.items():
                total += self.layer_parameters(kind) * count
            result.append(total)
        for end, stage in enumerate(self.stage_of_end):
            result[stage] += self.end_parameters[end]
        return tuple(result)

    @cached_property
    def rank_parameters(self) -> tuple[RankParameters, ...]:
        """Parameters of each pipeline rank."""
        totals = [RankParameters(dense=0.0)] * self.layout.pipeline_parallel
        for index, parameters in enumerate(self.stage_parameters):
            totals[self.rank_of(index)] += parameters
        return tuple(totals)

    def rank_of(self, stage: int) -> int:
        """The pipeline rank of a virtual stage."""
        return rank_of_chunk(self.layout.schedule, self.layout.pipeline_parallel, stage)

    @cached_property
    def total_cost(self) -> Cost:
        """All layers and both ends on all ranks, for the whole step (its seconds add up over
        ranks).
        """
        la, total = self.layout, NOTHING
        for cost in self.stage_costs:
            total = total + cost
        return total * (self.m * la.data_parallel * la.context_parallel * la.tensor_parallel)
