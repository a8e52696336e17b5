"""A tied table at both ends of a pipeline: whose gradient is added up, when, and how long."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, Schedule, even_stages
from meshplan.costmodels.ranks.memory import head_gathered_bytes
from meshplan.costmodels.ranks.shared_table import shares_table
from meshplan.costmodels.ranks.tied_table import tied_table_s
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Lora, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import BusBandwidth, Link
from meshplan.hardware_profiles.tunings import Tuning

RATES = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "send"), 1e12)


def _step(models, layout: Layout, *, engine: str = "megatron", tied: bool = True, lora=None):
    """Of a table of 32,000 x 1,024 numbers; all_reduce at 1e9 bytes/s a GPU within a node and at
    4e9 a node between them, without latencies.
    """
    model = replace(models["dense"], tied=tied)
    link = Link(latency_s=0.0, bus_bandwidth=BusBandwidth(all_reduce=1e9, **RATES))
    wide = Link(latency_s=0.0, bus_bandwidth=BusBandwidth(all_reduce=4e9, **RATES))
    cluster = load_cluster("dgx-h100").model_copy(update={"node": link, "network": wide})
    training = Training(seq_len=1024, global_batch_size=16, lora=lora)
    return StepModel(Setting(model, training, cluster, load_engine(engine), Tuning()), layout)


def _layout(pp: int, chunks: int = 1, schedule: Schedule = "1f1b", **degrees: int) -> Layout:
    stages = even_stages(8, pp * chunks)
    return Layout(
        pipeline_parallel=pp, virtual_stages=chunks, schedule=schedule, stages=stages, **degrees
    )


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        pytest.param(_layout(1), 0.0, id="one stage has the only copy"),
        pytest.param(_layout(2), 0.131072, id="4 x 32,768,000 bytes, 2 (2 - 1) / 2 of them sent"),
        pytest.param(_layout(4), 0.131072, id="two of four ranks: the ends"),
        pytest.param(_layout(2, tensor_parallel=2), 0.065536, id="half of the table on each"),
        pytest.param(
            _layout(4, data_parallel=2, zero_stage=1), 0.131072, id="ranks 0 and 6 are on one node"
        ),
        pytest.param(
            _layout(2, data_parallel=8, zero_stage=1), 0.262144,
            id="ranks 0 and 8 are not: an eighth of 4e9",
        ),
    ],
)  # fmt: skip
def test_both_ends_add_up_the_table(models, layout: Layout, seconds: float) -> None:
    """Megatron adds up whole gradients of 4 bytes over the first and the last rank."""
    assert float(tied_table_s(_step(models, layout))) == pytest.approx(seconds, rel=1e-6)


def test_our_engine_adds_up_its_shard(models) -> None:
    """Under ZeRO-1 over 8 ranks an eighth of the table."""
    layout = _layout(2, data_parallel=8, zero_stage=1)
    whole, shard = (float(tied_table_s(_step(models, layout, engine=e))) for e in ENGINES)
    bytes_each = [load_engine(name).state.reduce_bytes for name in ENGINES]
    assert shard / bytes_each[1] == pytest.approx(whole / bytes_each[0] / 8)


ENGINES = "megatron", "native"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_takes_so_much_longer(models, engine: str) -> None:
    """A tied model's step is an untied one's and this sum, for its stages hold the same tables."""
    layout = _layout(2, data_parallel=2, zero_stage=1)
    tied, apart = (_step(models, layout, engine=engine, tied=each) for each in (True, False))
    more = tied.time().step_time_s - apart.time().step_time_s
    assert more == pytest.approx(float(tied_table_s(tied)), rel=1e-9)
    assert more > 0 == float(tied_table_s(apart))


def test_frozen_tables_have_no_gradient(models) -> None:
    """Beside adapters the table is not trained."""
    assert tied_table_s(_step(models, _layout(2), lora=Lora(rank=8))) == 0.0


@pytest.mark.parametrize(
    ("engine", "layout", "once"),
    [
        pytest.param("native", _layout(1), True, id="one rank"),
        pytest.param("native", _layout(2), False, id="two ends on two ranks"),
        pytest.param(
            "native", _layout(2, chunks=2, schedule="zb_v"), True, id="both ends of a V on one"
        ),
        pytest.param(
            "native", _layout(2, chunks=2, schedule="interleaved_1f1b"), False,
            id="chunks in a ring end on the last",
        ),
        pytest.param("generic", _layout(2, chunks=2, schedule="zb_v"), False, id="a table a stage"),
    ],
)  # fmt: skip
def test_where_both_ends_read_one_table(models, engine: str, layout: Layout, once: bool) -> None:
    """On one stage, or on one rank where the engine keeps one table there: the last stage then has
    the final norm's 1,024 numbers alone, and nothing is added up.
    """
    step = _step(models, layout, engine=engine)
    assert bool(shares_table(step.setting, layout)) == once
    assert (float(step.end_parameters[1].dense) == 1024) == once
    assert (float(tied_table_s(step)) == 0) == once


@pytest.mark.parametrize(("tied", "stages", "whole"), [
    pytest.param(True, 1, False, id="gathered with the embedding"),
    pytest.param(True, 2, True, id="tied, on another rank"),
    pytest.param(False, 1, True, id="a table of its own"),
])  # fmt: skip
def test_a_head_is_gathered_once(models, tied: bool, stages: int, whole: bool) -> None:
    """Under ZeRO-3 the table of one rank is not counted for both ends."""
    step = _step(models, _layout(stages, data_parallel=2, zero_stage=3), engine="native", tied=tied)
    assert (float(head_gathered_bytes(step, step.end_parameters[1])) > 0) == whole
