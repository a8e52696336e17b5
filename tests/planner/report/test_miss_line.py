"""What the nearest miss is said to lack."""

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.report.fit import miss_line
from meshplan.planner.search.least_memory import NearestMiss


@pytest.mark.parametrize(
    ("lacking_bytes", "said"),
    [
        pytest.param(1.0, "1 byte", id="at the edge"),
        pytest.param(0.2, "1 byte", id="part of a byte"),
        pytest.param(1_000_000.4, "1,000,001 bytes", id="less than a MiB"),
        pytest.param(3.0 * GIB, "3.0 GiB (3,221,225,472 bytes)", id="some GiB"),
    ],
)
def test_what_it_lacks_is_no_fraction_of_a_mib(lacking_bytes: float, said: str) -> None:
    miss = NearestMiss(Layout(stages=even_stages(2, 1)), lacking_bytes, 20.0 * GIB)
    line = miss_line(miss, load_cluster("dgx-h100").gpu)
    assert f" needs {said} more than the 20.0 GiB of each GPU that a plan may fill" in line
