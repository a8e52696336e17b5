"""ZeRO-3 by Megatron-FSDP: what a rank keeps, when it sends, what is legal, out and in."""

from dataclasses import replace

import pytest
from random_plans import missing_facts, plan_of
from simulated_oracle import DENSE

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.memory import step_memory
from meshplan.costmodels.step.stages import StageModel
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.resolve import check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.space.engine_rules import unpriced
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins

MODEL = Model(name="small", hidden=2048, vocab=64_000, kinds=(DENSE,), pattern=(0,) * 8)
TRAINING = Training(seq_len=2048, global_batch_size=32)
SHARDED = Layout(data_parallel=8, zero_stage=3, stages=(Stage(8),))


def rank(layout: Layout = SHARDED, engine: str = "megatron", **training: object) -> StageModel:
    """One rank of eight H100."""
    setting = Setting.fitted(
        MODEL, replace(TRAINING, **training), load_cluster("dgx-h100"), load_engine(engine)
    )
    return StageModel(setting, layout)


@pytest.mark.parametrize(("engine", "bytes_each"), [
    pytest.param("megatron", 2 + 4 + 12, id="16-bit weights, fp32 gradients, master and moments"),
    pytest.param("megatron-bridge", 2 + 2 + 12, id="its recipes keep gradients in 16 bits"),
])  # fmt: skip
def test_all_states_are_in_shards_and_two_units_whole(engine: str, bytes_each: int) -> None:
    """Of P parameters an eighth of each state; whole are the weights and gradients of two layers,
    and of the table of the head, which is no unit.
    """
    model = rank(engine=engine)
    (memory,) = step_memory(model)
    parameters = float(model.rank_parameters[0].dense)
    assert memory.states == pytest.approx(bytes_each * parameters / 8)
    whole = bytes_each - 12
    layer, head = (float(each.dense) for each in (
        model.layer_parameters(0), model.end_parameters[0] + model.end_parameters[1],
    ))  # fmt: skip
    assert memory.transient >= whole * (2 * layer + head)


def test_eight_bit_copies_are_let_go() -> None:
    """What is gathered is cast anew; kept whole they would be 2 bytes a parameter on each rank."""
    in_8_bit, in_16 = (step_memory(rank(precision=each))[0] for each in ("fp8", "bf16"))
    assert in_8_bit.weights == in_16.weights
    kept = step_memory(rank(replace(SHARDED, zero_stage=1), precision="fp8"))[0]
    plain = step_memory(rank(replace(SHARDED, zero_stage=1)))[0]
    assert kept.weights - plain.weights == pytest.approx(
        2.0 * 8 * float(rank().layer_parameters(0).dense)
    )


def test_each_micro_batch_gathers_twice_and_reduces() -> None:
    """Weights before a layer's forward and backward, gradients into shards behind it, of each
    micro-batch: nothing is left to send once per step.
    """
    model = rank()
    layer = model.layer_parameters(0)
    sent = model.sent(layer, again=True)
    gathered_s = float(model.traffic.forward_s(layer))
    assert float(sent.forward_s) == pytest.approx(gathered_s)
    assert float(sent.backward_s) > 2 * gathered_s  # gradients are twice as wide
    assert float(model.traffic.once_s(layer)) == 0.0
    assert float(model.traffic.refresh_s(layer)) == 0.0
    plain = rank(replace(SHARDED, zero_stage=1))
    assert float(plain.sent(layer, again=True).backward_s) == 0.0
    assert float(plain.traffic.once_s(layer)) > 0


@pytest.mark.parametrize(("engine", "stages"), [
    ("megatron", {0, 1, 3}), ("megatron-bridge", {0, 1, 3}), ("nemo", {0, 1}),
])  # fmt: skip
def test_it_is_offered_without_a_pipeline(engine: str, stages: set[int]) -> None:
    """ZeRO-3 beside tensor and context parallelism; a pipeline has ZeRO-1."""
    space = enumerate_space(MODEL, TRAINING, 8, load_engine(engine), parse_pins({}), 8).layouts
    assert set(space.zero_stage.tolist()) == stages
    piped = space.pipeline_parallel > 1
    assert set(space.zero_stage[piped].tolist()) == {0, 1}
    sharded = space.zero_stage == 3
    assert engine == "nemo" or {1, 2} <= set(space.tensor_parallel[sharded].tolist())


@pytest.mark.parametrize(
    ("engine", "to"), [("megatron", "megatron"), ("megatron-bridge", "bridge")]
)
def test_a_plan_is_written_and_read_back(engine: str, to: str) -> None:
    """The file has Megatron-FSDP's switches; read, it is the same layout, which is priced."""
    layout = Layout(
        data_parallel=4, context_parallel=2, context_kind="ring", zero_stage=3,
        stages=even_stages(32, 1),
    )  # fmt: skip
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=8192, global_batch_size=32))
    plan = plan.model_copy(update={"engine": engine})
    exported = exporter_named(to)(plan, 8)
    name, text = next(iter(exported.files.items()))
    assert "optim_grads_params" in text
    case = resolve(read_config(text, name), missing_facts(plan, exported), Settings())
    check_case(case)
    assert case.layout == layout
    assert unpriced(case.layout, case.engine) == ()
