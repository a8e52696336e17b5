"""Layers that a recipe of 8 or 4 bits keeps in 16."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.rules.family import with_16_bit_ends
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.stages import StageModel
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Precision, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

NAMES = ("llama-3.1-8b", "qwen3-30b-a3b", "nemotron-3-super-120b-a12b")
KIND, MODE = 0, "none"


def step_of(model: Model, precision: Precision, tp: int = 1) -> StepModel:
    training = Training(seq_len=4096, global_batch_size=8, precision=precision)
    setting = Setting(model, training, load_cluster("dgx-b200"), load_engine("megatron"), Tuning())
    stages = even_stages(model.num_layers, 1)
    layout = Layout(tensor_parallel=tp, sequence_parallel=tp > 1, stages=stages)
    return StepModel(setting, layout)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_a_kept_layer_is_one_of_bf16(name: str, precision: Precision):
    """It takes as long, keeps as much and computes as much as under bf16, whatever the others."""
    model = model_from_config(load_model_config(name), name)
    kept = with_16_bit_ends(model, model.num_layers, 0)
    assert [kind.in_16_bit for kind in kept.kinds] == [True] * len(model.kinds)
    assert model_parameters(kept) == model_parameters(model)
    for kind in range(len(model.kinds)):
        found = step_of(kept, precision, tp=2).plain_cost(kind, MODE)
        assert found == step_of(model, "bf16", tp=2).plain_cost(kind, MODE)


def test_ends_are_counted_from_both_sides():
    """1 and 3 of Llama's 32 layers: the first, the last three, and 28 between them."""
    model = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
    kept = with_16_bit_ends(model, 1, 3)
    assert [kept.kinds[k].in_16_bit for k in kept.pattern] == [True] + [False] * 28 + [True] * 3
    assert with_16_bit_ends(model, 0, 0) == model


def test_a_step_by_hand():
    """A step of 32 layers, 4 of them kept: 28 layers of fp8, 4 of bf16, and the same ends."""
    model = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
    whole, bf16 = step_of(model, "fp8"), step_of(model, "bf16")
    mixed = step_of(with_16_bit_ends(model, 1, 3), "fp8")
    each, kept = (float(s.plain_cost(KIND, MODE).forward.matmul_s) for s in (whole, bf16))
    fp8_s, mixed_s = (float(_forward_matmul_s(step)) for step in (whole, mixed))
    assert mixed_s - fp8_s == pytest.approx(4 * (kept - each), rel=1e-9)
    assert replace(mixed.setting.training, precision="bf16") == bf16.setting.training


def _forward_matmul_s(step: StageModel) -> float:
    return sum(float(cost.forward.matmul_s) for cost in step.stage_costs)


@pytest.mark.parametrize(
    ("habit", "precision", "spared"),
    [
        pytest.param("keeps_casts", "fp8", 7168 + 2 * 2048, id="rows and gate and up"),
        pytest.param("keeps_received_cast", "fp8", 7168, id="rows alone"),
        pytest.param("keeps_casts", "bf16", 0, id="nothing is cast"),
    ],
)
def test_what_experts_keep_in_8_bits_by_hand(habit: str, precision: Precision, spared: int):
    """A byte for each number of DeepSeek-V3's 8 x 4,096 rows of experts on one rank, with and
    without the habit.
    """
    model = model_from_config(load_model_config("deepseek-v3"), "deepseek-v3")
    experts = next(i for i, kind in enumerate(model.kinds) if kind.experts)
    plain = load_engine("hai-llm")
    plain = plain.model_copy(
        update={"kernels": plain.kernels.model_copy(update={"keeps_casts": False})}
    )
    training = Training(seq_len=4096, global_batch_size=8, precision=precision)
    kept = []
    for keeps in (False, True):
        engine = plain.model_copy(
            update={"kernels": plain.kernels.model_copy(update={habit: keeps})}
        )
        setting = Setting(model, training, load_cluster("dgx-h800"), engine, Tuning())
        layout = Layout(expert_parallel=1, stages=even_stages(model.num_layers, 1))
        kept.append(float(StepModel(setting, layout).plain_cost(experts, MODE).saved_bytes))
    assert kept[0] - kept[1] == spared * 8 * 4096
