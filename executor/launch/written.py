"""A plan as a file by which another system starts it: a SkyPilot task, a Kubeflow PyTorchJob.

The file is written or printed, and nothing is started. Its user brings back what the ranks
measured, and `--job collect` compares it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshplan.executor.launch import kubeflow, skypilot
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.run import PLAN_FILE, RunSettings, job_of, prepare
from meshplan.executor.launch.start import Launcher
from meshplan.hardware_profiles.schema import Gpu
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.text_files import write_text

KEYS = {Launcher.skypilot: skypilot.KEYS, Launcher.kubeflow: kubeflow.KEYS}
FILES = {Launcher.skypilot: skypilot.FILE, Launcher.kubeflow: kubeflow.FILE}

NAMES = ("name", "namespace", "claim")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,39}[a-z0-9])?")
"""Kubernetes' labels (RFC 1035), of which pods and services have a suffix, in 63 characters; a
name of SkyPilot's cluster may be the same.
"""


def given_of(launcher: Launcher, texts: Sequence[str]) -> dict[str, str]:
    """The values of `--set KEY=VALUE`; raises `CannotRun` for a key that the launcher has not."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        known = KEYS.get(launcher, ())
        if not equals or not value or key not in known:
            keys = f"it has {', '.join(known)}" if known else "it has none"
            raise CannotRun(f"--set {text!r} is not a KEY=VALUE of --launcher {launcher}: {keys}")
        if not value.isprintable():
            raise CannotRun(f"--set {text!r}: it must be one printable line")
        if key in NAMES and not NAME.fullmatch(value):
            raise CannotRun(
                f"--set {text!r}: a name has small letters, digits and dashes, at most 41 of them, "
                "and begins with a letter"
            )
        given[key] = value
    return given


def file_text(
    plan: Plan, settings: RunSettings, given: dict[str, str], gpu: Gpu | None, out: Path
) -> str:
    """The file that starts `plan`, whose folder here is `out`; raises `CannotRun`.

    gpu  the one of the plan's profile
    """
    if gpu is None:
        raise CannotRun(
            f"the profile {plan.cluster.name!r} is not at hand, which names the GPU to ask for; "
            "give its file with --cluster"
        )
    there = Path("@run@")
    tokens = there / skypilot.TOKENS if settings.data else None
    job = job_of(replace(settings, data=tokens), there)
    if settings.starter.launcher is Launcher.kubeflow:
        if settings.data is not None:
            raise CannotRun(
                "--data is a file of this host, which a pod does not have; leave it out"
            )
        return kubeflow.job_files(job, given, vendor=gpu.vendor, plan_text=plan.to_yaml())
    name = None if gpu.vendor == "cpu" else gpu.name
    return skypilot.task(job, given, gpu=name, plan=out / PLAN_FILE, data=settings.data)


def write_file(
    text: str, plan: Plan, settings: RunSettings, given: dict[str, str], out: Path
) -> str:
    """Write the plan and the file into `out`; what to type next, a command a line."""
    launcher = settings.starter.launcher
    file = out / FILES[launcher]
    prepare(plan, out)
    write_text(file, text)
    commands = (
        kubeflow.next_commands(given, file)
        if launcher is Launcher.kubeflow
        else skypilot.next_commands(given, file, settings.placement.nodes)
    )
    return "\n".join(
        [f"written: {file}", "next:", *(f"  {command}" for command in commands),
         f"  the same command with --job collect, once {out / 'ranks'} has the ranks' records"]
    )  # fmt: skip
