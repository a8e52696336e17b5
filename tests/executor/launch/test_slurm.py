"""Jobs under Slurm; sbatch, srun, scancel and scontrol are stood in for by scripts.

The stand-in sbatch runs the submitted script: its commands are run, its directives are read by
nobody here. `test_slurm_cluster.py` meets Slurm itself.
"""

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from small_torchrun import stand_in

from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.slurm import (
    EXIT_FILE,
    SlurmFailed,
    batch_script,
    cancel,
    check_free,
    follow,
    submit,
    submitted,
)
from meshplan.executor.launch.torchrun import Interrupted, TorchrunJob

COMMANDS = {
    "sbatch": """
        export SLURM_JOB_ID=$(( $$ % 9000 )) SLURM_JOB_NODELIST=node[1-2]
        echo $SLURM_JOB_ID
        if bash "$2" > "$FAKE/said" 2>&1; then echo COMPLETED; else echo FAILED; fi > "$FAKE/state"
        """,
    "scontrol": """
        [ "$2" = hostnames ] && echo localhost
        [ "$2" = job ] && echo "JobId=$3 JobName=meshplan JobState=$(cat "$FAKE/state") Reason=None"
        """,
    "srun": """
        shift 2
        export SLURM_NODEID=0
        exec "$@"
        """,
    "scancel": 'echo "$1" > "$FAKE/cancelled"',
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-ins, first in the path, and a module that ranks run."""
    for name, body in COMMANDS.items():
        script = tmp_path / name
        script.write_text(f"#!/bin/bash\n{textwrap.dedent(body)}\n", encoding="utf-8")
        script.chmod(0o755)
    module = tmp_path / "some_rank.py"
    module.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['WORLD_SIZE'])\n"
        "if sys.argv[2] == 'fail': sys.exit('no such token file')\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path('/usr/bin')}:{Path('/bin')}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE", str(tmp_path))
    return tmp_path


def _run(
    job: TorchrunJob,
    out: Path,
    *,
    watch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    follow(submit(job, (), out), out, watch=watch, say=say, poll_s=0.01)


def _job(fake: Path, what: str = "pass") -> TorchrunJob:
    return TorchrunJob(module="some_rank", arguments=(str(fake), what), processes_per_node=2)


def test_script_by_hand(tmp_path: Path) -> None:
    """One task per node, each of which is a torchrun that meets the others at the first node."""
    job = TorchrunJob(
        module="m", arguments=("it's",), processes_per_node=8, nodes=4,
        environment={"OMP_NUM_THREADS": "3"},
    )  # fmt: skip
    script = batch_script(job, ("--partition=gpu", "--gpus-per-node=8"), tmp_path)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for line in ("--nodes=4", "--ntasks-per-node=1", "--partition=gpu", "--gpus-per-node=8"):
        assert f"#SBATCH {line}\n" in script
    assert "--nnodes=4" in script
    assert "export OMP_NUM_THREADS=3\n" in script
    assert '--rdzv-endpoint="$HEAD:$PORT"' in script


def test_a_job_runs_to_its_end(fake: Path, tmp_path: Path) -> None:
    """The script starts every rank, through srun, and the end is noticed."""
    stand_in(fake)
    looked: list[int] = []
    _run(_job(fake), tmp_path / "out", watch=lambda: looked.append(1))
    assert {(fake / str(rank)).read_text() for rank in (0, 1)} == {"2"}
    assert looked


def test_a_failed_rank_is_named(fake: Path, tmp_path: Path) -> None:
    """The rank's own words come first, found in the log of torchrun on its node."""
    with pytest.raises(RankFailed, match="no such token file") as failed:
        _run(_job(fake, "fail"), tmp_path / "out")
    assert "no such token file" in str(failed.value).splitlines()[0]


def _sbatch(fake: Path, number: int, state: str) -> None:
    """From now on jobs get this number, and are in this state."""
    (fake / "sbatch").write_text(f"#!/bin/bash\necho {state} > $FAKE/state; echo {number}\n")


def test_a_job_that_slurm_ended(fake: Path, tmp_path: Path) -> None:
    """Slurm's own state is what there is to say, whatever its ranks said as they were ended."""
    _sbatch(fake, 1, "TIMEOUT")
    log = tmp_path / "out" / "logs" / "1" / "0" / "torchrun.log"
    log.parent.mkdir(parents=True)
    log.write_text("Received 15 death signal")
    with pytest.raises(SlurmFailed, match=r"^Slurm job 1 reached its time limit; give it more"):
        _run(_job(fake), tmp_path / "out")


def test_an_interrupt_leaves_the_job_and_says_how_to_cancel_it(fake: Path, tmp_path: Path) -> None:
    """Ctrl-C ends the command and not the job; until it has ended no other takes its folder."""
    _sbatch(fake, 12, "PENDING")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"Slurm job 12 goes on .* cancel it with: scancel 12"):
        _run(_job(fake), tmp_path / "out", watch=interrupt)
    assert not (fake / "cancelled").exists()
    assert submitted(tmp_path / "out") == "12"
    with pytest.raises(SlurmFailed, match="Slurm job 12 of this folder is PENDING"):
        submit(_job(fake), (), tmp_path / "out")
    (fake / "state").write_text("CANCELLED")
    check_free(tmp_path / "out")


