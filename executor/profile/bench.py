"""Times calls on this rank's device, in step with the other ranks.

Every rank runs the same measurements at the same time: GPUs of a node share power and cooling, CPU
ranks share memory and cores, and a layout loads all of them too. After each batch of repeats the
ranks exchange their samples, so that all see the same numbers and stop at the same one.
CUDA (and ROCm, by the same calls) is timed by events on the stream, the CPU by its clock. On a CPU
the system may run something else in the middle of a sample: then the processor time counts, or the
sample is set aside as an outlier where that would not do (several threads, collectives).
"""

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from executor.profile.statistics import MIN_REPEATS, Summary, confident, summarise

SAMPLE_S = (
    1e-3  # a sample repeats shorter calls up to this, so that the clock's grain is below 0.1 %
)
MAX_BATCH = 10
BATCH_S = 10e-3  # or as many samples as fit into this, if they are more
LONG_S = 0.1

Call = Callable[[], object]


def preemptions() -> int:
    """How often the system took a processor from this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def undisturbed(samples: Sequence[float]) -> list[float]:
    """The samples during which nothing else ran (see `Bench.samples`); all if they are too few."""
    quiet = [seconds for seconds in samples if seconds > 0]
    return quiet if len(quiet) >= MIN_REPEATS else [abs(seconds) for seconds in samples]


def slowest(rows: Sequence[Sequence[float]]) -> list[float]:
    """For each repeat, the slowest rank's seconds, negative if any rank was disturbed."""
    return [math.copysign(max(map(abs, column)), min(column)) for column in zip(*rows, strict=True)]


def stream_event() -> torch.cuda.Event:
    """A mark on a GPU stream whose time can be read."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured: the repeats summed up, and the median of every rank."""

    summary: Summary
    rank_seconds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return self.summary.median_s


@dataclass(slots=True)
class Bench:
    """This rank and its device.

    control      a gloo group of all ranks for exchanging samples, None for a single process
    uncertainty  stop once the median is known to this fraction
    budget_s     stop at the latest after so many seconds; the session sets it per measurement
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    control: "dist.ProcessGroup | None" = None
    uncertainty: float = 0.02
    budget_s: float = 1.0

    @property
    def nodes(self) -> int:
        """Hosts taking part."""
        return self.world_size // self.ranks_per_node

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU (CUDA or ROCm)."""
        return self.device.type == "cuda"

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def once_s(self, call: Call, iterations: int = 1) -> float:
        """Seconds of one `call`, the mean of `iterations` back to back."""
        if not self.is_cuda:
            start = time.perf_counter()
            for _ in range(iterations):
                call()
            return (time.perf_counter() - start) / iterations
        begin, end = stream_event(), stream_event()
        begin.record()
        for _ in range(iterations):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / iterations

    def everywhere(self, values: Sequence[float]) -> list[list[float]]:
        """`values` of every rank, in rank order; all ranks must pass as many."""
        if self.control is None:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(rows, own, group=self.control)
        return [row.tolist() for row in rows]

    def samples(
        self, call: Call, iterations: int, repeats: int, *, alone: bool = True
    ) -> list[float]:
        """Seconds of each repeat, negative where the system ran something else in between.

        alone  the call waits for nobody: with a single thread, the processor time of a disturbed
               repeat is then what it takes on a processor of its own, and is used instead
        """
        found = []
        for _ in range(repeats):
            before, used_s = preemptions(), time.thread_time()
            seconds = self.once_s(call, iterations)
            used_s = (time.thread_time() - used_s) / iterations
            if self.is_cuda or preemptions() == before:
                found.append(seconds)
            elif alone and torch.get_num_threads() == 1:
                found.append(used_s)
            else:
                found.append(-seconds)
        return found

    def measure(self, call: Call, *, together: bool = False) -> Timing:
        """Warm `call` up and repeat it until its median is known or the budget is spent.

        together  the ranks work on one thing (a collective), which ends when the slowest does;
                  otherwise each has its own, and the median rank is reported
        """
        iterations, batch = self._plan(call, together=together)
        start = time.perf_counter()
        rows: list[list[float]] = [[] for _ in range(self.world_size)]
        while True:
            own = self.samples(call, iterations, batch, alone=not together)
            gathered = self.everywhere([time.perf_counter() - start, *own])
            for row, more in zip(rows, gathered, strict=True):
                row.extend(more[1:])
            judged = [undisturbed(row) for row in ([slowest(rows)] if together else rows)]
            if all(confident(row, self.uncertainty) for row in judged):
                break
            if max(more[0] for more in gathered) > self.budget_s:
                break
        medians = tuple(summarise(undisturbed(row)).median_s for row in rows)
        summaries = sorted((summarise(row) for row in judged), key=lambda each: each.median_s)
        middle = summaries[(len(summaries) - 1) // 2]
        set_aside = len(rows[0]) - middle.repeats
        return Timing(replace(middle, outliers=middle.outliers + set_aside), medians)

    def _plan(self, call: Call, *, together: bool) -> tuple[int, int]:
        """Iterations per sample and samples per batch, the same on every rank.

        A collective between processes waits for a processor now and then, for milliseconds: one
        call is one sample there, so that the wait is an outlier and no part of every sample.
        """
        call()
        self.synchronise()
        one_s = max(row[0] for row in self.everywhere([self.once_s(call)]))
        if one_s < LONG_S:  # a first timed call still meets cold caches and clocks
            one_s = max(row[0] for row in self.everywhere([self.once_s(call)]))
        one_by_one = together and not self.is_cuda
        iterations = 1 if one_by_one else math.ceil(SAMPLE_S / one_s)
        batch = int(self.budget_s / 3 / (one_s * iterations))
        return iterations, min(max(1, batch), max(MAX_BATCH, int(BATCH_S / (one_s * iterations))))
