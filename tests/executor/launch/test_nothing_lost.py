"""What a full disk, a second command or a file that was changed must not lose or hide."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.executor.launch import slurm
from meshplan.executor.launch.failures import first_failure
from meshplan.executor.launch.preflight import CannotRun, check_data
from meshplan.executor.launch.results import read_records
from meshplan.executor.launch.run import RESULT_FILE, check_ended
from meshplan.executor.launch.torchrun import TorchrunJob
from meshplan.planner.text_files import CannotWrite

JOB = TorchrunJob(module="x", processes_per_node=1)


def _result(folder: Path, **said: object) -> None:
    (folder / RESULT_FILE).write_text(json.dumps(said))


def test_a_run_that_goes_on_keeps_its_folder(tmp_path: Path) -> None:
    """A second command would remove the records of the first."""
    words = [sys.executable, "-uc", "print(1); input()", "meshplan"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it runs
        _result(tmp_path, status="running", starter_pid=other.pid)
        with pytest.raises(CannotRun, match=f"a run goes on in .* \\(process {other.pid}\\)"):
            check_ended(tmp_path)
        other.communicate(b"\n")


@pytest.mark.parametrize(
    "said",
    [
        {"status": "complete", "starter_pid": 1}, {"status": "running", "starter_pid": 2**22 + 1},
        {"status": "running"}, {},
    ],
)  # fmt: skip
def test_a_run_that_has_ended_gives_its_folder_up(tmp_path: Path, said: dict[str, object]) -> None:
    """Also one that was killed, for its process is gone: nothing is raised."""
    _result(tmp_path, **said)
    check_ended(tmp_path)


def test_a_run_keeps_no_folder_from_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several layouts run one after the other, and a number of a process comes again: nothing is
    raised.
    """
    monkeypatch.setattr("meshplan.executor.launch.run._is_starter", lambda _pid: True)
    _result(tmp_path, status="running", starter_pid=os.getpid())
    check_ended(tmp_path)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"{"])
def test_a_result_that_no_run_wrote_stops_nothing(tmp_path: Path, text: bytes) -> None:
    """It is written anew: nothing is raised."""
    (tmp_path / RESULT_FILE).write_bytes(text)
    check_ended(tmp_path)


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"\0\0\0\n", b"{}\n", b"[1]\n", b'{"step": 1}\n'])
def test_a_record_that_no_rank_writes_is_named(tmp_path: Path, line: bytes) -> None:
    """By its file and line, without a traceback; one that a kill cut off is left out."""
    (tmp_path / "rank0.jsonl").write_bytes(line)
    with pytest.raises(RuntimeError, match=r"rank0\.jsonl, line 1 is no step record"):
        read_records(tmp_path, 1)
    (tmp_path / "rank0.jsonl").write_bytes(line.rstrip(b"\n"))
    assert read_records(tmp_path, 1) == [[]]


@pytest.mark.parametrize("text", ["", '{"mess', "[]", "{}"])
def test_an_error_file_that_is_cut_off_leaves_the_ranks_words(tmp_path: Path, text: str) -> None:
    """As a full disk leaves it."""
    folder = tmp_path / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (tmp_path / "torchrun.log").write_text("")
    (folder / "error.json").write_text(text)
    (folder / "stderr.log").write_text("OSError: No space left on device\n")
    said = str(first_failure(tmp_path, 1))
    assert said.startswith("rank 0: its error file is cut off")
    assert "No space left" in said


REPORT = """
[0]:
  host      : node3
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(-9, "rank 9: was killed by SIGKILL (out of memory?)", id="from outside"),
        pytest.param(-11, "rank 9: was killed by SIGSEGV", id="by itself"),
        pytest.param(-15, "rank 8: Connection closed by peer", id="by torchrun, afterwards"),
    ],
)
def test_a_rank_that_a_signal_ended_is_the_cause(tmp_path: Path, code: int, said: str) -> None:
    """As torchrun reports it, before the exception of a rank that lost its peer by it."""
    other = REPORT.format(code=1).replace("9 (local_rank: 1)", "8 (local_rank: 0)")
    (tmp_path / "torchrun.log").write_text(other + REPORT.format(code=code))
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "error.json").write_text('{"message": "Connection closed by peer"}')
    assert str(first_failure(tmp_path, 1)).splitlines()[0] == said


def test_an_odd_number_of_bytes_is_no_token_file(tmp_path: Path) -> None:
    """uint16 and uint32 have 2 and 4."""
    path = tmp_path / "tokens"
    path.write_bytes(b"abc")
    with pytest.raises(CannotRun, match="odd number of bytes"):
        check_data(path)
    path.write_bytes(b"abcd")
    check_data(path)


def test_a_job_whose_number_cannot_be_kept_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs by now, and nothing else says which it is."""
    written: list[str] = []

    def write(path: Path, text: str) -> None:
        written.append(text)
        if text == "7\n":
            raise CannotWrite(f"cannot write {path}: No space left on device")
        path.write_text(text)

    monkeypatch.setattr(slurm, "_check_found", lambda name: None)
    monkeypatch.setattr(slurm, "_said", lambda command: "7;cluster")
    monkeypatch.setattr(slurm, "write_text", write)
    with pytest.raises(slurm.SlurmFailed, match=r"job 7 was submitted.*scancel 7"):
        slurm.submit(JOB, (), tmp_path)
    assert written[-1] == "7\n"


def test_a_job_that_slurm_does_not_take_leaves_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is free then."""

    def refuses(command: list[str]) -> str:
        raise slurm.SlurmFailed("sbatch: error: invalid partition")

    monkeypatch.setattr(slurm, "_check_found", lambda name: None)
    monkeypatch.setattr(slurm, "_said", refuses)
    with pytest.raises(slurm.SlurmFailed, match="invalid partition"):
        slurm.submit(JOB, (), tmp_path)
    assert not (tmp_path / slurm.NUMBER_FILE).exists()
