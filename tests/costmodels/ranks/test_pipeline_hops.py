"""What a hop of a pipeline takes where some of its neighbours are on one node and some are not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, Schedule, Stage, even_stages
from meshplan.costmodels.ranks.pipeline_hops import Hops
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.seconds.collectives import send_s
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.seconds import schedule_work
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.whatif.figures import FIGURES

CLUSTER = load_cluster("dgx-h100")
MODEL = read_model("llama-2-13b")[1]
SETTING = Setting.fitted(
    MODEL, Training(seq_len=4096, global_batch_size=64), CLUSTER, load_engine("megatron")
)


def layout(dp: int, tp: int, pp: int) -> Layout:
    """With its layers evenly on the stages; ranks of a pipeline are dp x tp apart."""
    return Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, sequence_parallel=tp > 1,
        stages=even_stages(MODEL.num_layers, pp),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dp", "tp", "pp", "share"),
    [
        pytest.param(1, 1, 8, 0.0, id="eight ranks of one node"),
        pytest.param(4, 1, 4, 1 / 3, id="two of a node, two of the next"),
        pytest.param(1, 1, 16, 1 / 15, id="eight of a node, eight of the next"),
        pytest.param(1, 4, 10, 4 / 9, id="two of each of five nodes"),
        pytest.param(2, 4, 5, 1.0, id="each on a node of its own"),
    ],
)
def test_a_hop_is_the_mean_of_the_pipelines_hops(dp: int, tp: int, pp: int, share: float) -> None:
    """By hand: of pp - 1 hops those that leave a node of eight take the network's time."""
    size = 1e8
    hops = Hops(SETTING, layout(dp, tp, pp), size)
    inside, across = (send_s(CLUSTER, size, across_nodes=each) for each in (False, True))
    expected = (1 - share) * inside + share * across
    assert hops.hop_s == pytest.approx(SETTING.tuning.collective_scale * expected)
    assert hops.crosses_nodes == (share > 0)


@pytest.mark.parametrize(
    ("schedule", "chunks", "share"),
    [
        pytest.param("1f1b", 1, 1 / 3, id="a chain of four ranks on two nodes"),
        pytest.param("interleaved_1f1b", 2, 2 / 4, id="a ring of them"),
        pytest.param("zb_v", 2, 1 / 3, id="down and up again"),
    ],
)
def test_interleaved_chunks_come_back_over_the_network(
    schedule: Schedule, chunks: int, share: float
) -> None:
    """By hand: chunk 1 of the last rank hands to chunk 2 of the first, on the other node; in a V
    it is handed on within the rank.
    """
    found = replace(
        layout(4, 1, 4), schedule=schedule, virtual_stages=chunks,
        stages=even_stages(MODEL.num_layers, 4 * chunks),
    )  # fmt: skip
    assert Hops(SETTING, found, 1e8).share_across == pytest.approx(share)


def test_no_pipeline_over_two_nodes_is_as_fast_on_a_slower_network() -> None:
    """All hops were priced as a node's own where any was: with a 64th of the network's bandwidth
    four ranks on two nodes were as fast.
    """
    slow = replace(SETTING, cluster=FIGURES["network"].scaled(CLUSTER, 1 / 64))
    own, slower = (StepModel(each, layout(4, 1, 4)).time().step_time_s for each in (SETTING, slow))
    assert slower > 1.2 * own


def test_a_hop_takes_sums_of_earlier_blocks_along() -> None:
    """Where three of four layers read two of them: a token's state and two sums, of 16 bits."""
    kind = MODEL.kinds[0]
    model = replace(MODEL, kinds=(kind, replace(kind, sums=(2, 2))), pattern=(0, 1, 1, 1))
    stages = replace(layout(1, 1, 4), stages=even_stages(4, 4))
    rank = Rank(replace(SETTING, model=model), stages)
    assert rank.hops.sent_bytes == 2 * 4096 * 3 * MODEL.hidden


def rendezvous_s(forward: list[float], backward: list[float], hop: float, m: int) -> float:
    """When all of 1F1B's ranks are done, where neighbours meet for each exchange and both stand
    still: NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py, without
    interleaving.
    """
    last = len(forward) - 1

    def meeting(rank: int) -> list[int]:
        return [rank] if 0 <= rank < last else []  # between `rank` and the next

    def acts(rank: int) -> Iterator[float | int]:
        """Seconds of computing, and which neighbours meet."""
        ahead = min(last - rank, m)
        for _ in range(ahead):
            yield from (*meeting(rank - 1), forward[rank], *meeting(rank))
        yield from meeting(rank - 1)
        for _ in range(m - ahead):
            yield from (forward[rank], *meeting(rank), backward[rank], *meeting(rank - 1))
        for _ in range(ahead):
            yield from (*meeting(rank), backward[rank], *meeting(rank - 1))

    time, left = [0.0] * (last + 1), [list(acts(rank)) for rank in range(last + 1)]
    while any(left):
        for rank, todo in enumerate(left):
            while todo and isinstance(todo[0], float):
                time[rank] += todo.pop(0)
            if todo and rank < last and todo[0] == rank == (left[rank + 1] or [None])[0]:
                time[rank] = time[rank + 1] = max(time[rank : rank + 2]) + hop
                left[rank].pop(0), left[rank + 1].pop(0)
    return max(time)


@pytest.mark.parametrize("counts", [(10, 10, 10, 10), (13, 9, 9, 9), (4, 4, 4, 28), (9, 13, 9, 9)])
def test_1f1b_repeats_itself_as_fast_as_its_slowest_rank(counts: tuple[int, ...]) -> None:
    """Of exchanges that both neighbours stand still for, a rank between two others waits for two a
    micro-batch, the first and the last one for one: against an oracle that plays them.
    """
    cluster = FIGURES["network"].scaled(CLUSTER, 1 / 64)
    setting = replace(SETTING, cluster=cluster, engine=load_engine("megatron-deepspeed"))
    stages = tuple(map(Stage, counts))
    model = StepModel(setting, replace(layout(1, 8, 4), sequence_parallel=False, stages=stages))
    work, hop_s = schedule_work(model), float(model.hops.blocking_s)
    host_s = setting.tuning.micro_batch_s / 2
    forward = [float(cost.forward.total_s) + host_s for cost in model.stage_costs]
    backward = [
        float((cost.input_grad + cost.weight_grad + cost.replay).total_s) + host_s
        for cost in model.stage_costs
    ]
    assert hop_s > 0.1 * min(forward)
    ends = [max(end_s("1f1b", 4, 1, m, work)) for m in (16, 32)]
    played = [rendezvous_s(forward, backward, hop_s, m) for m in (16, 32)]
    assert ends[1] - ends[0] == pytest.approx(played[1] - played[0])
