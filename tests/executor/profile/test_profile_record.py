"""The partial file: what survives a kill, and what must not be mixed."""

from pathlib import Path

import pytest

from meshplan.executor.profile.record import (
    ForeignPartial,
    Header,
    Quantity,
    Record,
    append_partial,
    partial_path,
    read_partial,
    start_partial,
)
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import MatmulPoint

HEADER = Header(
    device="CPU", hosts=("a",), world_size=2, backend="gloo", torch="2.13.0", quick=True
)
RECORDS = {
    "m": Record(key="m", result=MatmulPoint(dtype="bf16", m=1, n=2, k=3, flops_per_s=4.0)),
    "c": Record(
        key="c", rank_seconds=(0.5, 0.6),
        result=CurvePoint(kind="send", ranks_per_node=2, nodes=1, size_bytes=8, seconds=0.5),
    ),
    "q": Record(key="q", result=Quantity(name="launch", value=1e-6, unit="s")),
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A partial file with all three kinds of record."""
    path = partial_path(tmp_path / "cluster.toml")
    start_partial(path, HEADER, {"m": RECORDS["m"]})
    append_partial(path, RECORDS["c"])
    append_partial(path, RECORDS["q"])
    return path


def test_what_was_measured_is_read_back(path: Path) -> None:
    """Every record comes back equal, points as points."""
    assert read_partial(path, HEADER) == RECORDS


def test_a_line_cut_by_a_kill_is_measured_again(path: Path) -> None:
    """Half a line is dropped, the lines before it stay."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-20], encoding="utf-8")
    assert set(read_partial(path, HEADER)) == {"m", "c"}


def test_other_hardware_is_refused(path: Path) -> None:
    """Measurements of two machines never mix: the message says which value differs, and the fix."""
    other = HEADER.model_copy(update={"world_size": 4})
    with pytest.raises(ForeignPartial, match=r"world_size 2, this run has 4; use --restart"):
        read_partial(path, other)


def test_nothing_measured_yet(tmp_path: Path) -> None:
    """No file, no records."""
    assert read_partial(tmp_path / "none", HEADER) == {}
