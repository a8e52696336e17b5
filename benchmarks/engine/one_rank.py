"""One rank alone beside the real run of the same layout on gloo processes of this machine.

    python -m benchmarks.engine.one_rank [--cluster FILE] [--rounds N] [--only LAYOUT...] [--write]
    python -m benchmarks.engine.one_rank --minutes 4 --folder FOLDER [...]  # until nothing is left

Messages take what a quick profile says that is measured first (FOLDER/profile.toml), or --cluster.
Two processes run each layout in turns: together, and then each its own rank alone, its messages
answered for; N times, the same steps of the same engine, timed by the same program. Alone they run
at the same time too, since on a CPU a rank's memory and caches are its neighbours'. Compared are

    bytes      that the engine holds: weights, gradients, optimizer states, saved tensors
    step       together the slowest rank's, alone what the event simulation makes of their actions:
               the median, as messages take their usual time; and the fastest
    processor  the seconds of processor time of a step of the busiest rank, messages included: what
               a neighbour's work on the same cores changes least

the least of all steps. --write puts the table into docs/execute.md. With --minutes what
should not end in time is left for the next call with the same folder and options, round by round;
the table comes when nothing is left.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from benchmarks.engine.cpu_loop import meshplan
from benchmarks.engine.one_rank_layouts import EVERY, LAYOUTS
from benchmarks.pages import ROOT, put
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import MIB, format_seconds
from meshplan.executor.engine.step.engine import Job
from meshplan.executor.engine.watch.heap import keep_freed_memory
from meshplan.executor.launch.torchrun import CPU_ENVIRONMENT
from meshplan.executor.onerank.measure import Asked, measure
from meshplan.executor.onerank.one_rank import run_alone
from meshplan.executor.onerank.result import RankMeasured, step_of, wire_of
from meshplan.executor.onerank.wire import Wire
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.local_cpu import num_cores

TRAINING = Training(seq_len=256, global_batch_size=4, precision="fp32")
KINDS = ("together", "alone")
STATES = ("weights", "gradients", "optimizer", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What both processes do, and where their figures go."""

    names: tuple[str, ...]
    cluster: str
    rounds: int
    steps: int
    folder: str
    training: Training = TRAINING


@dataclass(frozen=True, slots=True)
class Turns:
    """One layout: for each round what its ranks measured together, and alone."""

    name: str
    together: list[list[RankMeasured]]
    alone: list[list[RankMeasured]]

    @property
    def same_bytes(self) -> bool:
        """Whether every rank held the same either way."""
        return held(self.together) == held(self.alone)


def job_of(name: str, training: Training) -> Job:
    """The layout by its name."""
    model, layout = EVERY[name]
    return Job(model=model, layout=layout, training=training)


def model_of(name: str, cluster: str, training: Training) -> StepModel:
    """The layout, priced."""
    model, layout = EVERY[name]
    by, engine = load_cluster(cluster), load_engine("native")
    return StepModel(Setting.fitted(model, training, by, engine), layout)


@dataclass(frozen=True, slots=True)
class Turn:
    """One layout in one round."""

    name: str
    round: int

    def path(self, folder: str, kind: str, rank: int) -> Path:
        """Where a rank's figures are, `together` or `alone`."""
        number = list(EVERY).index(self.name)
        return Path(folder) / f"{number}.{self.round}.{kind}.{rank}.json"

    def is_done(self, folder: str) -> bool:
        """Whether both ranks have left both."""
        return all(self.path(folder, kind, rank).exists() for kind in KINDS for rank in range(2))


def process(rank: int, task: Task, turn: Turn) -> None:
    """One of two processes: a layout, together and then alone."""
    keep_freed_memory()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    job = job_of(turn.name, task.training)
    wire = wire_of(model_of(turn.name, task.cluster, task.training))
    store = f"{task.folder}/{os.getppid()}.{list(EVERY).index(turn.name)}.{turn.round}.store"
    for kind, found in _turn(rank, job, wire, task, store):
        write_whole(turn.path(task.folder, kind, rank), found.model_dump_json())


def _turn(
    rank: int, job: Job, wire: Wire, task: Task, store: str
) -> Iterator[tuple[str, RankMeasured]]:
    device = torch.device("cpu")
    asked = Asked(warmup=1, steps=task.steps, alone=False)
    dist.init_process_group(
        "gloo", init_method=Path(store).absolute().as_uri(), rank=rank, world_size=2
    )
    found = measure(job, device, asked)
    dist.barrier()
    dist.destroy_process_group()
    yield "together", found
    yield "alone", run_alone(job, rank, device, wire, replace(asked, alone=True))


