"""The inner problem of one layout, in integers: layers to virtual stages, and what they recompute.

Times are nanoseconds, memory is KiB (rounded up; the cap is rounded down), the objective is counted
in thirds of a nanosecond so that every schedule's fill is a whole number:

    one chunk per rank    3 step = (3 m - f) X + f sum_j c_j + 3 D          X >= c_j
    several               3 step = (3 m V + f (S - 1)) X + 3 m (E_F + E_L) + 3 D
                          X >= c_j of the body, E_F >= c_0 - X, E_L >= c_last - X

    S, V, m  pipeline ranks, chunks per rank, micro-batches
    c_j      one micro-batch in chunk j: layers, recomputation, transfer, embedding or head
    D        the largest sum of once-per-step costs of a rank, and what no rank escapes
    f        thirds of a chunk that filling and draining cost per rank: 3 forward and backward;
             zb_h1 and zb_v 1, what is left when weight gradients fill the gaps, F + B - W of
             2401.10241 (and the last rank cannot start sooner); dualpipe_v 2, half of
             F&B + B - 3 W per chunk (DualPipe's README); F, B and W counted as a third each

For several chunks the objective is an upper bound of the schedule's length (raise every body chunk
to X; what an end chunk has above X lies at most m times on any path) and exact for equal chunks.
The usual formula with sums is up to 38 % too short on uneven chunks, and a solver finds those.

Memory of rank s and each in-flight vector q (`costmodels.in_flight`):
    sum over its chunks of (states + q_v saved) + its ends + max(transients present) <= cap
and in the optimizer step, when nothing is in flight, states + update <= cap.
In a chunk the first `full` layers recompute in full, the next `selective` ones selectively.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.in_flight import Vector
from costmodels.layout import Schedule, Stage
from planner.pipeline_shape import PipelineShape, pipeline_shape

FILL_THIRDS: dict[Schedule, int] = {
    "gpipe": 3,
    "1f1b": 3,
    "interleaved_1f1b": 3,
    "zb_h1": 1,
    "zb_v": 1,
    "dualpipe_v": 2,
}
THIRDS_PER_S = 3e9
Number = TypeVar("Number", int, NDArray[np.int64])


class Limits(NamedTuple, Generic[Number]):
    """What an objective below a cutoff leaves: the most of X and of an end chunk's c_j, and the
    least of X.
    """

    slowest_ns: Number
    end_ns: Number
    least_slowest_ns: Number


def weight_of(schedule: Schedule, pp: int, vpp: int, m: Number) -> Number:
    """What the objective multiplies X by."""
    fill = FILL_THIRDS[schedule]
    return 3 * m - fill if vpp == 1 else 3 * m * vpp + fill * (pp - 1)


def chunk_limits(
    budget: Number, work_ns: Number, *, m: Number, weight: Number, chunks: int
) -> Limits[Number]:
    """V > 1: necessary conditions for weight X + 3 m E <= `budget` (thirds of a nanosecond)."""
    slowest = budget // weight
    # (S V) X + E >= all work and weight X + 3 m E <= budget together keep X from being small.
    slope = 3 * m * chunks - weight
    least = np.where(slope > 0, -((budget - 3 * m * work_ns) // np.maximum(1, slope)), 0)
    least = np.maximum(0, least)
    end = slowest + np.maximum(0, budget - weight * least) // (3 * m)
    return Limits(slowest, end, least)


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
class StepParts:
    """Seconds of a step by cause; they add up to the objective.

    work_s       what the mean rank does without recomputation: layers and ends, with the exposed
                 communication inside layers
    send_s       exposed transfers between stages, mean rank
    recompute_s  recomputation, mean rank
    imbalance_s  waiting for the slowest stage
    bubble_s     filling and draining the pipeline
    step_end_s   once per step: exposed gradient and weight communication, optimizer
    """

    work_s: float
    send_s: float
    recompute_s: float
    imbalance_s: float
    bubble_s: float
    step_end_s: float

    @property
    def total_s(self) -> float:
        """The step time."""
        return (
            self.work_s
            + self.send_s
            + self.recompute_s
            + self.imbalance_s
            + self.bubble_s
            + self.step_end_s
        )


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A solved inner problem: the virtual stages in model order and what they cost.

    objective  thirds of a nanosecond
    peak_kib   by pipeline rank, `StageProblem.fixed_kib` included, allocator slack not
    """

    stages: tuple[Stage, ...]
    objective: int
    peak_kib: tuple[int, ...]
    parts: StepParts


