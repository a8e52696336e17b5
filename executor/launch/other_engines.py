"""A plan run by an installed training framework: its own launcher, its own log.

Hugging Face's frameworks are found here, and run by `hugging_face_run`.

torchtitan   installed as a package; the configuration is a module (0.3) or TOML (0.2)
megatron     run inside a checkout of Megatron-LM, which has `pretrain_gpt.py`
nanotron     run inside a checkout of nanotron, which has `run_train.py`
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import yaml

from meshplan.executor.frameworks import framework_named
from meshplan.executor.frameworks.export_notes import MEETING, check_training_is_said
from meshplan.executor.frameworks.torchtitan import export as torchtitan
from meshplan.executor.launch.failures import TORCHRUN_LOG, RankFailed
from meshplan.executor.launch.results import ComparedPart, RunResult, timing_fields, write_result
from meshplan.executor.launch.run import PLAN_FILE, RESULT_FILE, RunSettings, prepare
from meshplan.executor.launch.run_row import write_row
from meshplan.executor.launch.torchrun import Interrupted, run_job
from meshplan.executor.profile.progress import Bar
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.case.reading import Exported
from meshplan.planner.logs.console import READERS
from meshplan.planner.logs.lines import plain
from meshplan.planner.logs.training_log import TrainingLog


class NotInstalled(ValueError):
    """A framework that is not here; one line that says how to install it."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a framework is found: its Python package, and the script its checkout has.

    beside  packages that it needs here and does not install itself
    no_cpu  why it does not train on CPU processes, empty where it does. Read in torchtitan 0.2.2's
            and 0.3.0's `tools/utils.py`, Megatron-LM's `training/initialize.py`, nanotron@009b8f71
            `parallel/context.py`
    """

    package: str
    script: str | None
    install: str
    beside: tuple[str, ...] = ()
    no_cpu: str = ""


HOMES: Mapping[str, Home] = {
    "torchtitan": Home(
        "torchtitan", None, "pip install torchtitan",
        no_cpu="it takes CUDA where torch names no accelerator",
    ),
    "megatron": Home(
        "megatron.core", "pretrain_gpt.py",
        "git clone https://github.com/NVIDIA/Megatron-LM && cd Megatron-LM && pip install -e .",
        no_cpu='its pretrain_gpt.py asserts "Megatron requires CUDA"',
    ),
    "nanotron": Home(
        "nanotron", "run_train.py",
        "git clone https://github.com/huggingface/nanotron && cd nanotron && pip install -e .",
        no_cpu="it calls torch.cuda.set_device and takes the backend nccl only",
    ),
    "accelerate": Home(
        "accelerate", None, "pip install accelerate transformers", ("transformers",)
    ),
    "deepspeed": Home(
        "deepspeed", None, "DS_BUILD_OPS=0 pip install deepspeed transformers", ("transformers",),
    ),
    "transformers": Home("transformers", None, "pip install transformers"),
}  # fmt: skip


def check_installed(name: str, folder: Path) -> None:
    """Raise `NotInstalled` unless the framework `name` can be started from `folder`."""
    home = HOMES[name]
    top = home.package.split(".")[0]
    needed = (top, home.package, *home.beside)
    if any(importlib.util.find_spec(each) is None for each in needed):
        raise NotInstalled(
            f"{name} is not installed; install it with: {home.install}; or give --engine native"
        )
    if home.script and not (folder / home.script).exists():
        raise NotInstalled(
            f"{folder} has no {home.script}: run this inside a checkout of {name} ({home.install})"
        )


def export_for(name: str, plan: Plan, settings: RunSettings) -> Exported:
    """The plan in the format of the installed version of `name`, for as many steps as asked."""
    gpus_per_node = settings.placement.processes_per_node
    old = name == "torchtitan" and _has_torchtitan_0_2()
    exported = (
        torchtitan.export(plan, gpus_per_node, "0.2")
        if old
        else framework_named(name).export(plan, gpus_per_node)
    )
    check_training_is_said(name, exported)
    if settings.rendezvous:
        exported = replace(exported, launch=exported.launch.replace(MEETING, settings.rendezvous))
    return for_steps(exported, settings.warmup + settings.steps)


def _has_torchtitan_0_2() -> bool:
    """Whether torchtitan is here and of 0.2; where it is not, its latest format is shown."""
    try:
        return version("torchtitan").startswith("0.2")
    except PackageNotFoundError:
        return False


def for_steps(exported: Exported, steps: int) -> Exported:
    """The same run over so many steps, each of them logged."""
    if exported.framework != "nanotron":
        flags = STEP_FLAGS[exported.framework].format(steps=steps)
        return replace(exported, launch=f"{exported.launch} {flags}")
    files = {}
    for name, text in exported.files.items():  # it has no flag for it
        document = yaml.safe_load(text)
        document["tokens"]["train_steps"] = steps
        files[name] = yaml.safe_dump(document, sort_keys=False)
    return replace(exported, files=files)


STEP_FLAGS = {
    "torchtitan": "--training.steps {steps} --metrics.log_freq 1",
    "megatron": "--train-iters {steps}",
}


def command_of(exported: Exported, out: Path) -> str:
    """The launch command with the files that were written to `out`, by this Python, as a shell
    reads it: whatever characters the folder has.
    """
    words = list[str]()
    for word in shlex.split(exported.launch):
        if word == "torchrun":
            words += [sys.executable, "-m", "torch.distributed.run"]
        else:
            words.append(str(out / word) if word in exported.files else word)
    return shlex.join(words)


def run_elsewhere(name: str, plan: Plan, settings: RunSettings, out: Path) -> RunResult:
    """Run `plan` with the framework `name` and leave its result in `out`.

    Raises `RankFailed` and `Interrupted` as `run_job` does, after writing what the log says, and
    `CannotRun` if `out` cannot be made.
    """
    command = _written(name, plan, settings, out)
    logs = out / "logs"
    log = logs / TORCHRUN_LOG
    bar = Bar(settings.warmup + settings.steps)

    def look() -> None:
        steps = read_log(name, plan, log).steps if log.exists() else ()
        if steps:
            bar.show(f"{name}, step {steps[-1].step}", done=len(steps), left_s=0.0)

    paths = os.pathsep.join(filter(None, (str(out), os.environ.get("PYTHONPATH"))))
    problem, status = None, "failed"
    try:
        run_job(["bash", "-c", command], logs, watch=look, environment={"PYTHONPATH": paths})
        status = "complete"
    except Interrupted as error:
        problem, status = str(error), "interrupted"
        raise
    except RankFailed as error:
        problem = str(error)
        raise
    finally:
        bar.close()
        result = result_of(name, plan, settings, read_log(name, plan, log))
        result = result.model_copy(update={"status": status, "problem": problem})
        write_result(result, out / RESULT_FILE)
    if settings.gpu:
        write_row(plan, result, settings.gpu, out)
    return result


def read_log(name: str, plan: Plan, log: Path) -> TrainingLog:
    """What the framework has printed by now."""
    tokens = plan.training.global_batch_tokens
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return READERS[name](plain(text), tokens / plan.layout.world_size)


def _written(name: str, plan: Plan, settings: RunSettings, out: Path) -> str:
    """Leaves the plan and what is exported of it in `out`; the command that runs it."""
    prepare(plan, out)
    exported = export_for(name, plan, settings)
    for file, text in exported.files.items():
        write_whole(out / file, text)
    return command_of(exported, out)


def result_of(name: str, plan: Plan, settings: RunSettings, log: TrainingLog) -> RunResult:
    """The log as a result: step time and the largest peaks of any rank, beside the prediction."""
    timed = [step.step_time_s for step in log.steps if step.step > settings.warmup]
    p = plan.prediction
    band = settings.band if settings.band is not None else (p.error_fraction if p else None)
    return RunResult.model_validate({
        "status": "complete", "plan": PLAN_FILE, "layout": plan.layout.label, "engine": name,
        "device": settings.device, "versions": settings.versions, "date": settings.date,
        "parts": tuple(_parts(p, timed, log)), "band": band,
        "losses": tuple(step.loss for step in log.steps if step.loss is not None),
        **(timing_fields(plan, timed) if timed else {}),
    })  # fmt: skip


def _parts(
    p: Prediction | None, timed: Sequence[float], log: TrainingLog
) -> Iterator[ComparedPart]:
    """The median step, and the largest peaks."""
    if timed:
        predicted_s = p.step_time_s if p else None
        yield ComparedPart(
            name="step time", unit="s", predicted=predicted_s, measured=median(timed)
        )
    peaks = {"allocated": log.allocated_peak_bytes, "reserved": log.reserved_peak_bytes}
    for kind, peak in peaks.items():
        predicted = max(getattr(stage, kind) for stage in p.memory) if p and p.memory else None
        name = f"memory, {kind}"
        yield ComparedPart(name=name, unit="bytes", predicted=predicted, measured=peak)
