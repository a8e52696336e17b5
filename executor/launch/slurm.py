"""A job on a Slurm cluster: an sbatch script of one torchrun per node, submitted and followed.

The script can be printed and submitted by hand. Logs and results go to a folder that every node
must see. A job outlives whoever follows it: its number is kept in the folder, and it can be
followed again or cancelled from there.
"""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshplan.executor.launch.failures import TORCHRUN_LOG, RankFailed, first_failure, read_tail
from meshplan.executor.launch.torchrun import (
    Interrupted,
    TorchrunJob,
    shell_command,
    signals_raise,
)
from meshplan.planner.text_files import CannotWrite, write_text

POLL_S = 5.0
SILENT_S = 300.0  # the controller may be restarted, and does not answer meanwhile
FIRST_PORT, NUM_PORTS = 20000, 10000  # one by job number: jobs may share a host
SCRIPT_FILE, NUMBER_FILE, EXIT_FILE, LOG_FILE = "job.sbatch", "slurm.job", "exit_code", "slurm.log"
ENDED = {
    "COMPLETED": "has completed",
    "FAILED": "failed",
    "TIMEOUT": "reached its time limit; give it more by --slurm '--time=MINUTES'",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "took more memory of a node than it had been given",
    "PREEMPTED": "had to make way for another job",
    "DEADLINE": "could not end before its deadline",
    "BOOT_FAIL": "got a node that did not start",
    "REVOKED": "was taken back by another cluster",
}
"""States that a job does not leave again (squeue(1), JOB STATE CODES), in words."""


class SlurmFailed(RuntimeError):
    """Slurm refused or ended the job; the text is what it said and where the logs are."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as Slurm sees it; `where`: the reason it waits for, or the nodes it has."""

    name: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.where}".rstrip()


def batch_script(job: TorchrunJob, extra: Sequence[str], out: Path) -> str:
    """The sbatch script, with `extra` options such as "--partition=gpu".

    `$HEAD`, `$PORT` and the node's number are filled in by the shell on the cluster. A job is not
    begun anew when a node fails: what was measured would be of two runs. Raises `SlurmFailed` for
    an option or a folder that would be more than one line of the script.
    """
    log = str(out / LOG_FILE).replace("%", "%%")
    directives = [
        "--job-name=meshplan", f"--nodes={job.nodes}", "--ntasks-per-node=1", "--exclusive",
        "--no-requeue", f"--output={log}", *extra,
    ]  # fmt: skip
    if broken := next((text for text in directives if not text.isprintable()), None):
        raise SlurmFailed(f"{broken!r} is not an #SBATCH option: it must be one printable line")
    lines = (
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(directive)}" for directive in directives),
        "",
        "set -eu",
        f"export LOGS={shlex.quote(str(out))}/logs/$SLURM_JOB_ID",
        f'mkdir -p "$LOGS" && trap \'echo $? > "$LOGS/{EXIT_FILE}"\' EXIT',
        f"export PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
        'export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "status=0",
        # the ranks of a node are one task, which gets every core of the job there
        f"srun --kill-on-bad-exit=1 --cpu-bind=none bash -c {_on_node(job)} || status=$?",
        f'mkdir -p "$LOGS" && echo $status > "$LOGS/{EXIT_FILE}"',
        "exit $status",
    )
    return "\n".join(lines) + "\n"


def _on_node(job: TorchrunJob) -> str:
    """What the shell of each node runs, as one word of the script."""
    command = shell_command(
        job, '"$LOGS"', endpoint='"$HEAD:$PORT"', is_first="$((SLURM_NODEID == 0))"
    )
    run = f'exec {command} > "$LOGS/{TORCHRUN_LOG}" 2>&1'
    return shlex.quote(f'LOGS="$LOGS/$SLURM_NODEID"; mkdir -p "$LOGS"; {run}')


def submit(job: TorchrunJob, extra: Sequence[str], out: Path) -> str:
    """Submit the script; the job's number, which is left in `out` too.

    Raises `SlurmFailed` if Slurm does not take it, or a job of this folder has not ended.
    """
    _check_found("sbatch")
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    script = out / SCRIPT_FILE
    write_text(script, batch_script(job, extra, out))
    write_text(out / NUMBER_FILE, "")  # what cannot be kept must not be submitted
    try:
        number = _said(["sbatch", "--parsable", str(script)]).split(";")[0]
    except SlurmFailed:
        (out / NUMBER_FILE).unlink()
        raise
    _keep(number, out / NUMBER_FILE)
    return number


def _keep(number: str, path: Path) -> None:
    """Write the number of a job that runs by now; without it nobody finds the job again."""
    try:
        write_text(path, f"{number}\n")
    except CannotWrite as error:
        raise SlurmFailed(
            f"Slurm job {number} was submitted, and its number cannot be kept: {error}; cancel it "
            f"with: scancel {number}"
        ) from None


