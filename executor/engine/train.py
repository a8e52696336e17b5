"""The program of one rank: run a plan for some steps and write what each took.

    python -m torch.distributed.run --nproc-per-node N -m meshplan.executor.engine.train \\
        plan.yaml --steps 10 --warmup 3 --out DIR [--device cpu|cuda] [--data FILE] [--seed S] \\
        [--spans]

Each rank writes DIR/rank{r}.jsonl, one `record.StepRecord` per line, warm-up steps included, and
DIR/rank{r}.phase (`heartbeat`); with --spans also DIR/rank{r}.spans (`span_file`). It dies with the
process that started it.
Exit 0 done, 2 the plan or the data cannot be used (one line on stderr).
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.executor.engine.step.data import Sequences, UnreadableData
from meshplan.executor.engine.step.engine import Engine, Job
from meshplan.executor.engine.watch.heap import keep_freed_memory
from meshplan.executor.engine.watch.heartbeat import Heartbeat
from meshplan.executor.engine.watch.span_file import write_spans
from meshplan.planner.case.plan_file import UnreadablePlan, read_plan
from meshplan.planner.processes.parent_death import die_with_parent


def main() -> None:
    """Run as the module's docstring says."""
    options = _parse()
    try:
        _train(options)
    except (InvalidLayout, UnreadableData, UnreadablePlan) as error:
        print(error, file=sys.stderr)  # in the log of this rank
        sys.exit(2)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="meshplan.executor.engine.train", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, help="flat token file; without it, synthetic tokens")
    parser.add_argument("--spans", action="store_true", help="write when each action ran")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    return parser.parse_args()


def _train(options: argparse.Namespace) -> None:
    die_with_parent()
    plan = read_plan(options.plan)
    model = model_from_config(plan.model.config, plan.model.name)
    device = _init_process_group(options.device)
    job = Job(
        model=model,
        layout=plan.layout,
        training=plan.training,
        seed=options.seed,
        learning_rate=options.learning_rate,
    )
    sequences = Sequences(
        job.training, model.vocab, options.seed, path=options.data, ahead=1 + model.mtp_layers
    )
    options.out.mkdir(parents=True, exist_ok=True)
    heartbeat = Heartbeat(options.out / f"rank{dist.get_rank()}.phase")
    engine = Engine(job, device, said=heartbeat.say)
    engine.init_weights()
    own = options.out / f"rank{dist.get_rank()}"
    with own.with_suffix(".jsonl").open("w", encoding="utf-8") as file:
        for step in range(options.warmup + options.steps):
            engine.step(step, sequences, warmup=step < options.warmup).write(file)
            if options.spans:
                write_spans(engine.clock.taken, own.with_suffix(".spans"))
    dist.destroy_process_group()


def _init_process_group(device_type: str | None) -> torch.device:
    """Join the processes that torchrun started; the device is this rank's own."""
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type == "cpu":
        keep_freed_memory()
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    # A bound device would make groups by splitting the world, which every rank must then join.
    dist.init_process_group("nccl")
    return device


if __name__ == "__main__":
    record(main)()
