"""The end of a backward pass of a step's only micro-batch, at whose loss there are no gradients."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.prices.kind_memory import least_of_kinds
from meshplan.costmodels.prices.last_replays import bytes_by_mode
from meshplan.costmodels.prices.prices import lowest_memory_bytes, memory_bytes
from meshplan.costmodels.prices.tables import weight_table, work_table
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.held_mixes import HeldMixes
from meshplan.costmodels.step.memory import gathered_last_bytes
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Images, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.predict import stage_memory

SLACK = Tuning(state_slack_fraction=0.02, activation_slack_fraction=0.1)
CHUNKED = load_engine("accelerate-chunked-loss")
LAYER, TABLE = 218_112_000, 128_256 * 4_096  # of Llama 3.1 8B, whose head has the last norm
HEAD = TABLE + 4_096
PARAMETERS = 32 * LAYER + TABLE + HEAD
PASSES = 139_392 + 2 * (2 * 14_336 + 4_096)
"""Of a token in a layer's pass: what it saves, kept or made again, and gradients, of which the most
are there when it multiplies by the weights of its feed-forward.
"""


def setting_of(model: Model, tuning: Tuning, seq_len: int, ranks: int, **habits: Any) -> Setting:
    """One sequence on each of the ranks, states of 16 bits."""
    images = Images(tokens=256, number=1) if model.tower else None
    training = Training(
        seq_len=seq_len, global_batch_size=ranks, optimizer_states="bf16", images=images
    )
    engine = CHUNKED.model_copy(update={"kernels": CHUNKED.kernels.model_copy(update=habits)})
    return Setting(model, training, load_cluster("dgx-h100"), engine, tuning)


@pytest.mark.parametrize(
    ("zero", "seq_len", "expected"),
    [
        pytest.param(
            0, 16384, 6 * PARAMETERS + 2 * (31 * LAYER + HEAD),
            id="weights 2, moments 4; gradients 2 of all but the first layer and the embedding",
        ),
        pytest.param(0, 4096, 8 * PARAMETERS - 4096 * PASSES, id="fewer tokens: the step"),
        pytest.param(
            3, 16384, 6 * PARAMETERS / 2 + 2 * 31 * LAYER / 2 + 4 * LAYER + 4 * HEAD + 2 * TABLE,
            id="half of each on 2 ranks; whole 4 of the layer and the head, 2 of the embedding",
        ),
    ],
)  # fmt: skip
def test_the_first_layers_pass_by_hand(zero: int, seq_len: int, expected: float) -> None:
    """Llama 3.1 8B with every layer recomputed, 16,384 tokens: 61.57 GiB."""
    layout = Layout(data_parallel=2, zero_stage=zero, stages=(Stage(32, full_layers=32),))
    setting = setting_of(read_model("llama-3.1-8b")[1], Tuning(), seq_len, ranks=2)
    memory = StepModel(setting, layout).memory()[0]
    assert float(memory.allocated) == pytest.approx(expected + seq_len * PASSES, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "widths", "to_come"),
    [
        pytest.param("tied", [4096], 1, id="the head has added to a tied table's gradient"),
        pytest.param("dense", [2816], 1, id="an embedding's comes last"),
        pytest.param("dense", [256, 8192], 2, id="of two kinds the wider layer's pass"),
        pytest.param("dense", [8192, 256], 1, id="of two kinds the first layer's pass"),
    ],
)
def test_gradients_that_are_to_come(
    models: dict[str, Model], name: str, widths: list[int], to_come: int
) -> None:
    """Without ZeRO those of so many layers in the pass that holds most."""
    kinds = tuple(replace(models[name].kinds[0], ffn=width) for width in widths)
    pattern = (0, *(len(kinds) - 1,) * 7)
    model = replace(models[name], kinds=kinds, pattern=pattern)
    layout = Layout(data_parallel=2, stages=(Stage(8, full_layers=8),))
    step = StepModel(setting_of(model, Tuning(), 4096, ranks=2), layout)
    absent = sum(step.layer_parameters(kind).dense for kind in pattern[:to_come])
    absent += 0 if model.tied else step.end_parameters[0].dense
    assert float(step.memory()[0].gradients) == 2 * (step.rank_parameters[0].dense - absent)


def test_the_layer_before_is_gathered_meanwhile(models: dict[str, Model]) -> None:
    """ZeRO-3: in the second layer's pass 2 + 2 bytes of it, and 2 of the first one; the ends' in
    one unit are 2 + 2 of the head and 2 of the embedding.
    """
    kinds = tuple(replace(models["dense"].kinds[0], ffn=width) for width in (256, 8192))
    model = replace(models["dense"], kinds=kinds, pattern=(0, *(1,) * 7))
    layout = Layout(data_parallel=2, zero_stage=3, stages=(Stage(8, full_layers=8),))
    step = StepModel(setting_of(model, Tuning(), 4096, ranks=2), layout)
    before, own = (step.layer_parameters(kind).dense for kind in (0, 1))
    embedding, head, _ = (end.dense for end in step.end_parameters)
    whole = 4 * own + 2 * before + 4 * head + 2 * embedding
    assert gathered_last_bytes(step, 1) == whole


def test_rows_are_compared_by_what_the_last_replays_hold(
    models: dict[str, Model], case_of: Callable[..., Any]
) -> None:
    """The largest of what is compared, with what every rank holds, is what a rank needs whose first
    layer's pass holds most; nothing is compared where gradients are there at the loss.
    """
    layout = Layout(data_parallel=2, stages=(Stage(8, full_layers=8),))
    setting = setting_of(models["moe"], SLACK, 4096, ranks=2)
    twice = replace(setting, training=replace(setting.training, global_batch_size=4))
    several = replace(setting, engine=load_engine("generic"))
    once, more, there = (_by_mode(case_of(each, layout)) for each in (setting, twice, several))
    fixed = memory_bytes(case_of(setting, layout).layouts, setting)["fixed_bytes"]
    need = stage_memory(StepModel(setting, layout))[0].needed
    assert max(once) + fixed[0] == pytest.approx(need, rel=1e-12)
    assert (max(more), there) == (0.0, [])


def _by_mode(case: Any) -> list[float]:
    tables = work_table(case.setting, case.layouts), weight_table(case.setting, case.layouts)
    return [float(column[0]) for column in bytes_by_mode(case.layouts, *tables)]


@pytest.mark.parametrize("returned", [0, 2])
@pytest.mark.parametrize(
    "name", ["dense", "tied", "moe", "windowed", "seeing", "latent", "wider behind"]
)
def test_search_and_check_count_the_same(
    models: dict[str, Model], case_of: Callable[..., Any], name: str, returned: int
) -> None:
    """Under every mix the ranks of a cut need what the layout alone needs, what is priced is no
    less, and the least of kinds no more.
    """
    model = models[name] if name in models else _wider_behind(models["dense"])
    setting = setting_of(model, SLACK, 4096, ranks=2, returned_keys=returned)
    for zero in (0, 2, 3):
        layout = Layout(data_parallel=2, zero_stage=zero, stages=(Stage(8),))
        every = StepModel(setting, layout)
        number = np.arange(9)
        held = HeldMixes(every).rank(0, [(0, 0, len(setting.stack))], [(number, 0 * number)])
        rows = case_of(setting, layout).layouts
        priced, least = (
            columns(rows, setting)
            for columns in (memory_bytes, partial(lowest_memory_bytes, least=least_of_kinds))
        )
        for full, need in enumerate(held.needed([number]).tolist()):
            alone = every.with_stages(replace(layout, stages=(Stage(8, full_layers=full),)))
            assert math.isclose(need, stage_memory(alone)[0].needed, rel_tol=1e-12)
            kinds = [(kind, -1 if at < full else 0) for at, kind in enumerate(setting.stack)]
            assert _peak_bytes(priced, kinds) >= need * (1 - 1e-12)
            assert _peak_bytes(least, kinds) <= need * (1 + 1e-12)


def _wider_behind(model: Model) -> Model:
    """Most is held in the first wide layer's pass, beside what the narrow ones before it saved."""
    kinds = tuple(replace(model.kinds[0], ffn=width) for width in (256, 8192))
    return replace(model, kinds=kinds, pattern=(0, 0, 0, 0, 1, 1, 1, 1))


def _peak_bytes(columns: dict[str, Floats], layers: list[tuple[int, int]]) -> float:
    """Of a rank of all `layers`, each of a kind in a column of modes."""

    def of_all(name: str) -> float:
        ends = sum(float(columns[f"{end}_{name}_bytes"][0]) for end in ("embedding", "head"))
        each = columns[f"layer_{name}_bytes"][0]
        return ends + sum(float(each[key if each.ndim == 2 else key[0]]) for key in layers)

    transient = [float(columns["transient_bytes"][0, mode]) for _, mode in layers]
    transient.append(float(columns["head_transient_bytes"][0]))
    held = max(of_all("saved") + max(transient), of_all("update"))
    return float(columns["fixed_bytes"][0]) + of_all("state") + held
