"""Jobs under Slurm; sbatch, srun, scancel and scontrol are stood in for by scripts.

The stand-in sbatch runs the submitted script, so the script itself is what is tested: its
directives
are read by nobody here, its commands are run.
"""

import subprocess
import textwrap
from pathlib import Path

import pytest

from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.slurm import SlurmFailed, batch_script, run_slurm
from meshplan.executor.launch.torchrun import Interrupted, TorchrunJob

COMMANDS = {
    "sbatch": """
        export SLURM_JOB_ID=$(( $$ % 9000 )) SLURM_JOB_NODELIST=node[1-2]
        if bash "$2" > "$FAKE/said" 2>&1; then echo COMPLETED; else echo FAILED; fi > "$FAKE/state"
        echo 4711
        """,
    "scontrol": """
        [ "$2" = hostnames ] && echo localhost
        [ "$2" = job ] && echo "JobId=$3 JobName=meshplan JobState=$(cat "$FAKE/state") Reason=None"
        """,
    "srun": """
        shift
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
    """The script starts every rank, through srun and torchrun, and the end is noticed."""
    looked: list[int] = []
    run_slurm(_job(fake), (), tmp_path / "out", watch=lambda: looked.append(1), poll_s=0.01)
    assert {(fake / str(rank)).read_text() for rank in (0, 1)} == {"2"}
    assert looked


def test_a_failed_rank_is_named(fake: Path, tmp_path: Path) -> None:
    """The rank's own words come first, found in the log of its node."""
    with pytest.raises(RankFailed, match="no such token file") as failed:
        run_slurm(_job(fake, "fail"), (), tmp_path / "out", poll_s=0.01)
    assert "no such token file" in str(failed.value).splitlines()[0]


def test_a_job_that_slurm_ended(fake: Path, tmp_path: Path) -> None:
    """Without any rank's log, Slurm's own state is what there is to say."""
    (fake / "sbatch").write_text("#!/bin/bash\necho TIMEOUT > $FAKE/state; echo 1\n")
    with pytest.raises(SlurmFailed, match="Slurm job 1 ended as TIMEOUT"):
        run_slurm(_job(fake), (), tmp_path / "out", poll_s=0.01)


def test_interrupt_cancels_the_job(fake: Path, tmp_path: Path) -> None:
    """Ctrl-C while the job waits in the queue cancels it."""
    (fake / "sbatch").write_text("#!/bin/bash\necho PENDING > $FAKE/state; echo 12\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="cancelled Slurm job 12"):
        run_slurm(_job(fake), (), tmp_path / "out", watch=interrupt, poll_s=0.01)
    assert (fake / "cancelled").read_text().strip() == "12"


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sbatch: one line that says where to run this."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmFailed, match="login node"):
        run_slurm(TorchrunJob(module="m", processes_per_node=1), (), tmp_path)


def test_a_refused_submission(fake: Path, tmp_path: Path) -> None:
    """What sbatch says about a bad option is passed on."""
    (fake / "sbatch").write_text("#!/bin/bash\necho 'invalid partition: gpux' >&2; exit 1\n")
    with pytest.raises(SlurmFailed, match="sbatch: invalid partition: gpux"):
        run_slurm(_job(fake), (), tmp_path / "out", poll_s=0.01)
