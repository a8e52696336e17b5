"""Where a job's processes run: on this host, on several hosts by hand, or under Slurm."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshplan.executor.launch.slurm import FIRST_PORT, NUM_PORTS, batch_script, follow, submit
from meshplan.executor.launch.torchrun import TorchrunJob, run_job, torchrun_command


class Launcher(StrEnum):
    """Who starts the processes: torchrun on this host (and on each of the others), Slurm, or a
    system that a file is written for.
    """

    torchrun = "torchrun"
    slurm = "slurm"
    skypilot = "skypilot"
    kubeflow = "kubeflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A launcher.

    slurm  further options for sbatch
    host   this host's address among several, whose logs are then apart
    """

    launcher: Launcher = Launcher.torchrun
    slurm: tuple[str, ...] = ()
    host: str | None = None

    def shown(self, job: TorchrunJob, out: Path) -> str:
        """What `start` would run, as a shell reads it."""
        if self.launcher is Launcher.slurm:
            return batch_script(job, self.slurm, out)
        variables = [f"{name}={shlex.quote(value)}" for name, value in job.environment.items()]
        return " ".join([*variables, shlex.join(torchrun_command(job, out / "logs"))])

    def start(self, job: TorchrunJob, out: Path, watch: Callable[[], None]) -> None:
        """Run the job to its end; raises what `run_job`, or `submit` and `follow`, raise."""
        if self.launcher is Launcher.slurm:
            follow(submit(job, self.slurm, out), out, watch=watch, say=say)
        else:
            logs = out / "logs" / self.host if self.host else out / "logs"
            run_job(torchrun_command(job, logs), logs, watch=watch, environment=job.environment)


def say(line: str) -> None:
    """A line of progress for whoever follows a job, above the bar."""
    print(line, file=sys.stderr, flush=True)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether torchrun, or srun with several tasks, started this very process."""
    return (
        "TORCHELASTIC_RUN_ID" in environment
        or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    )


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for a process that srun started; nothing to add for torchrun's own."""
    if "RANK" in environment:
        return {}
    first = re.match(r"\d+", environment["SLURM_STEP_TASKS_PER_NODE"])
    assert first, "Slurm writes 8(x2)"
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_WORLD_SIZE": first[0],
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(FIRST_PORT + int(environment["SLURM_JOB_ID"]) % NUM_PORTS),
    }


def first_host(node_list: str) -> str:
    """The first of Slurm's hosts, which it writes folded: gpu[003-004,009]."""
    if "[" not in node_list:
        return node_list.split(",")[0]
    answer = subprocess.run(
        ["scontrol", "show", "hostnames", node_list], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[0]


def become_rank() -> None:
    """Put torchrun's variables into this process's environment, where srun started it."""
    os.environ.update(rank_environment(os.environ))
