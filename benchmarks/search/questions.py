"""How well and how fast `meshplan plan` answers 200 questions that nothing was tuned for.

    python -m benchmarks.search.questions [-o answers.csv] [--count 200] [--seed 18] [--only 17]

Each question is drawn (`drawn`): a model of the catalogue, a cluster, an engine, 8 to 131,072 GPUs,
sequences of 2,048 to 1M tokens, a batch of 1M to 64M tokens, larger where each GPU would have less
than a quarter of a sequence. It is asked as a whole process with `--json`, from its start to its
end; user and system seconds and peak memory are what the kernel says of that process. As where the
package is installed, its modules are compiled before: into a folder of their own, whatever
PYTHONDONTWRITEBYTECODE says.

What no layout can do (exit code 3) is drawn again and counted apart, with its own seconds; any
other failure ends the run. The machine's speed stands beside the figures, as the processor-seconds
of ten million additions: on a busy machine a processor-second does less.
"""

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from meshplan.costmodels.units import MIB
from meshplan.hardware_profiles.engines import engine_names
from meshplan.hardware_profiles.load_models import model_names

PROGRAM = "from meshplan.planner.cli.main import main; main()"
CLUSTERS = (
    "dgx-h100", "dgx-a100", "dgx-b200", "dgx-h800", "gb200-nvl72", "aws-p5", "mi300x-8",
    "perlmutter", "l40s-8",
)  # fmt: skip
MOST_GPUS = 131_072
SEQUENCES = tuple(2**power for power in range(11, 21))
TOKENS = tuple(2**power for power in range(20, 27))
NOTHING_FITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One question."""

    number: int
    model: str
    cluster: str
    engine: str
    gpus: int
    seq_len: int
    global_batch: int

    @property
    def words(self) -> list[str]:
        """As typed."""
        return [
            "plan", self.model, "--cluster", self.cluster, "--engine", self.engine,
            "--gpus", str(self.gpus), "--seq-len", str(self.seq_len),
            "--global-batch", str(self.global_batch),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How one question ended; `status` REFUSED where nothing fits.

    cpu_s, wall_s, peak_mib  of the whole process       search_s  of the search, by the clock
    """

    number: int
    status: str
    gap: float
    cpu_s: float
    wall_s: float
    search_s: float
    peak_mib: float
    simulated: int
    label: str
    words: str


def drawn(number: int, seed: int) -> Drawn:
    """The question of that number: of every seed the same."""
    draw = random.Random(f"{seed}/{number}")
    gpus = _gpus(draw)
    seq_len = draw.choice(SEQUENCES)
    batch = max(4, gpus // 4, draw.choice(TOKENS) // seq_len)
    return Drawn(
        number=number,
        model=draw.choice(model_names()),
        cluster=draw.choice(CLUSTERS),
        engine=draw.choice(engine_names()),
        gpus=gpus,
        seq_len=seq_len,
        global_batch=2 ** math.ceil(math.log2(batch)) * (3 if draw.random() < 0.15 else 1),
    )


def _gpus(draw: random.Random) -> int:
    """A power of two, or three quarters of one."""
    count: int = 2 ** draw.randint(3, int(math.log2(MOST_GPUS)))
    return count * 3 // 4 if count > 8 and draw.random() < 0.2 else count


def compiled(folder: str) -> dict[str, str]:
    """The environment of a process that finds the package's modules compiled in `folder`."""
    kept = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPYCACHEPREFIX": folder}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, "plan", "--help"],
        env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return environment


def answered(question: Drawn, environment: dict[str, str]) -> Answered:
    """Ask it in a process of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *question.words, "--json"],
            stdout=out, stderr=err, env=environment,
        )  # fmt: skip
        _, ended, usage = os.wait4(child.pid, 0)
        wall_s, child.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(ended)
        out.seek(0)
        err.seek(0)
        if child.returncode not in (0, NOTHING_FITS):
            raise SystemExit(f"{' '.join(question.words)}: {err.read().decode()}")
        found = json.load(out) if child.returncode == 0 else None
    search = found["search"] if found else {}
    return Answered(
        number=question.number,
        status=search.get("status", "REFUSED"),
        gap=search.get("gap", 0.0),
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        search_s=search.get("wall_s", 0.0),
        peak_mib=usage.ru_maxrss * 1024 / MIB,
        simulated=search.get("simulated", 0),
        label=_degrees(found["layout"]) if found else "",
        words=" ".join(question.words[1:]),
    )


def _degrees(layout: dict[str, object]) -> str:
    names = {
        "dp": "data_parallel", "tp": "tensor_parallel", "pp": "pipeline_parallel",
        "vpp": "virtual_stages", "cp": "context_parallel", "ep": "expert_parallel",
        "mbs": "micro_batch_size", "": "schedule",
    }  # fmt: skip
    return " ".join(f"{short}{layout[name]}" for short, name in names.items() if name in layout)


def additions_s() -> float:
    """Processor-seconds of ten million additions."""
    started, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - started


def summary(found: Sequence[Answered], speeds_s: Sequence[float]) -> Iterator[str]:
    """What is asked of the questions that have an answer, then of the refusals."""
    fit = [each for each in found if each.status != "REFUSED"]
    open_gaps = sorted((each.gap for each in fit if each.status != "OPTIMAL"), reverse=True)
    proved = len(fit) - len(open_gaps)
    yield f"{len(fit)} answers: {proved} OPTIMAL ({proved / len(fit):.1%})"
    yield "open: " + (", ".join(f"{gap:.2%}" for gap in open_gaps) or "none")
    for name in ("cpu_s", "wall_s", "search_s", "peak_mib"):
        yield f"{name:9} {_spread([getattr(each, name) for each in fit])}"
    refused = [each.cpu_s for each in found if each.status == "REFUSED"]
    if refused:
        yield f"{len(refused)} more where nothing fits: cpu_s {_spread(refused)}"
    yield (
        f"ten million additions meanwhile: {_spread(speeds_s)} processor-seconds; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the end"
    )


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    at = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in
          (("median", 0.5), ("p90", 0.9), ("worst", 1.0))}  # fmt: skip
    return ", ".join(f"{name} {value:.2f}" for name, value in at.items())


def _printed(each: Answered) -> str:
    return (
        f"{each.number:4} {each.status:8} gap {each.gap:6.2%} cpu {each.cpu_s:6.2f} s wall "
        f"{each.wall_s:6.2f} s {each.peak_mib:4.0f} MiB simulated {each.simulated:4}  "
        f"{each.words}  {each.label}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="answers wanted")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of questions")
    parser.add_argument("-o", "--out", type=Path, help="a CSV file of all answers")
    asked = parser.parse_args()
    found, speeds_s, fit, number = list[Answered](), list[float](), 0, 0
    numbers = iter(asked.only) if asked.only else None
    with tempfile.TemporaryDirectory() as folder:
        environment = compiled(folder)
        while numbers is not None or fit < asked.count:
            number = next(numbers, -1) if numbers is not None else number + 1
            if number < 0:
                break
            if len(found) % 10 == 0:
                speeds_s.append(additions_s())
            found.append(answered(drawn(number, asked.seed), environment))
            fit += found[-1].status != "REFUSED"
            print(_printed(found[-1]), flush=True)
    print("\n".join(summary(found, speeds_s)))
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Answered)])
            writer.writeheader()
            writer.writerows(map(asdict, found))


if __name__ == "__main__":
    main()
