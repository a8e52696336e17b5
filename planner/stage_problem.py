"""The inner problem of one layout, in integers: layers to virtual stages, and what they recompute.

Times are nanoseconds, memory is KiB (rounded up; the cap is rounded down). The objective is that of
`planner.closed_form`.

Memory of rank s and each in-flight vector q (`costmodels.in_flight`):
    sum over its chunks of (states + q_v saved) + its ends + max(transients present) <= cap
and in the optimizer step, when nothing is in flight, states + update <= cap.
In a chunk the first `full` layers recompute in full, the next `selective` ones selectively.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np

from costmodels.in_flight import V_SHAPED, Vector
from costmodels.layout import Schedule, Stage
from planner.closed_form import ClosedForm, Passes, closed_form
from planner.pipeline_shape import PipelineShape, pipeline_shape


@dataclass(frozen=True, slots=True)
class End:
    """What the embedding or the head adds to the stage that holds it."""

    ns: int = 0
    saved_kib: int = 0
    state_kib: int = 0
    step_ns: int = 0
    transient_kib: int = 0
    update_kib: int = 0


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A solved inner problem: the virtual stages in model order and what they cost.

    objective  nanoseconds
    peak_kib   by pipeline rank, `StageProblem.fixed_kib` included, allocator slack not
    """

    stages: tuple[Stage, ...]
    objective: int
    peak_kib: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StageProblem:
    """Everything that the inner problem of one layout depends on.

    pattern      the kind of each layer in model order
    modes        the recompute modes that layers may have (0 none, 1 selective, 2 full), ascending
    layer_ns, saved_kib   by kind and mode       state_kib, update_kib, step_ns  by kind
    transient_kib         by mode; a rank pays the largest one present, or its head's if larger
    passes_ns    of the whole model, transfers apart
    splits       the layers per stage to choose from, None for any
    empty_ends   the first and the last of several stages may hold no layer
    """

    pattern: tuple[int, ...]
    schedule: Schedule
    pp: int
    vpp: int
    m: int
    modes: tuple[int, ...]
    layer_ns: tuple[tuple[int, ...], ...]
    saved_kib: tuple[tuple[int, ...], ...]
    state_kib: tuple[int, ...]
    update_kib: tuple[int, ...]
    step_ns: tuple[int, ...]
    transient_kib: tuple[int, ...]
    embedding: End
    head: End
    send_ns: int
    fixed_kib: int
    cap_kib: int
    fixed_step_ns: int
    passes_ns: Passes[int]
    splits: tuple[tuple[int, ...], ...] | None = None
    empty_ends: bool = False

    @property
    def chunks(self) -> int:
        """Virtual stages in all."""
        return self.pp * self.vpp

    @cached_property
    def form(self) -> ClosedForm[int]:
        """The coefficients of the objective."""
        half = self.chunks * self.send_ns // 2
        forward, backward, weight = self.passes_ns
        passes = Passes(forward + half, backward + half, weight)
        form = closed_form(self.schedule, self.pp, self.vpp, self.m, passes)
        return ClosedForm(int(form.weight), int(form.over), form.under, int(form.constant_ns))

    @property
    def constant_ns(self) -> int:
        """What the objective holds whatever the plan."""
        return self.form.constant_ns + self.fixed_step_ns

    @cached_property
    def shape(self) -> PipelineShape:
        """Who holds which chunk, and how often at once."""
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
    def kind_counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.pattern.count(kind) for kind in range(len(self.state_kib)))

    @cached_property
    def least_work_ns(self) -> int:
        """The sum of all c_j when every layer has its fastest mode."""
        layers = sum(
            count * min(times[mode] for mode in self.modes)
            for count, times in zip(self.kind_counts, self.layer_ns, strict=True)
        )
        return layers + self.embedding.ns + self.head.ns + self.chunks * self.send_ns

    @cached_property
    def least_end_ns(self) -> int:
        """The mean over ranks of the once-per-step costs, and what the objective always holds."""
        layers = sum(n * d for n, d in zip(self.kind_counts, self.step_ns, strict=True))
        mean = -(-(layers + self.embedding.step_ns + self.head.step_ns) // self.pp)
        return mean + self.constant_ns

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Every price: where none is larger, every plan fits and none is slower."""
        tables = (*self.layer_ns, *self.saved_kib, self.state_kib, self.update_kib, self.step_ns,
                  self.transient_kib)  # fmt: skip
        ends = ((e.ns, e.saved_kib, e.state_kib, e.step_ns, e.transient_kib, e.update_kib)
                for e in (self.embedding, self.head))  # fmt: skip
        alone = (self.send_ns, self.fixed_kib, self.constant_ns, self.form.over)
        return (*chain.from_iterable(tables), *chain.from_iterable(ends), *alone)

    @cached_property
    def least_chunk_ns(self) -> int:
        """What the slowest chunk of any row lasts at least; of two in a rank one may be empty."""
        layer = min(min(times[mode] for mode in self.modes) for times in self.layer_ns)
        return self.send_ns + (0 if self.schedule in V_SHAPED else layer)

    def fewest_layers(self, chunk: int) -> int:
        """The layers that virtual stage `chunk` holds at least."""
        end = chunk in (0, self.chunks - 1) and self.chunks > 1
        return 0 if end and self.empty_ends else 1


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
