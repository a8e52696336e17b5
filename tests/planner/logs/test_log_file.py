"""A log as its file holds it: in gzip, in UTF-16, cut, longer than what is kept."""

import gzip
from pathlib import Path

import pytest

from meshplan.planner.logs import log_file
from meshplan.planner.logs.log_file import MAX_LOG_BYTES, NoText, end_and_beginning, finished
from meshplan.planner.logs.read import Batch, read_log

BATCH = Batch(sequences=16, tokens_per_gpu=1024, gpus=4)
LOG = "".join(
    f" iteration {at}/ 100 | elapsed time per iteration (ms): {4000 + at}.0 | loss \u2014 |\n"
    for at in range(1, 9)
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_log_says_the_same_however_it_is_stored(
    tmp_path: Path, encoding: str, packed: bool
) -> None:
    """PowerShell's `>` writes UTF-16, log rotation packs."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    data = (mark + LOG).encode(encoding)
    path = tmp_path / "train.log"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert end_and_beginning(path) == (LOG, "")
    assert read_log(path, BATCH).log.steps[0].step_time_s == 4.001


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_of_a_long_log_the_end_and_the_beginning_are_kept(
    tmp_path: Path, encoding: str, packed: bool
) -> None:
    """The end begins at a whole character, also where the length is odd."""
    line = "0123456789abcde\n"
    data = f"first\n{line * (MAX_LOG_BYTES // 8)}x".encode(encoding)
    path = tmp_path / "train.log"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    end, beginning = end_and_beginning(path)
    assert beginning.startswith(f"first\n{line}")
    assert end.endswith(f"{line * 1000}x")
    assert len(end.encode(encoding.replace("utf-16", "utf-16-le"))) in (
        MAX_LOG_BYTES,
        MAX_LOG_BYTES - 1,
    )


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_long_log_that_ends_within_a_character_is_read(tmp_path: Path, packed: bool) -> None:
    """A run is still writing it: all but its last byte is text."""
    data = ("0123456789abcde\n" * (MAX_LOG_BYTES // 16)).encode("utf-16") + b"x"
    path = tmp_path / "train.log"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    end, _ = end_and_beginning(path)
    assert set(end[:-1]) == set("0123456789abcde\n")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(LOG.encode())[:-20], "gzip that is cut or damaged"),
        (gzip.compress(LOG.encode())[:9], "gzip that is cut or damaged"),
        (gzip.compress(LOG.encode())[:12] + b"\xff" * 40, "gzip that is cut or damaged"),
        (b"\x1f\x8bno gzip at all", "cannot be read: Unknown compression method"),
        (gzip.compress(bytes(100)), "a binary file"),
        (bytes(range(256)), "a binary file"),
    ],
    ids=["its end", "its head", "its middle", "two bytes of it", "zeros in gzip", "zeros"],
)
def test_what_has_no_text_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(data)
    with pytest.raises(NoText, match=said):
        end_and_beginning(path)


def test_gzip_without_end_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MAX_UNPACKED", MAX_LOG_BYTES)
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"x" * 3 * MAX_LOG_BYTES, 1))
    with pytest.raises(NoText, match="unpack it"):
        end_and_beginning(path)


MEGATRON = " iteration {0:8d}/  100 | elapsed time per iteration (ms): 563{0}.1 | loss scale: 1.0 |"
TITAN = "step:  {0}  loss:  7.6  memory: 66.91GiB(37.51%)  tps: 10,05{0}  tflops: 5.1"


@pytest.mark.parametrize("line", [MEGATRON, TITAN], ids=["megatron", "torchtitan"])
def test_a_log_that_is_cut_has_no_step_that_the_whole_one_has_not(
    tmp_path: Path, line: str
) -> None:
    """A step of "5633.1" ms that is cut behind "56" would take 56 ms."""
    lines, log = [line.format(step) for step in (1, 2, 3)], tmp_path / "a.log"
    before, last = "\n".join(lines[:2]) + "\n", lines[2]
    for end in range(len(last)):
        log.write_text(before + last[:end])
        assert [step.step for step in read_log(log, BATCH).log.steps] == [1, 2]
    log.write_text(before + last + "\n")
    assert [step.step for step in read_log(log, BATCH).log.steps] == [1, 2, 3]
    log.write_text(lines[0])  # one line that was copied
    assert [step.step for step in read_log(log, BATCH).log.steps] == [1]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("step 1\nstep 2", "step 1\n"),
        ("1it\r2it\r3", "1it\r2it\r"),
        ('{"step": 1}\n{"step": 2}', '{"step": 1}\n{"step": 2}'),
        ("[[1.0, 1, 2.0]]", "[[1.0, 1, 2.0]]"),
        ("step 1", ""),
    ],
)
def test_a_line_ends_with_its_mark_or_as_json_does(text: str, whole: str) -> None:
    """Progress bars end theirs with a carriage return; editors leave the last mark out of JSON."""
    assert finished(text) == whole
