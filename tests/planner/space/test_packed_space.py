"""A space in little memory: rows are made some at a time, and kept in few bits."""

import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.space import exchange_choice, legal_layouts
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import parse_pins

NAMES = [field.name for field in fields(Layouts)]


def layouts(**columns: list[int]) -> Layouts:
    """Four layouts of ones but for `columns`."""
    ones: dict[str, Any] = {name: np.ones(4, np.int64) for name in NAMES}
    return Layouts(**{**ones, **{name: np.array(each) for name, each in columns.items()}})


def test_columns_are_as_narrow_as_their_numbers() -> None:
    """127 is a byte's largest and 32,767 that of two; a number that is the same takes one row's."""
    packed = layouts(
        tensor_parallel=[1, 127, 2, 2],
        expert_parallel=[1, 128, 2, 2],
        context_parallel=[1, 32767, -1, 2],
        data_parallel=[1, 32768, 2, 2],
        pipeline_parallel=[7, 7, 7, 7],
    ).packed()
    assert packed.tensor_parallel.dtype == np.int8
    assert packed.expert_parallel.dtype == packed.context_parallel.dtype == np.int16
    assert packed.data_parallel.dtype == np.int32
    assert packed.pipeline_parallel.strides == (0,)
    taken = packed.take(np.array([1, 1]))
    assert taken.world_size.tolist() == [32768 * 32767 * 127 * 7] * 2  # beyond 32 bits


def test_what_another_process_made_comes_back_as_narrow() -> None:
    """A column that is one number is sent as one; of no rows nothing is."""
    packed = layouts(zero_stage=[3, 3, 3, 3], data_parallel=[1, 2, 300, 4]).packed()
    back = pickle.loads(pickle.dumps(packed, pickle.HIGHEST_PROTOCOL))
    for name in NAMES:
        sent, got = getattr(packed, name), getattr(back, name)
        np.testing.assert_array_equal(got, sent)
        assert (got.dtype, got.strides) == (sent.dtype, sent.strides)
    none = packed.take(np.array([], np.int64)).packed()
    assert len(pickle.loads(pickle.dumps(none))) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["megatron", "native", "hai-llm", "torchtitan"])
def test_a_space_in_parts_is_the_space(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in the same order, as many layouts, and the same count of each reason."""
    name, training = "deepseek-v2-lite", Training(global_batch_size=16, seq_len=4096)
    asked = Question(
        model=model_from_config(load_model_config(name), name), training=training, gpus=8,
        cluster=load_cluster("dgx-h100"), engine=load_engine(engine),
    )  # fmt: skip
    whole = space_of(asked)
    every = np.arange(len(whole.layouts))
    counted = whole.layouts_in(every)
    monkeypatch.setattr(legal_layouts, "PART", 7)
    monkeypatch.setattr(legal_layouts, "COUNTED", 11)
    monkeypatch.setattr(exchange_choice, "ROWS", 13)
    parts = space_of(asked)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(parts.layouts, name), getattr(whole.layouts, name))
    assert parts.dropped == whole.dropped
    assert parts.layouts_in(every) == counted == sum(len(whole.variants(row)) for row in every)


def test_a_layout_of_a_packed_row_counts_ranks_beyond_a_byte() -> None:
    """64 x 4 ranks that shard over all of them: what is a byte each is no byte together."""
    packed = layouts(
        data_parallel=[64, 1, 1, 1], context_parallel=[4, 1, 1, 1], shard_group=[256, 1, 1, 1]
    ).packed()
    plan = StagePlan((Stage(4),), 0, ())
    found = layout_of_row(packed, 0, Variant("1f1b", 1, (0,)), plan)
    assert (found.data_parallel, found.context_parallel, found.shard_group) == (64, 4, 0)


def test_a_deep_pipeline_of_packed_rows_counts_beyond_a_byte() -> None:
    """64 ranks of a V shape with two chunks each: their 128 chunks are beyond the byte that holds
    the micro-batches, and so is twice 64 of these. By hand, of zb_v: 2 m < 3 S, so 4 S - m - 3 of
    4 S are shared.
    """
    name, training = "gpt3-175b", Training(global_batch_size=64, seq_len=2048)
    pins = {"tensor_parallel": "1", "pipeline_parallel": "64", "micro_batch_size": "1,2"}
    asked = Question(
        model=model_from_config(load_model_config(name), name), training=training, gpus=64,
        cluster=load_cluster("mi300x-8"), engine=load_engine("generic"), pins=parse_pins(pins),
    )  # fmt: skip
    space = space_of(asked)
    assert space.layouts.num_micro_batches.dtype == np.int8
    prices = price_space(asked, space, closed_form)
    form = run_as(space, prices, np.arange(2), Variant("zb_v", 2, (0,))).form
    assert dict(zip(form.weight.tolist(), form.over.tolist(), strict=True)) == {64: 189, 32: 221}
    assert form.under == 256
