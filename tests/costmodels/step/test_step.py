"""One training step: no parallelism by hand, parts that add up, and laws over random layouts."""

import itertools
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.ranks.memory import constant_slack_bytes
from meshplan.costmodels.ranks.queued_launches import held_pairs, run_ahead
from meshplan.costmodels.ranks.tied_table import tied_table_s
from meshplan.costmodels.schedule.simulation import play
from meshplan.costmodels.step.step import Setting, StepModel, StepTime
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.tunings import Tuning

QUICK = settings(max_examples=40)


def test_one_gpu_by_hand(setting: Setting):
    """64 micro-batches of 8 layers and both ends, and 28 + 12 + 6 bytes per parameter."""
    step = StepModel(setting, Layout(stages=even_stages(8, 1)))
    time = step.time()
    once = 8 * float(step.layer_cost(0, "none").total_s)
    once += sum(float(end.total_s) for end in step.ends)
    parameters = model_parameters(setting.model).total
    bandwidth = step.pricer.device.bandwidth_bytes_per_s
    update = 46 * parameters / bandwidth
    assert time.step_time_s == pytest.approx(64 * once + update, rel=1e-12)
    assert time.exposed_comm_s == 0
    assert time.bubble_s == pytest.approx(0, abs=1e-9)


def test_no_bubble_is_below_zero_by_rounding(setting: Setting):
    """Without a pipeline ranks never wait; the sums of some of these layouts differ by 1e-16 s."""
    for tp, micro_batch_size in itertools.product((1, 2, 4), (1, 2, 4, 8)):
        layout = Layout(
            data_parallel=8 // tp, tensor_parallel=tp, sequence_parallel=tp > 1,
            micro_batch_size=micro_batch_size, stages=even_stages(8, 1),
        )  # fmt: skip
        assert 0 <= StepModel(setting, layout).time().bubble_s < 1e-12


def test_an_update_moves_at_the_rates_of_its_kernels(setting: Setting):
    """28 bytes of each parameter at AdamW's own 2 TB/s, 18 at a copy's 3 TB/s: 20 ps."""
    kernels = setting.cluster.kernels
    assert kernels is not None
    update = {
        "pointwise_bytes_per_s": {"adamw": 2e12, "copy": 3e12}, "conditions": {"kind": "measured"},
        "matmul_points": (), "attention_points": (),
    }  # fmt: skip
    cluster = setting.cluster.model_copy(update={"kernels": kernels.model_copy(update=update)})
    step = StepModel(replace(setting, cluster=cluster), Layout(stages=even_stages(8, 1)))
    parameters = model_parameters(setting.model).total
    assert step.time().optimizer_s == pytest.approx(parameters * 20e-12)


@pytest.mark.parametrize(
    ("engine", "zero_stage", "whole"),
    [("nanotron", 1, True), ("nanotron", 0, False), ("megatron", 1, False)],
)
def test_whole_gradients_are_clipped_whole(
    setting: Setting, engine: str, zero_stage: int, whole: bool
):
    """Of 8 ranks, each parameter's 46 bytes, a share of 1 or 1/8; nanotron's ZeRO-1 reads the other
    7/8 for their norm and scales them: 12 bytes each.
    """
    layout = Layout(data_parallel=8, zero_stage=zero_stage, stages=even_stages(8, 1))
    step = StepModel(replace(setting, engine=load_engine(engine)), layout)
    parameters = step.rank_parameters[0]
    held = float(parameters.dense)
    moved = 46 * held / (8 if zero_stage else 1) + (12 * held * 7 / 8 if whole else 0)
    bandwidth = step.pricer.device.bandwidth_bytes_per_s
    assert step.optimizer_s(parameters) == pytest.approx(moved / bandwidth)


@pytest.mark.parametrize("m", [4, 8, 64])
def test_bubble_of_a_pipeline(setting: Setting, models, m: int):
    """Equal stages on one node idle (p-1) / (p-1+m) of the pipeline's time, ends taken away."""
    bare = replace(models["dense"], vocab=8, final_norm=False)
    here = replace(
        setting, model=bare, training=Training(seq_len=4096, global_batch_size=m),
        engine=setting.engine.model_copy(
            update={"overlap": setting.engine.overlap.model_copy(update={"pipeline": 0.0})}
        ),
    )  # fmt: skip
    time = StepModel(here, Layout(pipeline_parallel=4, stages=even_stages(8, 4))).time()
    fraction = time.bubble_s / (time.step_time_s - time.optimizer_s)
    assert fraction == pytest.approx(3 / (3 + m), rel=0.05)


