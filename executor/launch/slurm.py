"""A job on a Slurm cluster: an sbatch script of one torchrun per node, submitted and waited for.

The script can be printed and submitted by hand. Logs and results go to a folder that every node
must see.
"""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from meshplan.executor.launch.failures import TORCHRUN_LOG, first_failure
from meshplan.executor.launch.torchrun import Interrupted, TorchrunJob, torchrun_command
from meshplan.hardware_profiles.whole_file import write_whole

POLL_S = 5.0
FIRST_PORT, NUM_PORTS = 20000, 10000  # one by job number: jobs may share a host
WAITING = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING"}


class SlurmFailed(RuntimeError):
    """Slurm refused or ended the job; the text is what it said and where the logs are."""


def batch_script(job: TorchrunJob, extra: Sequence[str], out: Path) -> str:
    """The sbatch script, with `extra` options such as "--partition=gpu".

    `$HEAD`, `$PORT` and the node's number are filled in by the shell on the cluster. Raises
    `SlurmFailed` for an option or a folder that would be more than one line of the script.
    """
    directives = [
        "--job-name=meshplan", f"--nodes={job.nodes}", "--ntasks-per-node=1", "--exclusive",
        f"--output={out}/slurm.log", *extra,
    ]  # fmt: skip
    if broken := next((text for text in directives if not text.isprintable()), None):
        raise SlurmFailed(f"{broken!r} is no #SBATCH option: it must be one printable line")
    command = shlex.join(torchrun_command(replace(job, rendezvous="@head@"), "@logs@"))
    command = command.replace("@head@", '"$HEAD:$PORT"').replace("@logs@", '"$LOGS"')
    on_node = "; ".join(
        (
            f"LOGS={shlex.quote(str(out))}/logs/$SLURM_NODEID",
            'mkdir -p "$LOGS"',
            f'exec {command} > "$LOGS/{TORCHRUN_LOG}" 2>&1',
        )
    )
    lines = (
        "#!/bin/bash",
        *(f"#SBATCH {directive}" for directive in directives),
        "",
        "set -eu",
        f"export PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
        'export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(on_node)}",
    )
    return "\n".join(lines) + "\n"


def run_slurm(
    job: TorchrunJob,
    extra: Sequence[str],
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
    write_whole(script, batch_script(job, extra, out))
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
    """The state in which the job ended; Slurm keeps it for some minutes, without accounting too."""
    while True:
        match = re.search(r"JobState=(\w+)", _said(["scontrol", "show", "job", number]))
        if match and match[1] not in WAITING:
            return match[1]
        watch()
        time.sleep(poll_s)


def _said(command: list[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SlurmFailed(f"{command[0]}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout.strip()
