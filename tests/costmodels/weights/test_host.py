"""What waits on the host: bytes, copies and updates by hand, published figures, laws."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import InvalidLayout, Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.costmodels.weights.offload import CPU_ADAM_EFFICIENCY, copies_of_gradients, host_of
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning

EVEN = even_stages(8, 1)
OFFLOADING = [
    name
    for name in engine_names()
    for rules in [load_engine(name).legality]
    if rules.optimizer_offload or rules.activation_offload != "never"
]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """8 GPUs a node with 10 GB/s of link each; CPUs that move 0.8 TB/s reach 0.43 of it."""
    rates = {"host_link_bytes_per_s": 10e9, "host_memory_bytes_per_s": 0.8e12}
    return load_cluster("dgx-h100").model_copy(update=rates)


def step_of(models, cluster: Cluster, engine: str, batch: int = 8, **traits) -> StepModel:
    training = Training(seq_len=2048, global_batch_size=batch)
    setting = Setting(models["dense"], training, cluster, load_engine(engine), Tuning())
    return StepModel(setting, Layout(**{"stages": EVEN, **traits}))


@pytest.mark.parametrize(
    ("engine", "zero", "device", "host"),
    [
        pytest.param("deepspeed", 1, 2 + 2, (2 + 12) / 4, id="deepspeed zero 1: gradients whole"),
        pytest.param("deepspeed", 2, 2, (2 + 12) / 4, id="deepspeed zero 2: 2 left, 14/4 on host"),
        pytest.param("deepspeed", 3, 2 / 4, (2 + 12) / 4, id="deepspeed zero 3: 2/4 left"),
        pytest.param("megatron", 1, 2 + 4 + 4 / 4, (4 + 8) / 4, id="megatron: moments leave, 8/4"),
        pytest.param("generic", 1, 2 + 4, (4 + 12) / 4, id="generic: masters and moments leave"),
    ],
)
def test_bytes_per_parameter_by_hand(models, cluster, engine: str, zero: int, device, host):
    """Over dp 4: what stays on the device, and on the host with a copy of the gradients."""
    step = step_of(
        models, cluster, engine, data_parallel=4, zero_stage=zero, optimizer_offload=True
    )
    memory, held = step.memory()[0], float(step.rank_parameters[0].dense)
    assert float(memory.states) / held == pytest.approx(device)
    assert float(memory.host) / held == pytest.approx(host)


@pytest.mark.parametrize(
    ("engine", "overlap", "per_parameter"),
    [
        pytest.param("megatron", 0.0, 28 / 43e9 + (4 + 2) / 10e9, id="28/43 + (4 down, 2 up)/10"),
        pytest.param(
            "megatron", 0.5, 28 / 43e9 + 0.5 * 6 / 10e9, id="half of the copies under the update"
        ),
        pytest.param(
            "deepspeed",
            0.0,
            (28 + 24) / 43e9 + 2 / 10e9,
            id="gradients are there; in, out, fp32, scaled, cast, read: (28 + 24)/43 + 2 up/10",
        ),
    ],
)
def test_update_by_hand(models, cluster, engine: str, overlap: float, per_parameter: float):
    """A GPU's eighth of 0.8 TB/s x 0.43 is 43 GB/s; no gathering for one rank."""
    assert cluster.host_memory_bytes_per_s * CPU_ADAM_EFFICIENCY / 8 == pytest.approx(43e9)
    step = step_of(models, cluster, engine, zero_stage=2, optimizer_offload=True)
    hides = step.setting.engine.overlap.model_copy(update={"host": overlap})
    engine_then = step.setting.engine.model_copy(update={"overlap": hides})
    step = StepModel(replace(step.setting, engine=engine_then), step.layout)
    held = float(step.rank_parameters[0].dense)
    assert step.time().optimizer_s == pytest.approx(per_parameter * held, rel=1e-12)


@pytest.mark.parametrize(
    ("m", "copies"),
    [
        pytest.param(1, 1.0, id="one micro-batch: down once"),
        pytest.param(4, 1.75, id="four: down 4 times, up 3 times: 7/4 each"),
    ],
)
def test_gradients_go_down_in_each_micro_batch(models, cluster, m: int, copies: float):
    """DeepSpeed's ZeRO-2 over a link of 1 kB/s, beside which all computing is nothing."""
    slow = cluster.model_copy(update={"host_link_bytes_per_s": 1e3})
    step = step_of(models, slow, "deepspeed", batch=m, zero_stage=2, optimizer_offload=True)
    held = float(step.rank_parameters[0].dense)
    assert copies_of_gradients(m) == copies
    assert step.time().offload_s == pytest.approx(m * copies * 2 * held / 1e3, rel=1e-6)


