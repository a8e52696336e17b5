"""The V-shaped orders against PyTorch's own, which share no code with them."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.orders import order

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
CLASSES: dict[Schedule, Any] = {
    "zb_v": torchs.ScheduleZBVZeroBubble, "dualpipe_v": torchs.ScheduleDualPipeV,
}  # fmt: skip


def of_pytorch(schedule: Schedule, pp: int, m: int, s: int) -> list[tuple[int, str, int]]:
    """What PyTorch has rank `s` do: its own method, on the three numbers that it reads."""
    numbers = SimpleNamespace(pp_group_size=pp, num_stages=2 * pp, _n_microbatches=m)
    actions = CLASSES[schedule]._calculate_single_rank_operations(numbers, s)
    single = [part for action in actions if action for part in action.sub_actions or (action,)]
    return [(a.stage_index, KINDS[a.computation_type.name], a.microbatch_index) for a in single]


@pytest.mark.parametrize(
    ("schedule", "pp", "m"),
    [
        *(("zb_v", pp, m) for pp, m in ((1, 1), (1, 4), (2, 1), (2, 9), (4, 5), (4, 32), (7, 20))),
        *(("dualpipe_v", pp, m) for pp, m in ((1, 2), (2, 4), (2, 7), (4, 8), (5, 23), (8, 40))),
    ],
)
def test_each_rank_does_what_pytorch_has_it_do(schedule: Schedule, pp: int, m: int) -> None:
    """Action by action; a pair of DualPipe is its forward and then its backward."""
    for s in range(pp):
        expected = of_pytorch(schedule, pp, m, s)
        assert [tuple(action) for action in order(schedule, pp, 2, m, s)] == expected