def check_free(out: Path) -> None:
    """Raise `SlurmFailed` if a job that was submitted from `out` has not ended."""
    if not (out / NUMBER_FILE).exists() or shutil.which("scontrol") is None:
        return
    number = submitted(out)
    state = state_of(number)
    if state is not None and state.name not in ENDED:
        raise SlurmFailed(
            f"Slurm job {number} of this folder is {state}: let it end, cancel it with: scancel "
            f"{number}; or use another folder than {out}"
        )


def submitted(out: Path) -> str:
    """The number of the job that was submitted from `out`; raises `SlurmFailed` if none was."""
    path = out / NUMBER_FILE
    if not path.exists():
        raise SlurmFailed(f"no job was submitted from {out}: there is no {NUMBER_FILE} in it")
    number = path.read_text(encoding="utf-8").strip()
    if not number.isdecimal():
        raise SlurmFailed(f"{path} holds no job number; remove it")
    return number


def cancel(number: str) -> None:
    """Ask Slurm to end the job; one that has ended is left as it is. Raises `SlurmFailed`."""
    _check_found("scancel")
    _said(["scancel", number])


def follow(
    number: str,
    out: Path,
    *,
    watch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
    poll_s: float = POLL_S,
) -> None:
    """Wait for the end of the job, calling `watch` meanwhile and `say` with each new state.

    Raises `SlurmFailed` if it ended badly without a rank's error, `RankFailed` with the first
    failing rank's error, `Interrupted` on Ctrl-C or SIGTERM, after which the job goes on. Where
    `watch` finds that a rank hangs, the job is cancelled.
    """
    _check_found("scontrol")
    try:
        with signals_raise():
            state = _wait(number, watch, say, poll_s)
            watch()
    except KeyboardInterrupt:
        raise Interrupted(
            f"Slurm job {number} goes on and is no longer followed; cancel it with: scancel "
            f"{number}"
        ) from None
    except RankFailed:
        cancel(number)
        raise
    _check_end(number, state or _by_exit_code(number, out), out)


def _check_end(number: str, state: JobState, out: Path) -> None:
    """Raise what a job says that did not complete: its first failing rank, else its state."""
    logs = out / "logs" / number
    if state.name == "COMPLETED":
        return
    if state.name == "FAILED" and any(logs.rglob("*.log")):
        raise first_failure(logs, 1)
    said = read_tail(out / LOG_FILE)
    end = f"Slurm job {number} {ENDED[state.name]} ({state.name}); logs: {logs}"
    raise SlurmFailed(f"{end}\n{said}" if said and state.name == "FAILED" else end)


def _by_exit_code(number: str, out: Path) -> JobState:
    """How a job ended that Slurm has forgotten, by what its script wrote last."""
    path = out / "logs" / number / EXIT_FILE
    if not path.exists():
        raise SlurmFailed(
            f"Slurm no longer knows job {number}, and its script did not come to its end (it was "
            f"cancelled, out of time or on a node that died); logs: {path.parent}"
        )
    return JobState("COMPLETED" if path.read_text().strip() == "0" else "FAILED")


def _wait(
    number: str, watch: Callable[[], None], say: Callable[[str], None], poll_s: float
) -> JobState | None:
    """The state in which the job ended, None if Slurm has forgotten it; `say` hears the others."""
    before = None
    while True:
        state = _state_patiently(number, poll_s)
        if state is None or state.name in ENDED:
            return state
        if state != before:
            say(f"Slurm job {number}: {state}")
        before = state
        watch()
        time.sleep(poll_s)


def _state_patiently(number: str, poll_s: float) -> JobState | None:
    """The state by now; a controller that does not answer is asked again for `SILENT_S`."""
    asked = time.monotonic()
    while True:
        try:
            return state_of(number)
        except SlurmFailed:
            if time.monotonic() - asked > SILENT_S:
                raise
        time.sleep(poll_s)


def state_of(number: str) -> JobState | None:
    """What Slurm says of a job, None of one it does not know: it forgets one some minutes after its
    end. Raises `SlurmFailed` where it does not answer.
    """
    try:
        said = _said(["scontrol", "show", "job", number])
    except SlurmFailed as error:
        if "Invalid job id" in str(error):
            return None
        raise
    fields = dict(re.findall(r"\b(JobState|Reason|NodeList)=(\S+)", said))
    name, nodes, why = (fields.get(key, "") for key in ("JobState", "NodeList", "Reason"))
    if nodes and nodes != "(null)":
        return JobState(name, f"on {nodes}")
    return JobState(name, f"({why})" if why != "None" else "")


def _check_found(name: str) -> None:
    if shutil.which(name) is None:
        raise SlurmFailed(f"there is no {name} here: run this on a login node, or use --print")


def _said(command: list[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SlurmFailed(f"{command[0]}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout.strip()
