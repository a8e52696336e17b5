"""A job on a Slurm cluster: an sbatch script of one torchrun per node, submitted and waited for.

The script can be printed and submitted by hand. Logs and results go to a folder that every node
must see.
"""

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from executor.failures import TORCHRUN_LOG, first_failure
from executor.launch import Interrupted, Job, torchrun_command

POLL_S = 5.0
PORT = 29500  # torchrun's default rendezvous port
WAITING = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING"}


class SlurmFailed(RuntimeError):
    """Slurm refused or ended the job; the text is what it said and where the logs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What Slurm must know besides the job; None leaves it to the cluster's defaults."""

    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None
    gpus_per_node: int = 0
    extra: tuple[str, ...] = ()


def batch_script(job: Job, options: SlurmOptions, out: Path) -> str:
    """The sbatch script; `$HEAD` and the node number are filled in by the shell on the cluster."""
    directives = [
        "--job-name=meshplan",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        "--exclusive",
        f"--output={out}/slurm.log",
        *([f"--gpus-per-node={options.gpus_per_node}"] if options.gpus_per_node else []),
        *([f"--partition={options.partition}"] if options.partition else []),
        *([f"--account={options.account}"] if options.account else []),
        *([f"--time={options.time_limit}"] if options.time_limit else []),
        *options.extra,
    ]
    on_node = Job(
        module=job.module,
        arguments=job.arguments,
        nodes=job.nodes,
        processes_per_node=job.processes_per_node,
        rendezvous="@head@",
    )
    command = shlex.join(torchrun_command(on_node, "@logs@", python="python"))
    command = command.replace("@head@", f'"$HEAD:{PORT}"').replace("@logs@", '"$LOGS"')
    inner = [
        f"LOGS={shlex.quote(str(out))}/logs/$SLURM_NODEID",
        'mkdir -p "$LOGS"',
        f'exec {command} > "$LOGS/{TORCHRUN_LOG}" 2>&1',
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {directive}" for directive in directives),
            "",
            "set -eu",
            'export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"srun --kill-on-bad-exit=1 bash -c {shlex.quote('; '.join(inner))}",
            "",
        ]
    )


def run_slurm(
    job: Job,
    options: SlurmOptions,
    out: Path,
    *,
    watch: Callable[[], None] = lambda: None,
    poll_s: float = POLL_S,
) -> None:
    """Submit the script to Slurm and wait for the end of the job, calling `watch` meanwhile.

    Raises `SlurmFailed` if it cannot be submitted or ended badly without a rank's error,
    `RankFailed` with the first failing rank's error, `Interrupted` after cancelling it on Ctrl-C.
    """
    if shutil.which("sbatch") is None:
        raise SlurmFailed("there is no sbatch here: run this on a login node, or use --print")
    out.mkdir(parents=True, exist_ok=True)
    script = out / "job.sbatch"
    script.write_text(batch_script(job, options, out), encoding="utf-8")
    number = _said(["sbatch", "--parsable", str(script)]).split(";")[0]
    try:
        state = _wait(number, watch, poll_s)
    except KeyboardInterrupt:
        _said(["scancel", number])
        raise Interrupted(f"cancelled Slurm job {number}; logs are in {out}") from None
    watch()
    if state != "COMPLETED":
        if any((out / "logs").rglob("*.log")):
            raise first_failure(out / "logs", 1)
        raise SlurmFailed(f"Slurm job {number} ended as {state}; see {out}/slurm.log")


def _wait(number: str, watch: Callable[[], None], poll_s: float) -> str:
    """The state in which the job ended."""
    while True:
        # A finished job leaves squeue after some minutes, and sacct learns of one a little late.
        queued = _said(["squeue", "--noheader", "--format=%T", f"--jobs={number}"], check=False)
        if queued.strip() not in WAITING:
            command = ["sacct", "--noheader", "-X", "--format=State%30", f"--jobs={number}"]
            words = _said(command).split()
            if words and words[0] not in WAITING:
                return words[0]
        watch()
        time.sleep(poll_s)


def _said(command: list[str], *, check: bool = True) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and answer.returncode:
        raise SlurmFailed(f"{command[0]}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout.strip()
