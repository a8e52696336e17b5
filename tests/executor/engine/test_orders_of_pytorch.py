"""Orders of several chunks against PyTorch's own, which share no code with them."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.orders import order

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
CLASSES: dict[Schedule, Any] = {
    "zb_v": torchs.ScheduleZBVZeroBubble, "dualpipe_v": torchs.ScheduleDualPipeV,
    "interleaved_1f1b": torchs.ScheduleInterleaved1F1B,
}  # fmt: skip


def of_pytorch(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> list[tuple[int, str, int]]:
    """What PyTorch has rank `s` do: its own method, on the numbers that it reads."""
    numbers = SimpleNamespace(
        pp_group_size=pp, n_local_stages=vpp, num_stages=vpp * pp, _num_stages=vpp * pp,
        _n_microbatches=m, microbatches_per_round=pp,
    )  # fmt: skip
    actions = CLASSES[schedule]._calculate_single_rank_operations(numbers, s)
    single = [part for action in actions if action for part in action.sub_actions or (action,)]
    return [(a.stage_index, KINDS[a.computation_type.name], a.microbatch_index) for a in single]


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "m"),
    [
        *(("interleaved_1f1b", *n) for n in ((2, 2, 4), (4, 3, 12), (4, 2, 4), (8, 2, 32))),
        *(
            ("zb_v", pp, 2, m)
            for pp, m in ((1, 1), (1, 4), (2, 1), (2, 9), (4, 5), (4, 32), (7, 20))
        ),
        *(("dualpipe_v", pp, 2, m) for pp, m in ((1, 2), (2, 4), (2, 7), (4, 8), (5, 23), (8, 40))),
    ],
)
def test_each_rank_does_what_pytorch_does(schedule: Schedule, pp: int, vpp: int, m: int) -> None:
    """Action by action; a pair of DualPipe is its forward and then its backward."""
    for s in range(pp):
        expected = of_pytorch(schedule, pp, vpp, m, s)
        assert [tuple(action) for action in order(schedule, pp, vpp, m, s)] == expected
