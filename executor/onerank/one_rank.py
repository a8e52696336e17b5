"""The program of a one-rank run: build one rank of a plan on this device, run it, say what it took.

    python -m meshplan.executor.onerank.one_rank plan.yaml --rank R --device cpu|cuda \\
        --needs BYTES --out FILE [--cluster PROFILE] [--warmup 2] [--steps 5] [--all]

Writes `result.RankMeasured` as JSON to FILE. Exit 2 when the device has less than BYTES free, or
the plan cannot be used (one line on stderr), 1 when a step's loss was no finite number.
"""

import argparse
import sys
from pathlib import Path

import torch

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.units import format_bytes
from meshplan.executor.dryrun.dry_run import job_of, shortened
from meshplan.executor.engine.step.engine import Job
from meshplan.executor.engine.watch.heap import keep_freed_memory
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.onerank.local_group import Answers, answered_here
from meshplan.executor.onerank.measure import Asked, NotFinite, measure
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import RankMeasured, wire_of
from meshplan.executor.onerank.wire import Wire
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.hardware_profiles.local_cpu import free_memory_bytes
from meshplan.planner.case.plan_file import UnreadablePlan, read_plan
from meshplan.planner.processes.parent_death import die_with_parent


def main() -> None:
    """Run as the module's docstring says."""
    options = _parse()
    try:
        _run(options)
    except (CannotRun, InvalidLayout, UnreadablePlan, UnknownProfile) as error:
        sys.exit(_said(error, 2))
    except NotFinite as error:
        sys.exit(_said(error, 1))


def _said(error: Exception, code: int) -> int:
    print(error, file=sys.stderr)
    return code


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="meshplan.executor.onerank.one_rank")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--needs", type=float, default=0.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cluster")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="all micro-batches, not a few")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    die_with_parent()
    plan = read_plan(options.plan)
    device = torch.device(options.device)
    check_free(options.needs, device)
    if device.type == "cpu":
        keep_freed_memory()
    job, wire = job_of(plan), wire_of(priced(plan, options.cluster))
    asked = Asked(warmup=options.warmup, steps=options.steps)
    job = job if options.all else shortened(job)
    found = run_alone(job, options.rank, device, wire, asked)
    write_whole(options.out, found.model_dump_json(indent=1) + "\n")


def run_alone(job: Job, rank: int, device: torch.device, wire: Wire, asked: Asked) -> RankMeasured:
    """Measure rank `rank` of `job` with every message answered here. Raises `NotFinite`."""
    answers = Answers(rank=rank, wire=wire, device=device)
    with answered_here(answers, job.layout.world_size):
        found = measure(job, device, asked, answers.waited.take)
    # what is summed over all ranks of the world, only those of the last stage hold a part of
    loss = found.loss / job.layout.pipeline_parallel
    return found.model_copy(update={"loss": loss})


def check_free(needed_bytes: float, device: torch.device) -> None:
    """Raise `CannotRun` before anything is allocated if the device has less free."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise CannotRun("this host has no GPU that torch can use; give --device cpu")
        free: float = torch.cuda.mem_get_info()[0]
    else:
        free = free_memory_bytes()
    if needed_bytes > free:
        raise CannotRun(
            f"what is to run needs {format_bytes(needed_bytes)} and {device.type} has "
            f"{format_bytes(free)} free: nothing was allocated; plan a smaller one, or --dry-run"
        )


if __name__ == "__main__":
    main()