def start(task: Task, seconds: float = inf) -> list[Turn]:
    """Every turn that is not done, as long as the next should end in time; those that are left."""
    ends, longest_s = time.monotonic() + seconds, 0.0
    waiting = [Turn(name, number) for number in range(task.rounds) for name in task.names]
    waiting = [turn for turn in waiting if not turn.is_done(task.folder)]
    while waiting and time.monotonic() + longest_s < ends:
        began = time.monotonic()
        # forked, so that torch is imported once
        start_processes(process, (task, waiting[0]), nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
        longest_s = max(longest_s, time.monotonic() - began)
        done = waiting.pop(0)
        print(f"{done.name}, round {done.round + 1} done", file=sys.stderr, flush=True)
    return waiting


def results(task: Task) -> Iterator[Turns]:
    """What they left in the folder."""
    for name in task.names:
        together, alone = (
            [_ranks(Turn(name, number), task.folder, kind) for number in range(task.rounds)]
            for kind in KINDS
        )
        yield Turns(name, together, alone)


def _ranks(turn: Turn, folder: str, kind: str) -> list[RankMeasured]:
    paths = (turn.path(folder, kind, rank) for rank in range(2))
    return [RankMeasured.model_validate_json(path.read_text(encoding="utf-8")) for path in paths]


def held(rounds: Sequence[Sequence[RankMeasured]]) -> list[int]:
    """The most bytes of states and saved tensors, by rank."""
    ranks = zip(*rounds, strict=True)
    return [max(sum(found.held_bytes[k] for k in STATES) for found in each) for each in ranks]


def steps_s(rounds: Sequence[Sequence[RankMeasured]], model: StepModel | None) -> list[float]:
    """Every step, the slowest rank's; `model`: of a pipeline's ranks alone, put together from their
    actions and scaled to each of their steps.
    """
    found: list[float] = []
    for ranks in rounds:
        for steps in zip(*(rank.step_times_s for rank in ranks), strict=True):
            if model is None or model.layout.pipeline_parallel == 1:
                found.append(max(steps))
                continue
            typical_s = step_of(model, ranks).measured
            assert typical_s is not None
            over = (s / rank.step_s for s, rank in zip(steps, ranks, strict=True))
            found.append(typical_s * max(over))
    return found


def processor_s(rounds: Sequence[Sequence[RankMeasured]]) -> float:
    """The least that the busiest rank computed in a step, and sent."""
    ranks = zip(*rounds, strict=True)
    busiest: float = max(min(min(found.processor_s) for found in each) for each in ranks)
    return busiest


def line(each: Turns, task: Task) -> tuple[str, float, float]:
    """A line of the table; the errors of the step and of the processor time."""
    real, alone = (
        steps_s(each.together, None),
        steps_s(each.alone, model_of(each.name, task.cluster, task.training)),
    )
    step = median(alone) / median(real) - 1
    busy, busy_alone = processor_s(each.together), processor_s(each.alone)
    cells = (
        each.name, _mib(held(each.together)), _mib(held(each.alone)),
        format_seconds(median(real)), format_seconds(median(alone)), f"{step:+.1%}",
        f"{min(alone) / min(real) - 1:+.1%}",
        format_seconds(busy), format_seconds(busy_alone), f"{busy_alone / busy - 1:+.1%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |", step, busy_alone / busy - 1


def table(found: Sequence[Turns], task: Task) -> str:
    """A line for each layout, and what they come to."""
    lines = [line(each, task) for each in found]
    same = sum(each.same_bytes for each in found)
    said = (
        f"{name} within 10 % in {sum(abs(e) <= 0.1 for e in errors)} of {len(found)}, median error "
        f"{median(map(abs, errors)):.1%}, largest {max(errors, key=abs):+.1%}"
        for name, errors in (
            ("step", [step for _, step, _ in lines]),
            ("processor time", [busy for _, _, busy in lines]),
        )
    )
    return "\n".join(
        [
            "| layout | holds, MiB, each rank | alone | median step | alone | error | of fastest "
            "| processor | alone | error |",
            f"|{'---|' * 10}",
            *(text for text, _, _ in lines),
            "",
            f"{same} of {len(found)} hold the same bytes; {'; '.join(said)}.",
        ]
    )


def _mib(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size / MIB:.2f}" for size in sizes)


def profiled(path: Path) -> str:
    """A quick profile of this machine, measured now where there is none."""
    if not path.exists():
        meshplan("profile", "--quick", "-o", str(path))
    return str(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.engine.one_rank")
    parser.add_argument("--cluster", help="[default: measured first, in the folder]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=TRAINING.seq_len)
    parser.add_argument("--batch", type=int, default=TRAINING.global_batch_size)
    parser.add_argument("--only", nargs="*", default=list(LAYOUTS))
    parser.add_argument("--folder", help="of the figures of every step [default: not kept]")
    parser.add_argument("--minutes", type=float, default=inf, help="of this call; needs --folder")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.minutes < inf and not options.folder:
        parser.error("--minutes leaves the rest for another call: give it a --folder")
    return options


def main() -> None:
    """Measure every layout; print the table, and write it."""
    options = _options()
    threads = max(1, num_cores() // 2)
    os.environ.update({**CPU_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)})
    load = os.getloadavg()[0]
    training = replace(TRAINING, seq_len=options.seq_len, global_batch_size=options.batch)
    with tempfile.TemporaryDirectory() as folder:
        ends = time.monotonic() + 60 * options.minutes
        place = Path(options.folder or folder)
        place.mkdir(parents=True, exist_ok=True)
        task = Task(
            names=tuple(options.only), cluster=options.cluster or profiled(place / "profile.toml"),
            rounds=options.rounds, steps=options.steps, folder=str(place), training=training,
        )  # fmt: skip
        left = start(task, ends - time.monotonic())
        if left:
            print(f"{len(left)} of {len(options.only) * options.rounds} turns are left")
            return
        text = table(list(results(task)), task)
    text += (
        f" {options.rounds} rounds of {options.steps} steps on {num_cores()} shared cores, load "
        f"{load:.1f} before and {os.getloadavg()[0]:.1f} after, {datetime.now(UTC).date()}."
    )
    print(text)
    if options.write:
        put(ROOT / "docs/execute.md", "one rank", text)


if __name__ == "__main__":
    main()
