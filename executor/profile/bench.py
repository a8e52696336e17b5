"""Times calls on this rank's device, in step with the other ranks.

Every rank runs the same measurements at the same time: GPUs of a node share power and cooling, CPU
ranks share memory and cores, and a layout loads all of them too. After each batch of repeats the
ranks exchange their samples, so that all see the same numbers and stop at the same one.
CUDA (and ROCm, by the same calls) is timed by events on the stream, the CPU by its clock. Others
use a CPU too: they take it away for milliseconds, and a neighbour on the same core slows a product
by up to 1.9. What the machine does alone shows in the fastest repeats, so those are kept there, and
beside them how much longer it took on the whole.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshplan.executor.profile.statistics import Timing, confident, kept, kept_quantile, summarise

SAMPLE_S = {"cuda": 1e-3, "cpu": 2e-4}  # shorter calls are repeated: the grain is below 0.1 %
MAX_BATCH = 10
BATCH_S = 10e-3  # or as many samples as fit into this, if they are more

Call = Callable[[], object]


def stream_event() -> torch.cuda.Event:
    """A mark on a GPU stream whose time can be read."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def captured(call: Call, times: int) -> Call:
    """A call that lets the GPU do `call` so many times, issued beforehand as one CUDA graph."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")  # NCCL watches from another
        for _ in range(times):
            call()
        graph.capture_end()
    torch.cuda.synchronize()
    return graph.replay


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

    def samples(self, call: Call, iterations: int, repeats: int) -> list[float]:
        """Seconds of each repeat."""
        return [self.once_s(call, iterations) for _ in range(repeats)]

    def kept(self, seconds: Sequence[float], *, together: bool = False) -> tuple[float, float]:
        """What is kept of the repeats, and its spread."""
        return kept(seconds, kept_quantile(shared=not self.is_cuda, together=together))

    def measure(self, call: Call, *, together: bool = False, queued: bool = False) -> Timing:
        """Warm `call` up and repeat it until its median is known or the budget is spent; a long
        one may be over budget with a single repeat.

        together  the ranks work on one thing (a collective), which ends when the slowest does;
                  otherwise each has its own, and the median rank is reported
        queued    kernels that a GPU may finish faster than its host issues them: all of a sample
                  are issued beforehand, as in training where the host is ahead
        """
        iterations, batch, rows = self._plan(call, together=together)
        ahead = queued and self.is_cuda and iterations > 1
        issued, calls = (captured(call, iterations), 1) if ahead else (call, iterations)
        start = time.perf_counter()
        while batch:
            own = [s * calls / iterations for s in self.samples(issued, calls, batch)]
            gathered = self.everywhere([time.perf_counter() - start, *own])
            for row, more in zip(rows, gathered, strict=True):
                row.extend(more[1:])
            if all(confident(row, self.uncertainty) for row in _judged(rows, together=together)):
                break
            if max(more[0] for more in gathered) > self.budget_s:
                break
        return self._timing(rows, together=together)

    def _timing(self, rows: Sequence[Sequence[float]], *, together: bool) -> Timing:
        """The timing of the middle rank, or of all together, and of every rank its median."""
        judged = _judged(rows, together=together)
        ordered = sorted(judged, key=lambda row: self.kept(row, together=together))
        middle = ordered[(len(ordered) - 1) // 2]
        seconds, spread = self.kept(middle, together=together)
        summary = summarise(middle)
        return Timing(
            seconds=seconds,
            spread=summary.spread if self.is_cuda else spread,
            summary=summary,
            rank_seconds=tuple(summarise(row).median_s for row in rows),
            shared=not self.is_cuda,
        )

    def _plan(self, call: Call, *, together: bool) -> tuple[int, int, list[list[float]]]:
        """Iterations per sample and samples per batch, the same on every rank, and the samples of
        every rank so far: one each and no batch of a call that is longer than the budget.

        A collective between processes waits for a processor now and then, for milliseconds: one
        call is one sample there, so that the wait is an outlier and no part of every sample.
        """
        if self.is_cuda:
            call()
            self.synchronise()
        first = self.everywhere([self.once_s(call)])
        if max(row[0] for row in first) <= self.budget_s:  # it still met cold caches and clocks
            first = self.everywhere([self.once_s(call)])
        one_s = max(row[0] for row in first)
        if one_s > self.budget_s:
            return 1, 0, first
        one_by_one = together and not self.is_cuda
        iterations = 1 if one_by_one else math.ceil(SAMPLE_S[self.device.type] / one_s)
        batch = int(self.budget_s / 3 / (one_s * iterations))
        most = max(MAX_BATCH, int(BATCH_S / (one_s * iterations)))
        return iterations, min(max(1, batch), most), [[] for _ in first]


def _judged(rows: Sequence[Sequence[float]], *, together: bool) -> Sequence[Sequence[float]]:
    """What is timed: each rank, or of what they do together the slowest rank each time."""
    return [[max(column) for column in zip(*rows, strict=True)]] if together else rows
