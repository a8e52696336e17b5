"""How long `meshplan sweep` takes: 5 models at 10 sizes, planned and from the cache.

    python -m benchmarks.commands.sweep

Each is a process of its own, from its start to its end: seconds by the clock, and of all processors
together, workers included. Printed with the processors that are allowed and how busy they were.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.usage import check_usage
from meshplan.hardware_profiles.local_cpu import num_cores

SETS = {
    "dense and one mixture": (
        "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "qwen3-32b",
    ),
    "five large mixtures": (
        "deepseek-v3", "kimi-k2", "llama-4-maverick", "qwen3-235b-a22b", "mixtral-8x22b",
    ),
}  # fmt: skip
BATCH = {"dense and one mixture": "1024", "five large mixtures": "4096"}
PROGRAM = "from meshplan.planner.cli.main import main; main()"


def seconds_of(arguments: Sequence[str], codes: Sequence[int] = (0,)) -> tuple[float, float]:
    """Seconds by the clock and of processors that `meshplan` takes; another exit code than `codes`
    is an error.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stdout[-2000:] + done.stderr[-2000:]
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """The command."""
    print(f"{num_cores()} processors, load {os.getloadavg()[0]:.1f} before the start")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, models) in enumerate(SETS.items()):
            cache = Path(folder) / f"{number}.json"
            asked = ["sweep", *models, "--gpus", "8..4096", "--cluster", "dgx-h100"]
            asked += ["--global-batch", BATCH[name], "--cache", str(cache)]
            for kind in ("planned", "from the cache"):
                wall_s, cpu_s = seconds_of(asked)
                print(f"{name}, 50 cells, {kind}: {wall_s:.1f} s, {cpu_s:.1f} processor-seconds")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
