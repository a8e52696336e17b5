"""What single settings of a framework's config mean, beyond the published examples."""

import pytest

from executor.frameworks import read_config
from planner.reading import Reading, UnreadableConfig

TITAN = """
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "{schedule}"
"""


def _titan(schedule: str) -> Reading:
    return read_config(TITAN.format(schedule=schedule), "config.toml")


@pytest.mark.parametrize(
    ("written", "ours", "chunks"),
    [
        pytest.param("1F1B", "1f1b", 1, id="single-stage: one chunk per rank"),
        pytest.param("interleaved1f1b", "interleaved_1f1b", 2, id="torch reads any case"),
        pytest.param("ZBVZeroBubble", "zb_v", 2, id="V-shaped: two chunks per rank"),
    ],
)
def test_torchtitan_schedules(written: str, ours: str, chunks: int) -> None:
    """A schedule's name in any case is ours, with the stages per rank that torchtitan gives it."""
    facts = _titan(written).facts
    assert (facts["schedule"].value, facts["virtual_stages"].value) == (ours, chunks)
    assert facts["schedule"].line == 7


def test_a_schedule_without_a_price_is_said() -> None:
    """InterleavedZeroBubble is priced as its nearest schedule, and a note says so."""
    reading = _titan("InterleavedZeroBubble")
    assert reading.facts["schedule"].value == "interleaved_1f1b"
    assert any("InterleavedZeroBubble is priced as Interleaved1F1B" in x for x in reading.notes)
    with pytest.raises(UnreadableConfig, match=r"LoopedBFS.*not priced"):
        _titan("LoopedBFS")
