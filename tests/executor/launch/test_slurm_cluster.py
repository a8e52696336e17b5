"""`meshplan execute --launcher slurm` on a Slurm cluster of two nodes, which are both this machine.

    pytest -m slurm        (docs/execute.md says what it needs)

`tests/support/slurm.sh` makes the cluster, and ends it with this process, however that ends.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tiny_runs import tiny_plan, tiny_prediction

from meshplan.planner.case.plan_file import write_plan

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        not (shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0),
        reason="needs root, and Debian's slurm-wlm and munge: no slurmctld or munged here",
    ),
]
SCRIPT = Path(__file__).parents[2] / "support" / "slurm.sh"
MESHPLAN = Path(sys.executable).with_name("meshplan")
ENDLESS = ("--steps", "1000000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a running cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    with subprocess.Popen(
        [SCRIPT, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield folder / "slurm.conf"
        process.stdin.close()


class Execution:
    """One plan, and commands about it on the cluster; `out` is the folder of its run."""

    def __init__(self, folder: Path, conf: Path) -> None:
        self.plan, self.out = folder / "plan.yaml", folder / "a run, 100 %j"
        self._environment = {**os.environ, "SLURM_CONF": str(conf)}
        self._started: list[subprocess.Popen[str]] = []
        write_plan(tiny_plan(prediction=tiny_prediction(1.0)), self.plan)

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """The command on both nodes, following its job."""
        command = [MESHPLAN, "execute", self.plan, "--out", self.out, "--launcher", "slurm",
                   "--nodes", "2", "--band", "1e9", *options]  # fmt: skip
        process = subprocess.Popen(
            command, env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process

    def clear(self) -> None:
        """Leave neither a command nor a job behind."""
        for process in self._started:
            process.kill()
            process.communicate()
        self.ask("scancel", "--user=root")
        until(lambda: not self.ask("squeue", "--noheader"), "the nodes are not free")

    def end(self, *options: str) -> tuple[int, str]:
        """The exit code of the command, and what it said."""
        return ended(self.start(*options))

    def ask(self, *command: str) -> str:
        """What a command of Slurm's says."""
        return subprocess.run(
            command, env=self._environment, text=True, capture_output=True, check=True
        ).stdout

    def result(self) -> dict[str, object]:
        """The result by now; empty before there is one."""
        path = self.out / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def trains(self, process: "subprocess.Popen[str]") -> None:
        """Wait until the command `process` has seen a timed step."""
        until(lambda: self.result().get("step_time_s") or process.poll() is not None, "no step")
        assert process.poll() is None, ended(process)

    def number(self) -> str:
        """The number of the job."""
        return (self.out / "slurm.job").read_text().strip()

    def rank(self, number: int) -> int:
        """The process of a rank."""
        records = str(self.out / "ranks").encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if records not in (path / "cmdline").read_bytes().split(b"\0"):
                    continue
                if f"RANK={number}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    return int(path.name)
        raise AssertionError(f"no rank {number}")


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code of a command, and all that it said."""
    said, complained = process.communicate(timeout=300)
    return process.returncode, said + complained


def until(true: Callable[[], object], what: str) -> None:
    """Wait until `true` is so."""
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture
def run(tmp_path: Path, cluster: Path) -> Iterator[Execution]:
    """A plan of two ranks, one for each node, and the cluster to itself."""
    run = Execution(tmp_path, cluster)
    yield run
    run.clear()


def test_a_job_is_submitted_followed_and_compared(run: Execution) -> None:
    """Both nodes train, and the measured step stands beside the predicted one: exit 0."""
    code, said = run.end("--steps", "3", "--warmup", "1")
    assert code == 0, said
    assert f"Slurm job {run.number()}: RUNNING on n[1-2]" in said
    assert re.search(r"step time +[\d.]+ m?s +[\d.]+ m?s", said), said
    assert "the file predicts 1 s a step; its layout takes" in said
    result = run.result()
    assert result["status"] == "complete"
    assert len(result["step_times_s"]) == 3
    assert len(result["ranks"]) == 2
    logs = run.out / "logs" / run.number()
    assert {path.name for path in logs.iterdir()} == {"0", "1", "exit_code"}
    assert (run.out / "runs.csv").exists()


def test_a_rank_has_every_core_of_its_node(run: Execution) -> None:
    """One thread per core is often asked for, and binds the one task of a node to one core of it
    unless Slurm is told not to.
    """
    process = run.start(*ENDLESS, "--slurm", "--threads-per-core=1")
    run.trains(process)
    assert os.sched_getaffinity(run.rank(0)) == os.sched_getaffinity(0)
    run.ask("scancel", run.number())
    ended(process)


def test_submitted_now_collected_later(run: Execution) -> None:
    """`--job submit` returns at once; `--job collect` waits for the end, and may be asked again."""
    code, said = run.end("--steps", "3", "--warmup", "1", "--job", "submit")
    assert code == 0, said
    assert f"submitted Slurm job {run.number()}" in said
    assert run.result() == {}
    for _ in range(2):
        code, said = run.end("--job", "collect")
        assert code == 0, said
        assert run.result()["status"] == "complete"


def test_an_interrupt_leaves_the_job_until_it_is_cancelled(run: Execution) -> None:
    """Ctrl-C: exit 130 and how to go on; the job runs on, and ends by `--job cancel`."""
    process = run.start(*ENDLESS)
    run.trains(process)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    number = run.number()
    assert code == 130, said
    assert f"cancel it with: scancel {number}" in said
    assert "--job collect" in said
    assert run.result()["status"] == "interrupted"
    assert "JobState=RUNNING" in run.ask("scontrol", "show", "job", number)
    code, said = run.end("--steps", "3")
    assert code == 1
    assert f"Slurm job {number} of this folder is RUNNING on n[1-2]" in said
    assert run.end("--job", "cancel") == (0, f"cancelled Slurm job {number}\n")
    code, said = run.end("--job", "collect")
    assert code == 1
    assert f"Slurm job {number} was cancelled (CANCELLED)" in said
    assert run.result()["step_time_s"]


def test_a_job_that_is_cancelled_meanwhile(run: Execution) -> None:
    """Somebody's scancel: exit 1 with Slurm's word for it, and what was measured is kept."""
    process = run.start(*ENDLESS)
    run.trains(process)
    run.ask("scancel", run.number())
    code, said = ended(process)
    assert code == 1
    assert said.splitlines()[-1].startswith(f"error: Slurm job {run.number()} was cancelled")
    assert run.result()["status"] == "failed"
    assert run.result()["step_time_s"]


def test_a_failing_rank_is_named(run: Execution, tmp_path: Path) -> None:
    """A rank that refuses its data: exit 1, its own words in the first line."""
    (tmp_path / "tokens.bin").write_bytes(b"\1\0" * 8)
    code, said = run.end("--data", str(tmp_path / "tokens.bin"))
    assert code == 1
    assert re.search(r"^error: rank [01]: .*tokens\.bin", said, re.MULTILINE), said


def test_a_rank_that_dies_is_named(run: Execution) -> None:
    """SIGKILL on one rank ends the job: exit 1, and it is that rank that is named."""
    process = run.start(*ENDLESS)
    run.trains(process)
    os.kill(run.rank(1), signal.SIGKILL)
    code, said = ended(process)
    assert code == 1
    assert "error: rank 1: was killed by SIGKILL (out of memory?)" in said


def test_a_rank_that_hangs_ends_the_job(run: Execution) -> None:
    """No progress for --timeout: exit 1, and the job does not go on holding its nodes."""
    process = run.start(*ENDLESS, "--timeout", "5")
    run.trains(process)
    os.kill(run.rank(1), signal.SIGSTOP)
    code, said = ended(process)
    assert code == 1
    assert "hangs in phase" in said
    job = run.number()
    until(lambda: "JobState=CANCELLED" in run.ask("scontrol", "show", "job", job), "it goes on")


def test_a_job_beyond_its_time_limit(run: Execution) -> None:
    """Slurm ends it after the minute that it asked for: exit 1, and which limit it was."""
    process = run.start(*ENDLESS, "--slurm", "--time=1")
    run.trains(process)
    for rank in (0, 1):
        os.kill(run.rank(rank), signal.SIGSTOP)
    code, said = ended(process)
    assert code == 1
    assert f"error: Slurm job {run.number()} reached its time limit" in said
    assert run.result()["status"] == "failed"


def test_a_submission_that_slurm_refuses(run: Execution) -> None:
    """sbatch's own words, exit 1."""
    code, said = run.end("--slurm", "--partition=none")
    assert code == 1
    assert re.search("error: sbatch: .*partition", said), said