def test_a_job_whose_ranks_hang_is_cancelled(fake: Path, tmp_path: Path) -> None:
    """What `watch` finds wrong ends the job, which would otherwise wait until its time limit."""
    _sbatch(fake, 12, "RUNNING")

    def hangs() -> None:
        raise RankFailed("no progress")

    with pytest.raises(RankFailed, match="no progress"):
        _run(_job(fake), tmp_path / "out", watch=hangs)
    assert (fake / "cancelled").read_text().strip() == "12"


@pytest.mark.parametrize(
    ("exit_code", "raised"),
    [("0", None), ("1", "Slurm job 3 failed"), (None, "did not come to its end")],
)
def test_a_job_that_slurm_has_forgotten(
    fake: Path, tmp_path: Path, exit_code: str | None, raised: str | None
) -> None:
    """The last line of its script says how it ended; without it, it was ended from outside."""
    (fake / "scontrol").write_text(
        "#!/bin/bash\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n"
    )
    logs = tmp_path / "logs" / "3"
    logs.mkdir(parents=True)
    if exit_code is not None:
        (logs / EXIT_FILE).write_text(f"{exit_code}\n")
    if raised is None:
        follow("3", tmp_path, poll_s=0.01)
        return
    with pytest.raises(SlurmFailed, match=raised):
        follow("3", tmp_path, poll_s=0.01)


def test_a_controller_that_is_silent_for_a_while_is_asked_again(fake: Path, tmp_path: Path) -> None:
    """A job is not given up because its controller is being restarted; its states are said once."""
    (fake / "scontrol").write_text(
        "#!/bin/bash\n"
        "echo asked >> $FAKE/asked; times=$(wc -l < $FAKE/asked)\n"
        "[ $times = 2 ] && { echo 'Unable to contact slurm controller' >&2; exit 1; }\n"
        "[ $times -lt 5 ] && echo 'JobState=RUNNING Reason=None ReqNodeList=(null) NodeList=n[1-2]'"
        " || echo 'JobState=COMPLETED Reason=None NodeList=n[1-2]'\n"
    )
    said: list[str] = []
    follow("3", tmp_path, say=said.append, poll_s=0.01)
    assert said == ["Slurm job 3: RUNNING on n[1-2]"]


@pytest.mark.parametrize(
    ("ask", "missing"),
    [
        (lambda out: submit(TorchrunJob(module="m", processes_per_node=1), (), out), "sbatch"),
        (lambda out: follow("3", out), "scontrol"),
        (lambda out: cancel("3"), "scancel"),
    ],
)
def test_without_slurm_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object], missing: str
) -> None:
    """One line that says where to run this."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmFailed, match=f"no {missing} here: run this on a login node"):
        ask(tmp_path)


def test_a_refused_submission(fake: Path, tmp_path: Path) -> None:
    """What sbatch says about a bad option is passed on."""
    (fake / "sbatch").write_text("#!/bin/bash\necho 'invalid partition: gpux' >&2; exit 1\n")
    with pytest.raises(SlurmFailed, match="sbatch: invalid partition: gpux"):
        _run(_job(fake), tmp_path / "out")
