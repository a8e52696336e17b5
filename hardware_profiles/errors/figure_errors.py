"""How far off each figure of a prediction may be: one standard deviation, from data that ship.

    constants  of ln of a scale (or of seconds) over the constants that were learnt, an engine's on
               a GPU family each: what an engine that nobody measured could have. The engines that
               stand for all others, and those learnt with one constant alone, do not count
    overlaps   of each hidden fraction over the engine files that hide anything of it

`python -m benchmarks.accuracy.figure_errors` writes them.
"""

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[1] / "fits" / "figure_errors.csv"
CONSTANTS = {
    "matmul_scale": "matrix products",
    "attention_scale": "attention",
    "pointwise_scale": "memory-bound kernels",
    "collective_scale": "communication",
    "launch_s": "the host",
}
"""Of `Tuning`, in words: what is slower where the constant is larger."""
OVERLAPS = ("data_reduce", "weight_gather", "tensor", "pipeline", "context", "expert_interleaved")
"""Of `Overlap`."""


@cache
def figure_errors() -> dict[str, float]:
    """The standard deviation of each, by name."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return {row["figure"]: float(row["deviation"]) for row in csv.DictReader(file)}
