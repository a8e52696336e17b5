"""The inner problem of one layout, in integers: layers to virtual stages, and what they recompute.

Times are nanoseconds, memory is KiB (rounded up; the cap is rounded down). The objective is that of
`planner.problem.closed_form`.

Memory of rank s and each in-flight vector q (`costmodels.schedule.in_flight`):
    sum over its chunks of (states + q_v saved) + its ends + max(transients present) <= cap
and in the optimizer step, when nothing is in flight, states + update <= cap.
In a chunk the first `full` layers recompute in full, the next `selective` ones selectively.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.schedule.in_flight import Vector
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.problem.closed_form import ClosedForm
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.pipeline_shape import PipelineShape, pipeline_shape
from meshplan.planner.problem.same_pipeline import Pipelines, SamePipeline, run_as
from meshplan.planner.space.legal_layouts import Space, Variant


@dataclass(frozen=True, slots=True)
class End:
    """What the embedding or the head adds to the stage that holds it."""

    ns: int = 0
    saved_kib: int = 0
    state_kib: int = 0
    step_ns: int = 0
    transient_kib: int = 0
    update_kib: int = 0

    @classmethod
    def of(cls, *columns: Ints | None) -> Self:
        """Built from one-row `columns` in the order of the fields."""
        return cls(*(0 if column is None else _only(column) for column in columns))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A solved inner problem: the virtual stages in model order and what they cost.

    objective  nanoseconds
    peak_kib   by pipeline rank, `StageProblem.fixed_kib` included, allocator slack not
    """

    stages: tuple[Stage, ...]
    objective: int
    peak_kib: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProblem(Pipelines):
    """Everything that the inner problem of one layout depends on; `prices` has one row.

    layer_ns, saved_kib   by kind and mode       state_kib, update_kib, step_ns  by kind
    transient_kib         by mode; a rank pays the largest one present, or its head's if larger
    """

    m: int

    @cached_property
    def alone(self) -> SamePipeline:
        """This problem as a `SamePipeline` with one layout."""
        shared = {field.name: getattr(self, field.name) for field in fields(Pipelines)}
        return SamePipeline(**shared, m=np.array([self.m]))

    @cached_property
    def layer_ns(self) -> tuple[tuple[int, ...], ...]:
        """ns of one layer and micro-batch, [kind, mode]."""
        return tuple(map(tuple, self.prices.layer_ns[0].tolist()))

    @cached_property
    def saved_kib(self) -> tuple[tuple[int, ...], ...]:
        """Kept by one layer of one micro-batch."""
        return tuple(map(tuple, self.prices.layer_saved_kib[0].tolist()))

    @cached_property
    def state_kib(self) -> tuple[int, ...]:
        """Weights, gradients and optimizer state of one layer."""
        return tuple(self.prices.layer_state_kib[0].tolist())

    @cached_property
    def update_kib(self) -> tuple[int, ...]:
        """Held for one layer in the optimizer step."""
        return tuple(self.prices.layer_update_kib[0].tolist())

    @cached_property
    def step_ns(self) -> tuple[int, ...]:
        """ns of one layer once per step, by kind."""
        return tuple(self.prices.layer_step_ns[0].tolist())

    @cached_property
    def transient_kib(self) -> tuple[int, ...]:
        """Held while some layer of a mode runs."""
        return tuple(self.prices.transient_kib[0].tolist())

    @cached_property
    def embedding(self) -> End:
        """The first stage's end."""
        c = self.prices
        return End.of(c.embedding_ns, c.embedding_saved_kib, c.embedding_state_kib,
                      c.embedding_step_ns, None, c.embedding_update_kib)  # fmt: skip

    @cached_property
    def head(self) -> End:
        """The last stage's end."""
        c = self.prices
        return End.of(c.head_ns, c.head_saved_kib, c.head_state_kib,
                      c.head_step_ns, c.head_transient_kib, c.head_update_kib)  # fmt: skip

    @cached_property
    def send_ns(self) -> int:
        """ns that one chunk's transfer of one micro-batch is exposed."""
        return int(self.prices.send_ns[0])

    @cached_property
    def fixed_kib(self) -> int:
        """Held by every rank."""
        return int(self.prices.fixed_kib[0])

    @property
    def cap_kib(self) -> int:
        """What a rank may hold."""
        return self.prices.cap_kib

    @cached_property
    def form(self) -> ClosedForm[int]:
        """The coefficients of the objective."""
        form = self.alone.form
        weight, over, constant_ns = map(_only, (form.weight, form.over, form.constant_ns))
        return ClosedForm(weight, over, form.under, constant_ns)

    @cached_property
    def constant_ns(self) -> int:
        """The part of the objective that no plan changes."""
        return self.form.constant_ns + _only(self.prices.fixed_step_ns)

    @cached_property
    def shape(self) -> PipelineShape:
        """Which rank holds which chunk, and the micro-batches in flight there."""
        return pipeline_shape(self.schedule, self.pp, self.vpp, self.m)

    @property
    def in_flight(self) -> tuple[tuple[Vector, ...], ...]:
        """Micro-batches held, by rank, as vectors over the rank's chunks."""
        return self.shape.in_flight

    @property
    def chunks_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """The virtual stages of each pipeline rank, in model order."""
        return self.shape.chunks_of_rank

    @cached_property
    def uniform(self) -> bool:
        """Whether all layers are of one kind."""
        return len(set(self.pattern)) == 1

    @cached_property
    def least_work_ns(self) -> int:
        """The sum of all c_j when every layer has its fastest mode."""
        return _only(self.alone.least_work_ns)

    @cached_property
    def least_end_ns(self) -> int:
        """The mean over ranks of the once-per-step costs, and what the objective always holds."""
        return _only(self.alone.least_end_ns)