@QUICK
@given(data=st.data())
def test_parts_add_up_to_the_timeline(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The parts are the last rank's end with its gradients reduced, a tied table's sum, the update,
    what is fixed.
    """
    step = data.draw(cases()).step
    la, time = step.layout, step.time()
    ends = play(la.schedule, la.pipeline_parallel, la.virtual_stages, step.m, step.work).end_s
    reduced = max(end + step.reduce_s(rank) for rank, end in enumerate(ends))
    expected = reduced + float(tied_table_s(step)) + time.optimizer_s + time.fixed_s
    assert time.step_time_s == pytest.approx(expected, rel=5e-3)
    parts = {f.name: float(getattr(time, f.name)) for f in fields(StepTime)}
    assert min(parts.values()) >= 0, parts


@QUICK
@given(data=st.data(), factor=st.floats(1, 8), tier=st.sampled_from(("node", "network")))
def test_more_bandwidth_is_never_slower(cases, data: st.DataObject, factor: float, tier: str):
    """A faster link never makes a step longer."""
    case = data.draw(cases())
    cluster = case.setting.cluster
    link = getattr(cluster, tier)
    rates = {name: rate * factor for name, rate in link.bus_bandwidth}
    faster = link.model_copy(update={"bus_bandwidth": link.bus_bandwidth.model_copy(update=rates)})
    setting = replace(case.setting, cluster=cluster.model_copy(update={tier: faster}))
    quick = StepModel(setting, case.layout).time().step_time_s
    assert quick <= case.step.time().step_time_s * (1 + 5e-3)


def test_the_busiest_expert_rank_takes_longer_and_the_model_has_no_more_flops(
    setting: Setting, models
):
    """The 1.3 times as many rows of one rank are others' fewer: MFU falls as the step grows; so
    of what recomputes.
    """
    layout = Layout(
        data_parallel=8, expert_parallel=8, stages=even_stages(models["moe"].num_layers, 1, "full")
    )
    even = replace(setting, model=models["moe"])
    uneven = replace(even, training=replace(even.training, expert_imbalance=1.3))
    one, other = StepModel(even, layout), StepModel(uneven, layout)
    assert other.time().step_time_s > 1.01 * one.time().step_time_s
    for name in ("model_flops", "full_model_flops", "replay_flops"):
        flops = float(getattr(one.total_cost, name))
        assert float(getattr(other.total_cost, name)) == pytest.approx(flops, rel=1e-12), name


@QUICK
@given(data=st.data())
def test_layouts_compute_the_same_flops(cases, data: st.DataObject):
    """Model FLOPs of the whole step do not depend on the layout; recompute adds hardware FLOPs.

    Left out: latent attention's down-projections, adapters' A and a tower's patches, which every
    tensor-parallel rank repeats, and the rows that pad a vocabulary.
    """
    case = data.draw(cases())
    if case.setting.model.name == "latent" or case.setting.training.lora:
        return
    layers = case.setting.model.num_layers
    batch = case.setting.training.global_batch_size
    alone = StepModel(case.setting, Layout(stages=even_stages(layers, 1)))
    assert alone.m == batch
    spread = case.step.total_cost
    one = alone.total_cost
    near = 5e-3 if case.setting.training.images else 1e-3
    assert float(spread.model_flops) == pytest.approx(float(one.model_flops), rel=near)
    assert float(spread.replay_flops) >= 0


@QUICK
@given(data=st.data())
def test_more_work_takes_longer(cases, data: st.DataObject):
    """Twice the batch in twice the micro-batches is slower, and less than twice as slow."""
    case = data.draw(cases())
    training = case.setting.training
    double = replace(training, global_batch_size=2 * training.global_batch_size)
    once, twice = (
        StepModel(replace(case.setting, training=t), case.layout).time().step_time_s
        for t in (training, double)
    )
    assert once < twice <= 2 * once * (1 + 5e-3)


def test_six_flops_per_parameter_in_a_step(setting: Setting):
    """A step of long matmuls takes 6 N FLOPs per token and the attention's 6 s h L besides."""
    step = StepModel(setting, Layout(stages=even_stages(8, 1)))
    model, training = setting.model, setting.training
    weights = model_parameters(model).total - model.vocab * model.hidden
    attention = 6 * training.seq_len * model.hidden * model.num_layers
    per_token = float(step.total_cost.model_flops) / training.global_batch_tokens
    assert per_token == pytest.approx(6 * weights + attention, rel=0.01)


@pytest.mark.parametrize(
    ("tp", "dp", "pp", "leaves"),
    [
        pytest.param(8, 1, 2, True, id="8 ranks a stage: each stage a node"),
        pytest.param(4, 1, 2, False, id="2 x 4 ranks: one node"),
        pytest.param(
            4, 1, 4, True, id="4 x 4 ranks: two nodes, one boundary of three between them"
        ),
        pytest.param(1, 8, 2, True, id="dp inside pp: a stage is a node"),
        pytest.param(8, 2, 1, False, id="no pipeline"),
    ],
)
def test_a_pipeline_leaves_its_node(setting: Setting, tp: int, dp: int, pp: int, leaves: bool):
    """Where any of its neighbours are on different nodes of 8 ranks."""
    layout = Layout(
        tensor_parallel=tp, data_parallel=dp, pipeline_parallel=pp, stages=even_stages(8, pp)
    )
    assert bool(np.asarray(StepModel(setting, layout).pricer.crosses_nodes)) == leaves


@pytest.mark.parametrize(
    ("tp", "dp", "pp", "waits"),
    [
        pytest.param(1, 8, 2, False, id="two nodes, but a group of one waits for nobody"),
        pytest.param(2, 1, 8, True, id="groups of two, eight stages on two nodes"),
        pytest.param(2, 1, 4, False, id="groups of two, four stages on one node"),
    ],
)
def test_tensor_parallel_waits_beside_a_pipeline_between_nodes(
    setting: Setting, tp: int, dp: int, pp: int, waits: bool
):
    """A second for each rank and collective shows in the step where there are such, else not."""
    layout = Layout(
        tensor_parallel=tp, data_parallel=dp, pipeline_parallel=pp, stages=even_stages(8, pp)
    )
    quick, slow = (
        StepModel(replace(setting, tuning=Tuning(pipelined_rank_s=each)), layout).time()
        for each in (0.0, 1.0)
    )
    assert (slow.step_time_s > 1.0) == waits
    assert waits or slow == quick


@pytest.mark.parametrize(
    ("tensor", "pipeline", "pairs"),
    [
        pytest.param(2, 2, 0, id="10: two stages keep none"),
        pytest.param(2, 4, 2.25, id="10 + 2 x 3 (1 - 1/4) x 2 4096 1024: four keep three of four"),
        pytest.param(2, 8, 2.8125, id="10 + 2 x 3 (1 - 1/16) x 2 4096 1024"),
        pytest.param(2, 1, 0, id="10: without a pipeline they come back"),
        pytest.param(1, 2, 0, id="10: nothing is gathered"),
    ],
)
def test_gathers_kept_beside_a_pipeline(
    setting: Setting, tensor: int, pipeline: int, pairs: float
) -> None:
    """The slack that no category scales: pairs of one micro-batch's gathered inputs."""
    layout = Layout(
        tensor_parallel=tensor, pipeline_parallel=pipeline, stages=even_stages(8, pipeline)
    )
    tuning = Tuning(memory_bytes=10, held_gathers_pipelined=3)
    step = StepModel(replace(setting, tuning=tuning), layout)
    assert constant_slack_bytes(step, step.held_pairs) == 10 + 2 * pairs * (2 * 4096 * 1024)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "ahead", "pairs"),
    [
        pytest.param(2, 2, 0.0, 0.0, id="a host that is not ahead: none"),
        pytest.param(2, 2, 0.5, 8.0, id="half of 4 micro-batches of 4 layers: 8"),
        pytest.param(2, 2, 0.9, 12.0, id="0.9 x 16 is more than the queue takes: 12"),
        pytest.param(2, 4, 0.25, 2.25, id="a quarter of 4 x 2 is 2, a deep pipeline 3 (1 - 1/4)"),
        pytest.param(2, 1, 0.5, 0.0, id="no pipeline: given back"),
        pytest.param(1, 2, 0.5, 0.0, id="nothing is whole"),
    ],
)
def test_tensors_that_queued_launches_read(
    setting: Setting, tensor: int, pipeline: int, ahead: float, pairs: float
) -> None:
    """What a host that runs ahead has freed is held till the device comes to it, so many layers on
    as its queue takes.
    """
    training = replace(setting.training, global_batch_size=4)
    tuning = Tuning(held_gathers_pipelined=3, queued_gathers=12)
    layout = Layout(
        tensor_parallel=tensor, pipeline_parallel=pipeline, stages=even_stages(8, pipeline)
    )
    step = StepModel(replace(setting, training=training, tuning=tuning), layout)
    assert held_pairs(step, step.m, ahead) == pairs


