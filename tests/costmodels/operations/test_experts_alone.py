"""A number format of routed experts alone: which products have it, and what a layer then costs."""

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Precision, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


def step_of(model: Model, precision: Precision) -> StepModel:
    training = Training(seq_len=4096, global_batch_size=8, precision=precision)
    engine, cluster = load_engine("torchtitan"), load_cluster("dgx-b200")
    layout = Layout(
        data_parallel=8, expert_parallel=8, zero_stage=3, stages=even_stages(model.num_layers, 1)
    )
    return StepModel(Setting(model, training, cluster, engine, Tuning()), layout)


def products(step: StepModel) -> dict[str, bool]:
    """Of every kind of layer and of the modules before the head: whether it runs in 8 bits."""
    kinds = range(len(step.setting.model.kinds))
    listed = [op for kind in kinds for op in step.operations(kind)]
    listed += [op for end in step.end_operations for op in end]
    return {op.name: op.recipe and not op.in_16_bit for op in listed if isinstance(op, Matmul)}


@pytest.mark.parametrize("name", ["latent", "windowed"])
def test_products_of_experts_alone(models: dict[str, Model], name: str) -> None:
    """Not those of shared experts, dense layers, attention and prediction modules."""
    narrow = products(step_of(models[name], "mxfp8_experts"))
    assert {each for each, is_narrow in narrow.items() if is_narrow} == {
        "experts_up", "experts_down",
    }  # fmt: skip
    assert sum(products(step_of(models[name], "mxfp8")).values()) > 2


def test_a_layer_costs_each_of_the_two_parts_what_it_costs_there(models: dict[str, Model]) -> None:
    """What bf16 and mxfp8 differ in is the experts' part and the rest's: a dense layer as in bf16,
    and of a layer with experts neither all that 8 bits change nor nothing.
    """
    alone, wide, narrow = (
        step_of(models["latent"], precision) for precision in ("mxfp8_experts", "bf16", "mxfp8")
    )
    times = [
        [float(step.layer_cost(kind, "none").total_s) for step in (alone, wide, narrow)]
        for kind in range(2)
    ]
    assert times[0][0] == times[0][1] != times[0][2]
    assert len(set(times[1])) == 3
    eight_bit = alone.layer_parameters(1)
    assert (eight_bit.eight_bit, eight_bit.eight_bit_expert) == (0.0, eight_bit.expert)
