"""Costs of lists of operations: what hides, what recompute replays, what the host adds."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import MODES, Layout, even_stages
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.cost import Cost
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.setting import gradient_bytes, kernels_of
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Precision, Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import Interference
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning

SECONDS = st.floats(0, 1e3)
FRACTION = st.floats(0, 1)


@pytest.mark.parametrize(
    ("whole", "room", "overlap", "interference", "expected"),
    [
        pytest.param(10, 4, 0.5, 0.25, 6.0, id="5 beside 4: 10 - 5 + (5 - 4)"),
        pytest.param(10, 4.5, 0.5, 0.25, 6.0, id="5 beside 4.5: 4 of them are done by then"),
        pytest.param(10, 40, 0.5, 0.25, 6.0, id="5 beside 40: 10 - 5 + (5 - 5 / 1.25)"),
        pytest.param(10, 40, 1.0, 0.0, 0.0, id="all of it"),
        pytest.param(10, 40, 0.0, 0.1, 10.0, id="the engine overlaps nothing"),
    ],
)
def test_exposed_by_hand(whole, room, overlap, interference, expected):
    """What is seen is what is not hidden, and what computing beside it is slowed down by, if it
    takes longer then.
    """
    assert exposed_s(whole, room, overlap, interference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("compute", "communication", "expected"),
    [
        pytest.param(1.25, 1.5, 3.0, id="it lasts 15 s, in which 12 s of computing are done"),
        pytest.param(2.0, 2.0, 9.9, id="20 s for 10 s of computing: nothing is won, 1 % hidden"),
        pytest.param(0.98, 1.0, 0.0, id="noise: nothing is lost"),
    ],
)
def test_a_measured_interference_by_hand(compute, communication, expected):
    """Of 10 s beside much computing: as long as it lasts there, less what is computed by then."""
    slowdown = Interference(compute=compute, communication=communication).slowdown
    assert exposed_s(10.0, 1e3, 1.0, slowdown) == pytest.approx(expected)


def test_a_profile_that_measured_interference_prices_by_it(models) -> None:
    """Of a cluster that was measured itself; on any other, and without the measurement, by the fit
    of the engine.
    """
    training, engine = Training(seq_len=4096, global_batch_size=64), load_engine("megatron")
    published = load_cluster("dgx-h100")
    slow = Interference(compute=2.0, communication=1.5)

    def interference(**changed: object) -> float:
        cluster = published.model_copy(update=changed)
        return Setting.fitted(models["dense"], training, cluster, engine).tuning.interference

    measured = {"kind": "measured"}
    assert interference(conditions=measured, interference=slow) == pytest.approx(0.75 / 0.25)
    fitted = interference()
    assert fitted == interference(interference=slow) == interference(conditions=measured) < 1


@given(compute=SECONDS, communication=SECONDS, overlap=FRACTION, interference=FRACTION)
def test_overlapped_region(compute, communication, overlap, interference):
    """max(T_math, T_comm) <= t <= T_math + T_comm, where hiding slows nothing down."""
    alone = compute + exposed_s(communication, compute, overlap, 0.0)
    assert max(compute, communication) * (1 - 1e-12) <= alone + 1e-9
    slowed = compute + exposed_s(communication, compute, overlap, interference)
    assert alone <= slowed + 1e-9
    assert slowed <= compute + communication + 1e-9


@given(whole=SECONDS, more=SECONDS, room=SECONDS, overlap=FRACTION, interference=FRACTION)
def test_more_communication_is_never_seen_less(whole, more, room, overlap, interference):
    """Exposed time grows with the communication and shrinks with the room."""
    seen = exposed_s(whole, room, overlap, interference)
    assert exposed_s(whole + more, room, overlap, interference) >= seen - 1e-9
    assert exposed_s(whole, room + more, overlap, interference) <= seen + 1e-9


def costs(step: StepModel, kind: int) -> list[Cost]:
    return [step.plain_cost(kind, mode) for mode in MODES]


@settings(max_examples=30)
@given(data=st.data())
def test_recompute_only_adds_a_replay(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """Full recompute replays the forward, or what of it a backward reads, selective no more (of a
    layer without its modules nothing); the other passes do not change.
    """
    step = data.draw(cases()).step
    early = step.setting.engine.kernels.drops_unread_replay
    for kind in range(len(step.setting.model.kinds)):
        none, selective, full = costs(step, kind)
        assert none.replay.total_s == 0
        assert full.replay == full.forward or early
        assert 0 < float(full.replay.total_s) <= float(full.forward.total_s)
        assert 0 <= float(selective.replay.total_s) <= float(full.replay.total_s)
        if step.setting.training.lora is None:
            third = float(none.model_flops) / 3
            less = early and float(full.replay_flops) < third
            assert less or float(full.replay_flops) == pytest.approx(third)
        for cost in (selective, full):
            assert (cost.forward, cost.input_grad, cost.weight_grad, cost.model_flops) == (
                none.forward, none.input_grad, none.weight_grad, none.model_flops,
            )  # fmt: skip


@settings(max_examples=30)
@given(data=st.data())
def test_costs_add_up(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The total of a cost is the sum of its passes, of a pass that of its causes."""
    step = data.draw(cases()).step
    cost = step.layer_cost(0, "full")
    passes = (cost.forward, cost.input_grad, cost.weight_grad, cost.replay)
    assert float(cost.total_s) == pytest.approx(sum(float(p.total_s) for p in passes))
    for one in passes:
        causes = (
            one.matmul_s, one.attention_s, one.pointwise_s, one.host_s, one.tensor_s,
            one.context_s, one.expert_s, one.data_s,
        )  # fmt: skip
        assert float(one.total_s) == pytest.approx(sum(map(float, causes)))
        assert min(map(float, causes)) >= 0
    assert float((cost + cost).total_s) == pytest.approx(float((cost * 2).total_s))