@dataclass(frozen=True, kw_only=True)
class StageProblem:
    """Everything that the inner problem of one layout depends on.

    pattern      the kind of each layer in model order
    modes        the recompute modes that layers may have (0 none, 1 selective, 2 full), ascending
    layer_ns, saved_kib   by kind and mode       state_kib, update_kib, step_ns  by kind
    transient_kib         by mode; a rank pays the largest one present, or its head's if larger
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
    splits: tuple[tuple[int, ...], ...] | None = None
    empty_ends: bool = False

    @property
    def chunks(self) -> int:
        """Virtual stages in all."""
        return self.pp * self.vpp

    @property
    def fill(self) -> int:
        """f of the objective."""
        return FILL_THIRDS[self.schedule]

    @property
    def weight(self) -> int:
        """What the objective multiplies X by."""
        return weight_of(self.schedule, self.pp, self.vpp, self.m)

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
        """A lower bound of D: the mean over ranks of the once-per-step costs."""
        layers = sum(n * d for n, d in zip(self.kind_counts, self.step_ns, strict=True))
        mean = -(-(layers + self.embedding.step_ns + self.head.step_ns) // self.pp)
        return mean + self.fixed_step_ns

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Every price: where none is larger, every plan fits and none is slower."""
        tables = (*self.layer_ns, *self.saved_kib, self.state_kib, self.update_kib, self.step_ns,
                  self.transient_kib)  # fmt: skip
        ends = ((e.ns, e.saved_kib, e.state_kib, e.step_ns, e.transient_kib, e.update_kib)
                for e in (self.embedding, self.head))  # fmt: skip
        alone = (self.send_ns, self.fixed_kib, self.fixed_step_ns)
        return (*chain.from_iterable(tables), *chain.from_iterable(ends), *alone)

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
    objective = objective_of(problem, times, end_ns + problem.fixed_step_ns)
    parts = _parts(problem, times, end_ns + problem.fixed_step_ns, objective)
    return StagePlan(stages, objective, peaks, parts)


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
    """The objective of chunks that take `times` (ns) and once-per-step costs `end_ns`."""
    if problem.vpp == 1:
        return problem.weight * max(times) + problem.fill * sum(times) + 3 * end_ns
    slowest = max(times[1:-1])
    # X may also rise above the body to spare an end chunk.
    candidates = (slowest, max(slowest, times[0]), max(slowest, times[-1]))
    return 3 * end_ns + min(
        problem.weight * x + 3 * problem.m * (max(0, times[0] - x) + max(0, times[-1] - x))
        for x in candidates
    )


def _parts(problem: StageProblem, times: list[int], end_ns: int, objective: int) -> StepParts:
    total, send = sum(times), problem.chunks * problem.send_ns
    recompute = total - problem.least_work_ns
    per_rank = 3 * problem.m / problem.pp
    bubble = problem.fill * (problem.pp - 1) * total / (problem.pp * problem.vpp)
    rest = objective - 3 * end_ns - per_rank * total - bubble
    thirds = (per_rank * (total - send - recompute), per_rank * send, per_rank * recompute)
    work_s, send_s, recompute_s = (part / THIRDS_PER_S for part in thirds)
    return StepParts(
        work_s,
        send_s,
        recompute_s,
        rest / THIRDS_PER_S,
        bubble / THIRDS_PER_S,
        3 * end_ns / THIRDS_PER_S,
    )
