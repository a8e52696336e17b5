"""A plan run by Hugging Face's frameworks: Accelerate, DeepSpeed, transformers' DistributedConfig.

What `meshplan export` writes is written into the run's folder and started as it says, by torchrun
or `accelerate launch`: on GPUs with NCCL, for a plan made for CPUs on processes with gloo. Its
`train.py` leaves each rank's steps where the native engine leaves them.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.frameworks import framework_named
from meshplan.executor.frameworks.export_notes import check_training_is_said
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.results import RunResult
from meshplan.executor.launch.run import RunSettings, rank_environment_of, run_watched
from meshplan.executor.launch.torchrun import run_job
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Exported

PRECISIONS = {"accelerate": ("bf16", "fp32"), "transformers": ("bf16", "fp32"),
              "deepspeed": ("bf16", "fp16", "fp32")}  # fmt: skip
ENGINES = tuple(PRECISIONS)
OPTIMIZERS = {"deepspeed": ("adamw", "sgd")}
SAID_BY_SCRIPT = {
    "layout.micro_batch_size", "layout.selective_modules", "layout.stages.recompute",
}  # fmt: skip
"""Fields of a layout that a framework's file cannot say, and `train.py` can."""


def ready_for(plan: Plan, settings: RunSettings) -> Exported:
    """The files and the command that train `plan` for as many steps as asked.

    Raises `CannotRun` where they would train something else, or not at all.
    """
    name, la = plan.engine, plan.layout
    if settings.placement.nodes > 1:
        raise CannotRun(f"{name} is started on this host only; export the plan for several")
    if settings.data is not None:
        raise CannotRun(f"--data is read by the native engine only; {name} gets synthetic tokens")
    try:
        exported = framework_named(name).export(plan, settings.placement.processes_per_node)
        check_training_is_said(name, exported)
    except InvalidLayout as error:
        raise CannotRun(str(error)) from None
    lost = [each for each in exported.cannot_say
            if each.name.startswith("layout.") and each.name not in SAID_BY_SCRIPT
            and not (each.name == "layout.zero_stage" and la.data_parallel == 1)]  # fmt: skip
    if lost:
        raise CannotRun(f"{name} cannot run {lost[0].name} = {lost[0].value}: {lost[0].why}")
    _check_trained(plan, settings.device)
    return exported


def _check_trained(plan: Plan, device: str) -> None:
    """Raise `CannotRun` for what the script does not train, or this release does not."""
    name, la, training = plan.engine, plan.layout, plan.training
    if la.recompute not in ("none", "full"):
        raise CannotRun(f"train.py recomputes all of a layer, not {la.recompute}")
    if training.precision not in PRECISIONS[name]:
        known = ", ".join(PRECISIONS[name])
        raise CannotRun(f"train.py trains by {name} in {known}, not in {training.precision}")
    if training.optimizer not in OPTIMIZERS.get(name, ("adamw",)):
        raise CannotRun(f"train.py has no {training.optimizer} for {name}; plan with adamw")
    if name == "accelerate" and la.tensor_parallel > 1:
        raise CannotRun(
            "Accelerate 1.15 has no tensor_parallel beside transformers 5.23 or 5.24 (it imports a "
            "name that is gone); plan with --engine transformers, or with --tp 1"
        )
    if device == "cpu" and la.context_parallel > 1:
        raise CannotRun(
            "context_parallel: torch 2.13 splits the attention of GPUs by sequence, not that of "
            "CPUs; plan with --cp 1"
        )
    if device == "cpu" and la.optimizer_offload:
        raise CannotRun(
            "optimizer_offload: a CPU has no other host; plan with --offload-optimizer 0"
        )


def command_of(exported: Exported, settings: RunSettings, out: Path) -> list[str]:
    """The launch command in the run's folder `out`, by this Python."""
    logs = ["--log-dir", str(out / "logs")]
    words = []
    for word in shlex.split(exported.launch):
        words.append(str(out / word) if word in exported.files else word)
    if words[0] == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", *logs, "--redirects=3", *words[1:]]
    else:
        logs = ["--main_process_port", "0", "--log_dir", str(out / "logs"), "--tee", "3"]
        start = [sys.executable, "-m", "accelerate.commands.launch", *logs, *words[2:]]
    steps = ["--steps", str(settings.steps), "--warmup", str(settings.warmup)]
    cpu = ["--cpu"] if settings.device == "cpu" else []
    return [*start, *steps, "--records", str(out / "ranks"), *cpu]


def run_hugging_face(plan: Plan, settings: RunSettings, out: Path) -> RunResult:
    """Run `plan` by its framework and leave its result in `out`; raises as `run_plan` does."""
    exported = ready_for(plan, settings)

    def start(watch: Callable[[], None]) -> None:
        for name, text in exported.files.items():
            write_whole(out / name, text)
        run_job(
            command_of(exported, settings, out), out / "logs", watch=watch,
            environment=rank_environment_of(settings),
        )  # fmt: skip

    return run_watched(plan, settings, out, start)