def test_how_far_a_host_runs_ahead(setting: Setting) -> None:
    """By what it issues faster than the device computes: not at all with slow launches, all of it
    with none, half where issuing takes half as long as computing.
    """
    layout = Layout(tensor_parallel=2, pipeline_parallel=2, stages=even_stages(8, 2))

    def ahead(launch_s: float) -> float:
        tuning = Tuning(launch_s=launch_s, queued_gathers=12)
        return float(run_ahead(StepModel(replace(setting, tuning=tuning), layout)))

    assert (ahead(1.0), ahead(0.0)) == (0.0, 1.0)
    at_100_ns = 1 - ahead(1e-7)
    assert ahead(0.5e-7 / at_100_ns) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("engine", "stages", "micro_batches", "stalls"),
    [
        pytest.param("nanotron-2024", 2, 4, 8, id="2 (2 - 1) + 2 (4 - 1)"),
        pytest.param("nanotron-2024", 3, 4, 16, id="2 (3 - 1) + 4 (4 - 1)"),
        pytest.param("nanotron-2024", 4, 4, 18, id="2 (4 - 1) + 4 (4 - 1)"),
        pytest.param("nanotron-2024", 4, 1, 6, id="one micro-batch: there and back"),
        pytest.param("nanotron-2024", 1, 4, 0, id="no pipeline"),
        pytest.param("nanotron", 4, 4, 0, id="since its fix"),
    ],
)
def test_ranks_of_a_pipeline_wait_together(
    setting: Setting, engine: str, stages: int, micro_batches: int, stalls: int
) -> None:
    """nanotron before its fix: 0.5 s for each transfer that both ends wait for."""
    layout = Layout(
        tensor_parallel=8, pipeline_parallel=stages, micro_batch_size=1,
        stages=even_stages(8, stages),
    )  # fmt: skip
    training = replace(setting.training, global_batch_size=micro_batches)
    asked = replace(setting, engine=load_engine(engine), training=training)
    with_wait, without = (
        StepModel(replace(asked, tuning=Tuning(boundary_s=wait_s)), layout).time()
        for wait_s in (0.5, 0.0)
    )
    assert with_wait.step_time_s - without.step_time_s == pytest.approx(0.5 * stalls)
    assert with_wait.send_s - without.send_s == pytest.approx(0.5 * stalls)


