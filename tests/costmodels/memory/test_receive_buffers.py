"""Buffers that a pipeline rank receives into, beside those that torch.distributed.pipelining makes
and beside measured peaks.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rows import ROW
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.stage import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.memory.receive_buffers import receive_buffer_bytes
from meshplan.costmodels.prices.prices import price
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model

MICRO_BATCHES, STAGES = 5, 3


@pytest.fixture(params=range(STAGES))
def stage(request: pytest.FixtureRequest) -> Iterator[PipelineStage]:
    """Each rank's stage of a pipeline of three, as a schedule has set it up for five
    micro-batches.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=STAGES)
    sent = torch.zeros(2, 8, requires_grad=True)
    made = PipelineStage(
        torch.nn.Linear(8, 8), request.param, STAGES, torch.device("cpu"),
        input_args=(sent,), output_args=(sent,),
    )  # fmt: skip
    made._inference_mode = InferenceMode.STATIC
    made._prepare_forward_infra(MICRO_BATCHES, (sent,), {}, has_backward=True)
    made._prepare_backward_infra(MICRO_BATCHES)
    yield made
    dist.destroy_process_group()


def _bytes(received: dict[int, tuple[Any, ...]]) -> int:
    buffers = [info.buffer for each in received.values() for info in each]
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)


def test_each_micro_batch_has_its_own_in_torch(stage: PipelineStage) -> None:
    """2 x 8 numbers of 4 bytes for each of five micro-batches on both ends, twice between them."""
    held = _bytes(stage.args_recv_info) + _bytes(stage.grad_recv_info)
    counted = receive_buffer_bytes(STAGES, 2 * 8 * 4.0, MICRO_BATCHES, apart=True)
    assert counted == MICRO_BATCHES * 2 * 8 * 4
    between = 0 < stage.stage_index < STAGES - 1
    assert held == counted * (2 if between else 1)


PIPELINE = ROW | {
    "framework": "torchtitan (2025)", "gpu": "gb200", "gpus": "8", "gpus_per_node": "4",
    "dp": "2", "tp": "2", "pp": "2", "zero": "3", "schedule": "1f1b", "micro_batch": "1",
    "seq_len": "16384", "recompute": "selective (per-op SAC)", "compiled": "1",
}  # fmt: skip


def _allocated(sequences: int, **said: str) -> float:
    run = run_of(PIPELINE | {"global_batch": str(sequences)} | said)
    return max(float(each.allocated) for each in step_model(run, Tuning()).memory())


def test_more_micro_batches_take_what_they_took() -> None:
    """Measured at 64 and 512 sequences a replica: 51.8 and 79.5 GiB
    (daddyofadoggy/blog@db07f840 posts/torchtitan/3d.md).
    """
    more_gib = (_allocated(1024) - _allocated(128)) / 2**30
    assert more_gib == pytest.approx((512 - 64) * 16384 * 4096 * 2 / 2 / 2**30)
    assert more_gib == pytest.approx(79.5 - 51.8, rel=0.02)


@pytest.mark.parametrize("said", [
    pytest.param({"pp": "1", "dp": "4", "schedule": ""}, id="no pipeline"),
    pytest.param({"framework": "Megatron-LM", "zero": "1", "recompute": "none"},
                 id="buffers used again"),
])  # fmt: skip
def test_nothing_grows_elsewhere(said: dict[str, str]) -> None:
    assert _allocated(1024, **said) == _allocated(128, **said)


def test_the_first_rank_has_one_for_each_by_hand() -> None:
    """64 gradients of 16,384 x 4,096 numbers of 2 bytes, of which each of two ranks has half."""
    model = step_model(run_of(PIPELINE | {"global_batch": "128"}), Tuning())
    engine = model.setting.engine
    state = engine.state.model_copy(update={"receives_apart": False})
    other = replace(model.setting, engine=engine.model_copy(update={"state": state}))
    without = type(model)(other, model.layout)
    less = float(model.memory()[0].allocated) - float(without.memory()[0].allocated)
    assert less == 64 * 16384 * 4096 * 2 / 2


def test_a_grid_counts_them_as_one_layout_does(models, case_of) -> None:
    """Of two ranks under torchtitan: 32 micro-batches of 512 tokens, the model's width, 2 bytes."""
    engine, cluster = load_engine("torchtitan"), load_cluster("dgx-h100")
    state = engine.state.model_copy(update={"receives_apart": False})
    layout = Layout(pipeline_parallel=2, zero_stage=2, stages=(Stage(4), Stage(4)))
    fixed, allocated = [], []
    for each in (engine, engine.model_copy(update={"state": state})):
        training = Training(seq_len=512, global_batch_size=32)
        case = case_of(Setting(models["dense"], training, cluster, each, Tuning()), layout)
        fixed.append(price(case.layouts, case.setting).fixed_bytes[0])
        allocated.append(float(case.step.memory()[0].allocated))
    expected = 32 * 512 * models["dense"].hidden * 2
    assert allocated[0] - allocated[1] == expected
    reserved = 1 + Tuning().activation_slack_fraction
    assert fixed[0] - fixed[1] == pytest.approx(reserved * expected)
