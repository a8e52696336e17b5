"""What one rank writes per step, one JSON line each, so that a killed run leaves what it measured.

step_time_s       wall time of the step on this rank, device synchronised; making its batches is
                  not in it
forward_s, backward_s, optimizer_s
                  sums over the micro-batches of the step of the time the device spent in the phase;
                  tensor, context and expert collectives inside a phase count in it
waiting_s         waiting for another pipeline stage: bubble and exposed messages
exposed_comm_s    gradient reductions still under way when the last backward pass ended
processor_s       processor time of the process in the step, all threads: on a shared CPU, what the
                  step takes where nothing else runs
allocated_peak_bytes, reserved_peak_bytes
                  CUDA: the caching allocator's peaks of the step; CPU: what was in use beyond
                  what the process held before the model (of warm-up steps, where the C library says
                  it, else the same as reserved), and the resident-set peak so far
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one rank; the module's docstring says what each figure is."""

    step: int
    warmup: bool
    loss: float
    grad_norm: float
    step_time_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    waiting_s: float
    exposed_comm_s: float
    processor_s: float
    allocated_peak_bytes: int
    reserved_peak_bytes: int

    @property
    def diverged(self) -> bool:
        """Whether the loss or the gradient norm is no finite number."""
        return not (math.isfinite(self.loss) and math.isfinite(self.grad_norm))

    def write(self, file: TextIO) -> None:
        """Append one JSON line and flush it; what is not finite, JSON cannot say: null."""
        plain = asdict(self)
        for name in ("loss", "grad_norm"):
            plain[name] = plain[name] if math.isfinite(plain[name]) else None
        file.write(json.dumps(plain, allow_nan=False) + "\n")
        file.flush()


def read_record(line: str) -> StepRecord:
    """The record of one line; a loss or norm of null is not a number."""
    plain = json.loads(line)
    for name in ("loss", "grad_norm"):
        plain[name] = math.nan if plain[name] is None else plain[name]
    return StepRecord(**plain)