@settings(max_examples=20)
@given(data=st.data())
def test_slow_host_is_the_floor(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """With a second for each launch a pass lasts its launches: one product per weight gradient, and
    what brings it to its buffer.
    """
    case = data.draw(cases(pipelined=False))
    tuning = case.setting.tuning.model_copy(update={"launch_s": 1.0})
    slow = StepModel(replace(case.setting, tuning=tuning), case.layout)
    operations = layer_operations(slow.site, case.setting.model.kinds[0])
    casts = slow.device.recipe.cast_bytes > 0
    products = [op for op in operations if isinstance(op, Matmul)]
    heavy = [casts or not op.recipe or "experts" in op.modules for op in products]
    share = case.setting.engine.kernels.product_share
    matmuls = sum(1.0 if each else share for each in heavy)
    weight_grad = float(slow.layer_cost(0, "none").weight_grad.total_s)
    kernels = case.setting.engine.kernels
    each = (1 if kernels.gradient_add == "fused" else 2) * kernels.launch_share
    frozen = case.setting.training.lora is not None
    assert weight_grad == pytest.approx(0 if frozen else each * matmuls)


def forwards(
    model: Model, cluster: Cluster, layout: Layout, engine: Engine, batch: int, **overlap: float
) -> Iterator[Cost]:
    """What a layer of experts takes forward without and with this `overlap` of the engine's."""
    for habits in (dict.fromkeys(overlap, 0.0), overlap):
        here = engine.model_copy(update={"overlap": engine.overlap.model_copy(update=habits)})
        training = Training(seq_len=4096, global_batch_size=batch)
        setting = Setting(model, training, cluster, here, Tuning(interference=0.0))
        yield StepModel(setting, layout).plain_cost(1, "none").forward


@pytest.mark.parametrize(
    ("virtual_stages", "expert_parallel", "hides"),
    [
        pytest.param(2, 16, True, id="interleaved, 16 ranks on two nodes"),
        pytest.param(1, 16, False, id="not interleaved"),
        pytest.param(2, 8, False, id="one node"),
    ],
)
def test_interleaved_pipelines_hide_the_exchange(
    models, virtual_stages: int, expert_parallel: int, *, hides: bool
) -> None:
    """Dispatch between nodes hides behind another micro-batch's pass, where there is one."""
    layout = Layout(
        data_parallel=16, pipeline_parallel=2, virtual_stages=virtual_stages,
        expert_parallel=expert_parallel, zero_stage=1, stages=even_stages(8, 2 * virtual_stages),
        schedule="interleaved_1f1b" if virtual_stages > 1 else "1f1b",
    )  # fmt: skip
    cluster, bridge = load_cluster("dgx-h100"), load_engine("megatron-bridge")
    hidden = {"expert_interleaved": bridge.overlap.expert_interleaved}
    plain, seen = forwards(models["moe"], cluster, layout, bridge, 64, **hidden)
    assert seen.expert_s / plain.expert_s == pytest.approx(1 - 0.6 if hides else 1.0)


@pytest.mark.parametrize(
    ("pipeline_parallel", "virtual_stages", "hides"),
    [
        pytest.param(1, 1, True, id="no pipeline: the next micro-batch"),
        pytest.param(2, 1, False, id="a pipeline of one chunk per rank: nothing else to do"),
        pytest.param(2, 2, True, id="several chunks"),
    ],
)
def test_an_exchange_said_to_be_hidden_hides_where_there_is_another_pass(
    models, pipeline_parallel: int, virtual_stages: int, *, hides: bool
) -> None:
    """Within a node too, if a run says so."""
    layout = Layout(
        data_parallel=8, pipeline_parallel=pipeline_parallel, virtual_stages=virtual_stages,
        expert_parallel=8, zero_stage=1, stages=even_stages(8, pipeline_parallel * virtual_stages),
        schedule="interleaved_1f1b" if virtual_stages > 1 else "1f1b",
    )  # fmt: skip
    cluster, bridge = load_cluster("dgx-h100"), load_engine("megatron-bridge")
    plain, seen = forwards(models["moe"], cluster, layout, bridge, 64, expert=0.6)
    assert seen.expert_s / plain.expert_s == pytest.approx(0.4 if hides else 1.0)


def test_the_exchange_of_experts_hides_under_all_computing(models) -> None:
    """Dispatch and combine hide under half of a pass's computing each, where the engine can."""
    layout = Layout(data_parallel=8, expert_parallel=8, zero_stage=1, stages=even_stages(8, 1))
    cluster, engine = load_cluster("dgx-h100"), load_engine("generic")
    rates = cluster.node.bus_bandwidth.model_copy(update={"all_to_all": 5e9})  # too slow to hide
    node = cluster.node.model_copy(update={"bus_bandwidth": rates, "collective_fits": ()})
    cluster = cluster.model_copy(update={"node": node})
    plain, seen = forwards(models["moe"], cluster, layout, engine, 8, expert=1.0)
    device_s = plain.matmul_s + plain.attention_s + plain.pointwise_s
    assert 0 < seen.expert_s == pytest.approx(plain.expert_s - device_s)


@pytest.mark.parametrize(
    ("engine", "precision", "waits"),
    [
        pytest.param("megatron-bridge", "bf16", True, id="attention in 16 bits: slow"),
        pytest.param("megatron-bridge", "mxfp8", False, id="its recipes' attention in 8 bits"),
        pytest.param("megatron-bridge-2025", "bf16", True, id="earlier, in 16 bits"),
        pytest.param("megatron-bridge-2025", "mxfp8", True, id="26.06.01 lost the fast kernel"),
        pytest.param("megatron", "bf16", False, id="an engine of which nothing is known"),
    ],
)
def test_sinks_are_slow_where_attention_is_in_16_bits(
    models, engine: str, precision: Precision, waits: bool
) -> None:
    """What a kernel for sinks adds to the backward depends on the attention's number format."""
    training = Training(seq_len=512, global_batch_size=1, precision=precision)
    cluster, habits = load_cluster("dgx-b200"), load_engine(engine)
    setting = Setting(models["dense"], training, cluster, habits, Tuning())
    assert kernels_of(setting).sink_token_s == (5.45e-7 if waits else 0.0)


@pytest.mark.parametrize(
    ("engine", "itemsize", "moved_bytes"),
    [
        pytest.param("megatron", 2.0, 0, id="fused: the product adds"),
        pytest.param("native", 2.0, 10, id="added: 2 read + 4 read + 4 written"),
        pytest.param("native", 4.0, 12, id="added in fp32: 4 + 4 + 4"),
        pytest.param("torchtitan", 2.0, 6, id="copied: 2 read + 4 written"),
        pytest.param("llm-foundry", 2.0, 4, id="copied: 2 read + 2 written"),
    ],
)
def test_gradients_reach_their_buffer_by_hand(
    engine: str, itemsize: float, moved_bytes: float
) -> None:
    """Bytes for each of the 2 x 4096 x 512 numbers of two weights' gradients, and a launch for the
    host too; beside no other pass.
    """
    cluster = load_cluster("dgx-h100")
    kernels = cluster.kernels
    assert kernels is not None
    assert gradient_bytes(load_engine(engine), itemsize) == moved_bytes
    device = Device(cluster.gpu, kernels, Tuning(launch_s=1.0), RECIPES["bf16"])
    op = Matmul(name="linear", m=1000.0, n=512.0, k=4096.0, groups=2)
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    pricer = Pricer(
        device, cluster, alone, overlap=load_engine(engine).overlap, gradient_bytes=moved_bytes
    )
    cost = pricer.cost([op])
    adding_s = moved_bytes * 2 * 4096 * 512 / device.bandwidth_bytes_per_s + kernels.launch_s
    assert cost.weight_grad.pointwise_s == pytest.approx(adding_s if moved_bytes else 0.0)
    assert cost.forward.pointwise_s == cost.input_grad.pointwise_s == 0
    thrice = pricer.cost([replace(op, parts=3)]).weight_grad.pointwise_s
    moving_s = adding_s - kernels.launch_s
    assert thrice - cost.weight_grad.pointwise_s == pytest.approx(2 * moving_s)
    issued_s = 2.0 if moved_bytes else 1.0
    assert cost.weight_grad.total_s == pytest.approx(issued_s)
    assert cost.forward.total_s == pytest.approx(1.0)