def test_activations_by_hand(models, cluster):
    """Eight layers leave but for two on their way; a slow link is waited for twice per layer."""
    slow = cluster.model_copy(update={"host_link_bytes_per_s": 1e6})
    step = step_of(models, slow, "megatron", batch=3, activation_offload=True)
    layer = step.layer_cost(0, "none")
    saved = float(layer.saved_bytes)
    ends = sum(float(end.saved_bytes) for end in step.ends)
    memory = step.memory()[0]
    assert float(memory.host) == pytest.approx(8 * saved)
    assert float(memory.activations) == pytest.approx(2 * saved + ends)
    lasting = float(step.plain_cost(0, "none").total_s)
    expected = 3 * 8 * (2 * saved / 1e6 - lasting)
    assert step.time().offload_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_fractions_by_hand(models, cluster, fraction: float):
    """Part of the states: bytes and the time of the update in proportion, between none and all."""
    none, part, whole = (
        step_of(models, cluster, "megatron", zero_stage=1, optimizer_offload=away)
        for away in (0.0, fraction, 1.0)
    )

    def between(low: float, high: float) -> float:
        return (1 - fraction) * low + fraction * high

    states = [float(step.memory()[0].optimizer) for step in (none, part, whole)]
    update_s = [step.time().optimizer_s for step in (none, part, whole)]
    assert states[1] == pytest.approx(between(states[0], states[2]))
    assert update_s[1] == pytest.approx(between(update_s[0], update_s[2]))
    assert float(part.memory()[0].host) == pytest.approx(fraction * float(whole.memory()[0].host))


def test_a_quarter_of_the_activations_by_hand(models, cluster):
    """2 of 8 layers' worth wait on the host, less than two layers' buffers: nothing is won here."""
    step = step_of(models, cluster, "megatron", activation_offload=0.25)
    saved = float(step.layer_cost(0, "none").saved_bytes)
    ends = sum(float(end.saved_bytes) for end in step.ends)
    memory = step.memory()[0]
    assert float(memory.host) == pytest.approx(2 * saved)
    assert float(memory.activations) == pytest.approx(6 * saved + 2 * saved + ends)


def test_hidden_activations_cost_nothing(models, cluster):
    """A link that is fast enough hides all copies: the step takes what it took."""
    fast = cluster.model_copy(update={"host_link_bytes_per_s": 1e15})
    away, here = (
        step_of(models, fast, "megatron", activation_offload=on).time() for on in (True, False)
    )
    assert away.offload_s == 0
    assert away.step_time_s == pytest.approx(here.step_time_s, rel=1e-12)


QWEN = Layout(
    tensor_parallel=2, pipeline_parallel=2, expert_parallel=4, data_parallel=4, zero_stage=1,
    sequence_parallel=True, stages=even_stages(48, 2), optimizer_offload=True,
)  # fmt: skip


def test_megatron_bridge_saves_what_it_measured():
    """Published: 15.3 GB a GPU of Qwen3-30B-A3B on 16 H100 (30.5e9 x 8 / 16), tp 2 pp 2 ep 4."""
    model = model_from_config(load_model_config("qwen3-30b-a3b"), "qwen3-30b-a3b")
    setting = Setting(
        model, Training(seq_len=4096, global_batch_size=8), load_cluster("dgx-h100"),
        load_engine("megatron-bridge"), Tuning(),
    )  # fmt: skip
    away, here = (
        StepModel(setting, replace(QWEN, optimizer_offload=on)).memory() for on in (True, False)
    )
    saved = [float(b.states - a.states) for a, b in zip(away, here, strict=True)]
    assert sum(saved) / 2 / 1e9 == pytest.approx(15.3, rel=0.01)


@settings(max_examples=60)
@given(data=st.data())
def test_the_device_holds_no_more_and_is_no_faster(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """Whatever is kept on the host: less on the device of each rank, and never a shorter step."""
    case = data.draw(cases(engine=data.draw(st.sampled_from(OFFLOADING))))
    la = case.layout
    assume(la.optimizer_offload or la.activation_offload)
    home = StepModel(case.setting, replace(la, optimizer_offload=False, activation_offload=False))
    for away, here in zip(case.step.memory(), home.memory(), strict=True):
        assert float(away.allocated) <= float(here.allocated) * (1 + 1e-12)
        assert float(away.host) >= 0 == float(here.host)
    slower = case.step.time().step_time_s
    assert slower >= home.time().step_time_s * (1 - 5e-3)  # long pipelines are timed to 5e-3


def test_a_profile_that_does_not_say_is_named(cluster):
    """No number is made up for a host that the profile does not describe."""
    unsaid = cluster.model_copy(update={"host_link_bytes_per_s": None})
    with pytest.raises(InvalidLayout, match="host_link_bytes_per_s"):
        host_of(unsaid)