def stage_problem(space: Space, coefficients: Priced, row: int, variant: Variant) -> StageProblem:
    """The inner problem of `row` run as `variant`."""
    alone = run_as(space, coefficients, np.array([row]), variant)
    shared = {field.name: getattr(alone, field.name) for field in fields(Pipelines)}
    return StageProblem(**shared, m=_only(alone.m))


def _only(column: Any) -> int:
    """The number that a scalar or a column of one row holds."""
    return int(column[0] if np.ndim(column) else column)


def evaluate(problem: StageProblem, stages: tuple[Stage, ...]) -> StagePlan | None:
    """Price `stages` layer by layer, apart from any solver; None if a rank does not fit."""
    modes, starts = [modes_of(stage) for stage in stages], starts_of(stages)
    peaks = tuple(peak_kib(problem, s, starts, modes) for s in range(problem.pp))
    if max(peaks) > problem.cap_kib:
        return None
    times = chunk_times_ns(problem, stages, modes)
    end_ns = max(_step_end_ns(problem, s, stages) for s in range(problem.pp))
    return StagePlan(stages, objective_of(problem, times, end_ns), peaks)


def modes_of(stage: Stage) -> list[int]:
    """The recompute mode of each layer of `stage`."""
    kept = stage.layers - stage.full_layers - stage.selective_layers
    return [2] * stage.full_layers + [1] * stage.selective_layers + [0] * kept


def least_recomputed(problem: StageProblem, counts: Sequence[int]) -> tuple[Stage, ...]:
    """Stages of so many layers, all in the mode that recomputes least."""
    least = min(problem.modes)
    return tuple(Stage(n, n if least == 1 else 0, n if least == 2 else 0) for n in counts)


def starts_of(stages: tuple[Stage, ...]) -> list[int]:
    """The first layer of each stage, and the end of the last."""
    return [0, *accumulate(stage.layers for stage in stages)]


def chunk_times_ns(
    problem: StageProblem, stages: tuple[Stage, ...], modes: list[list[int]]
) -> list[int]:
    """Nanoseconds of one micro-batch in each virtual stage."""
    starts = starts_of(stages)
    times = []
    for j, layer_modes in enumerate(modes):
        kinds = problem.pattern[starts[j] : starts[j + 1]]
        layers = sum(problem.layer_ns[k][r] for k, r in zip(kinds, layer_modes, strict=True))
        times.append(problem.send_ns + layers)
    times[0] += problem.embedding.ns
    times[-1] += problem.head.ns
    return times


def peak_kib(
    problem: StageProblem,
    rank: int,
    starts: list[int],
    modes: Sequence[list[int]] | Mapping[int, list[int]],
) -> int:
    """The largest KiB that `rank` holds at once, given its chunks' first layers and their modes."""
    last = problem.chunks - 1
    static, transient, update, saved = problem.fixed_kib, 0, 0, []
    for j in problem.chunks_of_rank[rank]:
        kinds = problem.pattern[starts[j] : starts[j + 1]]
        static += sum(problem.state_kib[kind] for kind in kinds)
        update += sum(problem.update_kib[kind] for kind in kinds)
        kept = sum(problem.saved_kib[k][r] for k, r in zip(kinds, modes[j], strict=True))
        transient = max(transient, *(problem.transient_kib[r] for r in modes[j]), 0)
        for end, holder in ((problem.embedding, 0), (problem.head, last)):
            if j == holder:
                static += end.state_kib
                update += end.update_kib
                kept += end.saved_kib
                transient = max(transient, end.transient_kib)
        saved.append(kept)
    held = int((problem.shape.matrices[rank] @ np.array(saved)).max())
    return static + max(held + transient, update)


def _step_end_ns(problem: StageProblem, rank: int, stages: tuple[Stage, ...]) -> int:
    starts, last, total = starts_of(stages), problem.chunks - 1, 0
    for j in problem.chunks_of_rank[rank]:
        total += sum(problem.step_ns[kind] for kind in problem.pattern[starts[j] : starts[j + 1]])
        total += problem.embedding.step_ns if j == 0 else 0
        total += problem.head.step_ns if j == last else 0
    return total


def objective_of(problem: StageProblem, times: list[int], end_ns: int) -> int:
    """The objective of chunks that take `times` (ns); `end_ns` is the largest once-per-step sum."""
    slowest = sum(
        max(sum(times[j] for j in chunks) for chunks in group) for group in problem.shape.waits
    )
    form = problem.form
    return form.weight * slowest + int(form.share_ns(sum(times))) + end_ns + problem.constant_ns