def test_a_pipeline_within_a_node_waits_for_nobody(setting: Setting) -> None:
    """What stands still are transfers of the network, not of NVLink: 4 ranks of one node."""
    layout = Layout(pipeline_parallel=4, micro_batch_size=1, stages=even_stages(8, 4))
    training = replace(setting.training, global_batch_size=4)
    asked = replace(setting, engine=load_engine("nanotron-2024"), training=training)
    with_wait, without = (
        StepModel(replace(asked, tuning=Tuning(boundary_s=wait_s)), layout).time().step_time_s
        for wait_s in (0.5, 0.0)
    )
    assert with_wait == without


@pytest.mark.parametrize(
    ("counts", "apart", "stage"),
    [
        pytest.param((8,), False, 0, id="one stage"),
        pytest.param((8,), True, 0, id="one stage has nothing before it"),
        pytest.param((5, 3, 0), False, 2, id="on the last stage"),
        pytest.param((5, 3, 0), True, 1, id="apart: on the one before"),
    ],
)
def test_a_module_has_its_stage(
    models, setting: Setting, counts: tuple[int, ...], apart: bool, stage: int
):
    """A multi-token-prediction module's seconds, activations and parameters, with its last layer
    before the heads; the two heads stay at the end.
    """
    latent = replace(setting, model=models["latent"])
    plain = replace(latent, model=replace(latent.model, mtp_layers=0))
    stages = tuple(map(Stage, counts))
    layout = Layout(pipeline_parallel=len(counts), stages=stages, modules_apart=apart)
    with_module, without = (StepModel(each, layout) for each in (latent, plain))
    head = StepModel(plain, layout).ends[1]
    for index in range(len(counts)):
        at_end, here = index == len(counts) - 1, index == stage
        seconds = float(without.stage_costs[index].total_s)
        seconds += at_end * float(head.total_s) + here * float(with_module.ends[2].total_s)
        assert float(with_module.stage_costs[index].total_s) == pytest.approx(seconds)
        saved = with_module.stage_saved_bytes[index] - without.stage_saved_bytes[index]
        added = at_end * float(head.saved_bytes) + here * float(with_module.ends[2].saved_bytes)
        assert saved == pytest.approx(added)
        grown = with_module.stage_parameters[index].dense - without.stage_parameters[index].dense
        assert grown == pytest.approx(here * with_module.end_parameters[2].dense)
