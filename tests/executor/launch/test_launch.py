"""Starting processes, and above all ending them; the ranks here are small programs of their own."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.start import Launcher, Starter, is_rank, rank_environment
from meshplan.executor.launch.torchrun import TorchrunJob, descendants, run_job, torchrun_command

RANKS = {
    "raising_rank": """
        import os, time
        if os.environ["RANK"] == "0":
            time.sleep(600)
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("the matrix is not square")
        main()
        """,
    "refusing_rank": """
        import os, sys, time
        if os.environ["RANK"] == "0":
            print("7 heads do not divide by 2", file=sys.stderr)
            sys.exit(2)
        time.sleep(600)
        """,
    "waiting_rank": """
        import os, pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a rank that hangs in a collective
        folder = pathlib.Path(os.environ["PID_FOLDER"])
        (folder / os.environ["RANK"]).write_text(str(os.getpid()))
        time.sleep(600)
        """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs above as modules that ranks can be started with."""
    for name, text in RANKS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PID_FOLDER", str(tmp_path))
    return tmp_path


def test_command_on_one_host_and_on_two() -> None:
    """One host meets by itself; several meet at the rendezvous, with the same command on each."""
    alone = torchrun_command(
        TorchrunJob(module="m", arguments=("x",), processes_per_node=2), "logs", "py"
    )
    assert alone == [
        "py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "--log-dir=logs", "--redirects=3", "-m", "m", "x",
    ]  # fmt: skip
    job = TorchrunJob(module="m", processes_per_node=8, nodes=2, rendezvous="gpu1:29500")
    both = torchrun_command(job, "logs", "py")
    assert {"--nnodes=2", "--rdzv-endpoint=gpu1:29500"} < set(both)
    assert "--standalone" not in both


ENDS = {
    "raising_rank": "rank 1: ValueError: the matrix is not square",
    "refusing_rank": "rank 0: 7 heads do not divide by 2",
}


def test_the_failing_ranks_own_error_comes_first(folder: Path) -> None:
    """However a rank dies, the first line is its error, not torchrun's; the others are ended. In
    one folder after each other: the exception that the run before left is not told again.
    """
    for module, message in ENDS.items():
        start, job = time.monotonic(), TorchrunJob(module=module, processes_per_node=2)
        with pytest.raises(RankFailed) as failed:
            run_job(torchrun_command(job, folder / "logs"), folder / "logs")
        assert str(failed.value).splitlines()[0] == message
        assert str(folder / "logs") in str(failed.value)
        assert time.monotonic() - start < 300  # the other rank sleeps 600 s


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_no_process_survives_an_interrupt(folder: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM on the starting process ends even ranks that ignore SIGTERM."""
    program = f"""
        import pathlib, signal, sys
        import meshplan.executor.launch.torchrun
        from meshplan.executor.launch.torchrun import Interrupted, TorchrunJob
        from meshplan.executor.launch.torchrun import run_job, torchrun_command
        # what a script starts in the background ignores it: the tests may run so
        signal.signal(signal.SIGINT, signal.default_int_handler)
        meshplan.executor.launch.torchrun.GRACE_S = 1.0
        logs = pathlib.Path({str(folder / "logs")!r})
        job = TorchrunJob(module="waiting_rank", processes_per_node=2)
        try:
            run_job(torchrun_command(job, logs), logs)
        except Interrupted:
            sys.exit(77)
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    files = [folder / "0", folder / "1"]
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.1)
    family = descendants(parent.pid)
    pids = [int(file.read_text()) for file in files]
    assert set(pids) < set(family)
    parent.send_signal(number)
    assert parent.wait(timeout=120) == 77
    assert [pid for pid in family if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Whether the process still runs; one that is dead but not yet waited for does not."""
    answer = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(answer.stdout.strip()) and not answer.stdout.startswith("Z")


def test_a_rank_of_torchrun_or_srun_knows_itself() -> None:
    """torchrun's ranks and the tasks of an srun step are ranks; a login shell is not."""
    assert not is_rank({})
    assert not is_rank({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    assert is_rank({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"})
    srun = {
        "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9", "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_STEP_NODELIST": "gpu7", "SLURM_JOB_ID": "42",
    }  # fmt: skip
    assert is_rank(srun)
    assert rank_environment(srun) == {
        "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "gpu7", "MASTER_PORT": "20042",
    }  # fmt: skip


def test_print_shows_what_would_run(tmp_path: Path) -> None:
    """What is printed is a shell command, or an sbatch script, for the same job."""
    job = TorchrunJob(module="m", arguments=("a b",), processes_per_node=2)
    assert "-m m 'a b'" in Starter().shown(job, tmp_path)
    script = Starter(launcher=Launcher.slurm, slurm=("--time=5",)).shown(job, tmp_path)
    assert script.startswith("#!/bin/bash")
    assert "#SBATCH --time=5" in script
