"""Megatron-FSDP's hooks: what they take the host of a layer, where they run, what they replace."""

from dataclasses import replace

import numpy as np
import pytest
from sites import site

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.kinds import Operation
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.replayed import replayed_of
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.operation import Direction
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.sharding_hooks import STAGES, hooks_of
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

LLAMA, QWEN = (
    model_from_config(load_model_config(name), name) for name in ("llama-3.1-8b", "qwen3-30b-a3b")
)
WAYS: tuple[Direction, ...] = ("forward", "input_grad", "weight_grad")


def pricer_of(stage: float, cluster_name: str = "dgx-h100", least: int = 2) -> Pricer:
    """Whose host takes no time but for hooks."""
    cluster = load_cluster(cluster_name)
    assert cluster.kernels is not None
    device = Device(
        cluster.gpu, cluster.kernels, Tuning(), RECIPES["bf16"], loops_over_experts=True
    )
    groups = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    overlap = load_engine("megatron").overlap
    return Pricer(device, cluster, groups, overlap=overlap, hooks=hooks_of(stage, least))


@pytest.mark.parametrize(
    ("model", "norms", "products"),
    [
        pytest.param(LLAMA, 2, 4, id="two norms, qkv, output, up with gate, down"),
        pytest.param(QWEN, 4, 3 + 2 * 128, id="norms of q and k, router, each expert's two"),
    ],
)
@pytest.mark.parametrize("stage", [2, 3])
def test_a_layer_takes_the_host_its_hooks(
    model: Model, norms: int, products: int, stage: int
) -> None:
    """unit + W each; a norm's gradient comes with its input's, a product's in a pass of its own."""
    operations = layer_operations(site(model, 1, 1, sequence_parallel=False), model.kinds[0])
    hooks = STAGES[stage - 1]
    own = [replace(pricer_of(stage), hooks=None).issued_s(operations, way) for way in WAYS]
    found = [pricer_of(stage).issued_s(operations, way) for way in WAYS]
    added = [got - plain for got, plain in zip(found, own, strict=True)]
    assert added == pytest.approx([
        hooks.unit_s[0] + (norms + products) * hooks.weight_s[0],
        hooks.unit_s[1] + norms * hooks.weight_s[1],
        products * hooks.weight_s[1],
    ])  # fmt: skip


def unit_s(operations: tuple[Operation, ...]) -> list[float]:
    """What operations take of hooks around layers, each way."""
    ways: tuple[Direction, ...] = ("forward", "input_grad")
    around = replace(STAGES[2], weight_s=(0.0, 0.0))
    return [float(around.issued_s(operations, way, each_expert=True)) for way in ways]


def test_half_a_layer_is_a_unit_too() -> None:
    """Nemotron-H's layers are a mixer or a feed-forward alone."""
    model = model_from_config(load_model_config("nemotron-h-8b"), "nemotron-h-8b")
    place = site(model, 1, 1, sequence_parallel=False)
    assert {(kind.has_mixer, kind.has_feed_forward) for kind in model.kinds} == {
        (True, False), (False, True),
    }  # fmt: skip
    halves = [layer_operations(place, kind) for kind in model.kinds]
    assert [unit_s(each) for each in halves] == [[179e-6, 246e-6]] * len(model.kinds)


def test_every_layer_of_a_list_is_a_unit() -> None:
    """Modules of multi-token prediction are one list; what modules replay is no layer."""
    operations = layer_operations(site(LLAMA, 1, 1, sequence_parallel=False), LLAMA.kinds[0])
    assert unit_s(2 * operations) == pytest.approx([2 * 179e-6, 2 * 246e-6])
    for modules in load_engine("megatron").legality.recompute_modules:
        assert unit_s(tuple(replayed_of(operations, (modules,)))) == [0, 0]


def test_a_slower_host_takes_longer() -> None:
    """As for kernels."""
    operations = layer_operations(site(LLAMA, 1, 1, sequence_parallel=False), LLAMA.kinds[0])
    one, other = (
        pricer_of(3, name).issued_s(operations, "forward")
        - replace(pricer_of(3, name), hooks=None).issued_s(operations, "forward")
        for name in ("dgx-h100", "alps-gh200")
    )
    assert other == pytest.approx(2.46 * float(one))


@pytest.mark.parametrize(
    ("least", "present"),
    [
        pytest.param(2, [0, 0, 1, 1], id="sharded gradients alone are Megatron-FSDP's"),
        pytest.param(1, [0, 1, 1, 1], id="a run says that its ZeRO-1 was too"),
        pytest.param(3, [0, 0, 0, 1], id="the last stage"),
    ],
)
def test_layouts_of_one_grid_have_the_hooks_of_their_stage(least: int, present: list[int]) -> None:
    """An array of stages gives what each gives alone."""
    grid = hooks_of(np.arange(4.0), least)
    assert grid is not None
    assert [*np.asarray(grid.present)] == present
    for stage in range(4):
        alone = hooks_of(float(stage), least)
        assert alone is not None
        assert alone.weight_s[1] == np.asarray(grid.weight_s[1])[stage]
        assert alone.unit_s[0] == np.asarray(grid.unit_s[0])[stage]


def test_engines_without_them_have_none() -> None:
    """PyTorch's FSDP is another program."""
    assert load_engine("torchtitan").kernels.hooked_from == 0
    assert hooks_of(3.0, 0) is None


def test_a_hook_adds_gradients_up_in_place_of_a_launch() -> None:
    """Where a kernel adds gradients, its launch is the host's where no hook runs."""
    operations = layer_operations(site(LLAMA, 1, 1, sequence_parallel=False), LLAMA.kinds[0])
    apart = replace(pricer_of(1), gradient_bytes=10.0)
    slow = replace(apart, device=replace(apart.device, tuning=Tuning(launch_s=1.0)))
    assert slow.issued_s(operations, "weight_grad") == pytest.approx(2 * 4)  # product and sum
    hooked = replace(slow, hooks=hooks_of(1.0, 1))
    assert hooked.issued_s(operations, "weight_grad") == pytest.approx(4 + 4 * 27e-6)


@pytest.mark.parametrize(
    ("stage", "hooked"),
    [pytest.param(1, False, id="its own optimizer"), pytest.param(3, True, id="Megatron-FSDP")],
)
def test_short_micro_batches_wait_for_hooks(stage: int, hooked: bool) -> None:
    """Where launches alone take the host longer than the device 16 micro-batches of 32 layers with
    6 weights, the hooks come on top.
    """
    training = Training(seq_len=1024, global_batch_size=16 * 8)
    stages = even_stages(LLAMA.num_layers, 1)
    layout = Layout(data_parallel=8, zero_stage=stage, stages=stages)
    engine = load_engine("megatron-bridge")
    plain = engine.model_copy(
        update={"kernels": engine.kernels.model_copy(update={"hooked_from": 0})}
    )
    setting = Setting(LLAMA, training, load_cluster("dgx-h100"), engine, Tuning(launch_s=2e-4))
    taken, without = (
        StepModel(one, layout).time().step_time_s
        for one in (setting, replace(setting, engine=plain))
    )
    layer_s = sum(STAGES[2].unit_s) + 6 * sum(STAGES[2].weight_s)
    assert taken - without == pytest.approx(16 * 32 * float(layer_s) * hooked, rel=0.05)
