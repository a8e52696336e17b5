"""What weights and gradients send: groups and seconds by hand; hybrid sharding."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from links import link
from sent_weights import BILLION, four_a_node, setting_of, traffic, trained

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import NONE_FROZEN
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.seconds.interference import BESIDE_EXPERTS
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.costmodels.weights.traffic import weight_traffic
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """4 GPUs a node; 1 us and 100 GB/s inside, 10 us and 200 GB/s a node outside."""
    return four_a_node()


def placed(group: Group) -> tuple[object, object]:
    return group.size, group.ranks_per_node


@pytest.mark.parametrize(
    ("traits", "shard", "copies"),
    [
        pytest.param({"zero_stage": 3}, Group(8.0, 4.0), Group(1.0, 1.0), id="zero 3: all of dp 8"),
        pytest.param(
            {"zero_stage": 3, "shard_group": 4}, Group(4.0, 4.0), Group(2.0, 1.0),
            id="hsdp: 4 neighbours are a node, 2 copies 4 apart on two nodes",
        ),
        pytest.param(
            {"zero_stage": 3, "shard_group": 2}, Group(2.0, 2.0), Group(4.0, 2.0),
            id="hsdp: 2 neighbours, 4 copies 2 apart, 2 of them on a node",
        ),
        pytest.param({}, Group(1.0, 1.0), Group(8.0, 4.0), id="zero 0: 8 copies of shards of 1"),
        pytest.param(
            {"zero_stage": 2, "shard_group": 2, "tensor_parallel": 2},
            Group(2.0, 2.0), Group(4.0, 1.0), id="tp 2: 2 ranks 2 apart, 4 copies 4 apart",
        ),
    ],
)  # fmt: skip
def test_groups_by_hand(cluster: Cluster, traits: dict, shard: Group, copies: Group):
    """Shard groups are neighbours in the ranks of dp, their copies are a shard group apart."""
    found = traffic(cluster, "native", data_parallel=8, **traits).dense
    assert (placed(found.shard), placed(found.copies)) == (placed(shard), placed(copies))


def test_experts_of_hybrid_sharding(cluster: Cluster):
    """dp 16, ep 2, shards of 4: 8 ranks hold an expert, 4 / 2 share it, 4 copies 2 x 2 apart."""
    found = traffic(
        cluster, "native", data_parallel=16, expert_parallel=2, zero_stage=3, shard_group=4
    ).expert
    assert placed(found.shard) == (2.0, 2.0)
    assert placed(found.copies) == (4.0, 1.0)


WHOLE = load_engine("torchtitan").model_copy(
    update={
        "state": load_engine("torchtitan").state.model_copy(update={"keeps_experts_whole": True})
    }
)


@pytest.mark.parametrize(
    ("expert_parallel", "shared", "once_s", "updated"),
    [
        pytest.param(1, True, 0.0, 1 / 8, id="ep 1: shards of eight ranks, as all else"),
        pytest.param(
            2, False, 60e-6 + 2 * 0.75 * 4 / 100, 1.0,
            id="ep 2: 4 ranks, two a node, sum 4 GB: 6 x 10 us + 2 x 3/4 x 4 / (200/2)",
        ),
        pytest.param(8, False, 0.0, 1.0, id="ep 8: each expert is on one rank"),
    ],
)  # fmt: skip
def test_whole_experts_by_hand(
    cluster: Cluster, expert_parallel: int, shared: bool, once_s: float, updated: float
):
    """Experts that FSDP leaves alone: nothing is gathered, and their sums are the step's last."""
    layout = Layout(
        data_parallel=8, zero_stage=3, expert_parallel=expert_parallel, stages=even_stages(8, 1)
    )
    sent = weight_traffic(layout, cluster, WHOLE, 1.0, NONE_FROZEN, trained("bf16"))
    experts = RankParameters(dense=0.0, expert=1e9)
    assert (sent.forward_s(experts) > 0, sent.backward_s(experts, again=1.0) > 0) == (shared,) * 2
    assert sent.once_s(experts) == pytest.approx(once_s, rel=1e-12)
    assert sent.updated(experts) == pytest.approx(updated * 1e9)
    dense = sent.backward_s(BILLION, again=1.0), sent.once_s(BILLION)
    usual = traffic(cluster, "torchtitan", data_parallel=8, zero_stage=3)
    assert dense == (usual.backward_s(BILLION, again=1.0), 0.0)


def test_sums_of_whole_experts_are_seen(models, cluster: Cluster):
    """They begin when the last backward is done."""
    training = Training(seq_len=512, global_batch_size=8)
    setting = Setting(models["windowed"], training, cluster, WHOLE, Tuning())
    layout = Layout(data_parallel=8, zero_stage=2, expert_parallel=2, stages=even_stages(8, 1))
    step = StepModel(setting, layout)
    assert step.reduce_s(0) == float(step.traffic.once_s(step.rank_parameters[0])) > 0


HYBRID = {"data_parallel": 8, "tensor_parallel": 2, "zero_stage": 3, "shard_group": 2}


@pytest.mark.parametrize(
    ("part", "expected_s"),
    [
        pytest.param("forward", 1e-6 + 0.5 * 2 / 100, id="gather 2 GB in a node: 1 us + 1/2 2/100"),
        pytest.param(
            "backward", 2 * 1e-6 + 0.5 * 2 / 100 + 0.5 * 4 / 100,
            id="gather again, scatter 4 GB: 1 us + 1/2 4/100",
        ),
        pytest.param(
            "once", 60e-6 + 2 * 0.75 * 2 / 50,
            id="all_reduce 4/2 GB over 4 nodes: 6 x 10 us + 2 x 3/4 x 2 / (200/4)",
        ),
    ],
)  # fmt: skip
def test_hybrid_sharding_by_hand(cluster: Cluster, part: str, expected_s: float):
    """Weights and gradients stay in the shard group; what is left crosses the network once."""
    sent = traffic(cluster, "native", **HYBRID)
    found = {
        "forward": sent.forward_s(BILLION), "backward": sent.backward_s(BILLION, again=True),
        "once": sent.once_s(BILLION),
    }  # fmt: skip
    assert found[part] == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("zero_stage", "expected_s"),
    [
        pytest.param(0, 0.0, id="zero 0: every rank updates all it holds"),
        pytest.param(1, 3e-6 + 0.75 * 2 / 100, id="zero 1, 4 ranks: 3 us + 3/4 of 2 GB / 100"),
        pytest.param(2, 3e-6 + 0.75 * 2 / 100, id="zero 2: the same"),
        pytest.param(3, 0.0, id="zero 3: gathered before use instead"),
    ],
)
def test_updated_weights_are_gathered(cluster: Cluster, zero_stage: int, expected_s: float):
    """Once a step, where ranks update a part of what they hold whole."""
    sent = traffic(cluster, "native", data_parallel=4, zero_stage=zero_stage)
    assert float(sent.refresh_s(BILLION)) == pytest.approx(expected_s, rel=1e-12)


def test_some_engines_add_up_copies_each_micro_batch(cluster: Cluster):
    """FSDP2 all-reduces with every reduce-scatter: nothing is left for the end of the step."""
    native, titan = (traffic(cluster, name, **HYBRID) for name in ("native", "torchtitan"))
    assert titan.once_s(BILLION) == 0
    more = titan.backward_s(BILLION, again=False) - native.backward_s(BILLION, again=False)
    assert more == pytest.approx(native.once_s(BILLION), rel=1e-12)


def test_gradients_in_buckets_by_hand(cluster: Cluster):
    """nanotron's DDP: 1e9 / 13.1072e6 = 76.3 buckets more than one, over 8 ranks on 2 nodes."""
    sent = traffic(cluster, "nanotron", data_parallel=8)
    hops_s = 2 * (1 + 3) * 10e-6  # a tree over 8 ranks
    wire_s = 2 * 7 / 8 * 4 / 100  # 4 GB at 200 GB/s a node, held to 100 inside
    assert sent.once_s(BILLION) == pytest.approx(wire_s + (1 + 1e9 / 13107200) * hops_s, rel=1e-12)
    assert sent.latencies.once_s(BILLION) == pytest.approx(hops_s, rel=1e-12)


def test_whole_gradients_after_the_backward(models, cluster: Cluster):
    """nanotron's ZeRO-1 sends as many bytes as its ZeRO-0, in one piece, and hides none of it."""
    sent = traffic(cluster, "nanotron", data_parallel=8, zero_stage=1)
    assert sent.reduces_late
    assert sent.once_s(BILLION) == pytest.approx(80e-6 + 2 * 7 / 8 * 4 / 100, rel=1e-12)
    training = Training(seq_len=512, global_batch_size=8)
    setting = Setting(models["dense"], training, cluster, load_engine("nanotron"), Tuning())
    step = StepModel(setting, Layout(data_parallel=8, zero_stage=1, stages=even_stages(8, 1)))
    assert step.reduce_s(0) == float(step.traffic.once_s(step.rank_parameters[0]))
    hidden = StepModel(setting, Layout(data_parallel=8, stages=even_stages(8, 1)))
    assert hidden.reduce_s(0) < float(hidden.traffic.once_s(hidden.rank_parameters[0]))


@pytest.mark.parametrize(
    ("engine", "pipeline_parallel", "zero_stage", "hides"),
    [
        pytest.param("deepspeed", 1, 0, False, id="DeepSpeed sums whole gradients at the end"),
        pytest.param("deepspeed", 1, 1, True, id="ZeRO-1 has hooks"),
        pytest.param("deepspeed", 2, 1, False, id="a pipeline sums in its last action"),
        pytest.param("accelerate", 1, 0, True, id="DDP has hooks"),
    ],
)
def test_gradients_hide_beside_the_backward_where_hooks_send_them(
    models, cluster: Cluster, engine: str, pipeline_parallel: int, zero_stage: int, hides: bool
):
    """DeepSpeed's hooks are those of ZeRO without a pipeline; without them all is in the open."""
    training = Training(seq_len=512, global_batch_size=8)
    setting = Setting(models["dense"], training, cluster, load_engine(engine), Tuning())
    step = StepModel(setting, Layout(
        data_parallel=4, pipeline_parallel=pipeline_parallel, zero_stage=zero_stage,
        stages=even_stages(8, pipeline_parallel),
    ))  # fmt: skip
    whole_s = float(step.traffic.once_s(step.rank_parameters[0]))
    assert (step.reduce_s(0) < whole_s) == hides


@pytest.mark.parametrize(
    ("data_parallel", "tensor_parallel", "near"),
    [
        pytest.param(2, 2, 0.0, id="dp 2 x tp 2 on a node of 4: the same links"),
        pytest.param(4, 2, 1.0, id="dp 4 x tp 2 on two nodes: tensor parallel beside the network"),
        pytest.param(4, 8, 0.0, id="dp 4 x tp 8 on eight: both on the network"),
    ],
)
def test_weights_travel_beside_what_stays_on_the_node(
    models, cluster: Cluster, data_parallel: int, tensor_parallel: int, near: float
):
    """Gathers leave the node: the room is computing and the exposed tensor-parallel collectives."""
    layout = Layout(
        data_parallel=data_parallel, tensor_parallel=tensor_parallel, sequence_parallel=True,
        zero_stage=3, stages=even_stages(8, 1),
    )  # fmt: skip
    step = StepModel(setting_of(models, cluster, 8, hides=1.0), layout)
    cost, parameters = step.layer_cost(0, "none"), step.layer_parameters(0)
    forward = cost.forward
    assert forward.tensor_s > 0
    room_s = float(forward.compute_s + near * forward.tensor_s)
    assert forward.room_s == pytest.approx(room_s)
    seen_s = max(float(step.traffic.forward_s(parameters)) - room_s, 0.0)
    assert forward.data_s == pytest.approx(seen_s)


@pytest.mark.parametrize(
    ("engine", "traits", "unpacked_bytes"),
    [
        pytest.param("torchtitan", {"zero_stage": 3}, 4e9, id="2 read + 2 written for each"),
        pytest.param("torchtitan", {"zero_stage": 2}, 0.0, id="zero 2: used where they are"),
        pytest.param("torchtitan", {"zero_stage": 3, "data_parallel": 1}, 0.0, id="not gathered"),
        pytest.param("llm-foundry", {"zero_stage": 3}, 0.0, id="FSDP1: views of the buffer"),
        pytest.param("verl-fsdp", {"zero_stage": 3}, 0.0, id="verl's FSDP1 too"),
        pytest.param("verl-fsdp2", {"zero_stage": 3}, 4e9, id="verl's FSDP2 as torchtitan's"),
    ],
)
def test_gathered_weights_are_copied_out(
    cluster: Cluster, engine: str, traits: dict, unpacked_bytes: float
):
    """FSDP2 gathers into one buffer and copies each weight to its own."""
    sent = traffic(cluster, engine, **{"data_parallel": 8, **traits})
    assert sent.unpacked_bytes(BILLION) == unpacked_bytes


@pytest.mark.parametrize(
    ("engine", "weights", "pieces", "listed_s"),
    [
        pytest.param("deepspeed", 1e9, 4, 0.0, id="each is more than the bucket: four rings"),
        pytest.param("deepspeed", 1e8, 2, 0.0, id="two buckets of 5e7"),
        pytest.param("deepspeed", 1e7, 1, 0.0, id="less than a bucket: one ring"),
        pytest.param("deepspeed-2021", 1e7, 4, 4 * 8e-5, id="each alone, eight ranks listed"),
        pytest.param("torchtitan", 1e9, 1, 0.0, id="FSDP2: a layer at once"),
    ],
)
def test_weights_sent_one_by_one(
    cluster: Cluster, engine: str, weights: float, pieces: int, listed_s: float
):
    """Four matrices over two nodes: each ring of eight ranks has seven hops of 10 us more."""
    sent = traffic(cluster, engine, data_parallel=8, zero_stage=3)
    alone, layer = RankParameters(dense=weights), RankParameters(dense=weights, matrices=4)
    more_s = sent.forward_s(layer) - sent.forward_s(alone)
    assert more_s == pytest.approx((pieces - 1) * 7 * 10e-6)
    back_s = sent.backward_s(layer, again=1) - sent.backward_s(alone, again=1)
    assert back_s == pytest.approx(2 * more_s)
    assert sent.listed_s(layer) == pytest.approx(listed_s)


@pytest.mark.parametrize(
    ("traits", "hop_s", "units_s"),
    [
        pytest.param({"data_parallel": 8}, 10e-6, 14 * 3.3e-4, id="the host's time for each"),
        pytest.param({"data_parallel": 8}, 1e-3, 14 * 7 * 0.19e-3, id="a ring that takes longer"),
        pytest.param({"data_parallel": 8, "zero_stage": 2}, 1e-3, 0.0, id="gathered once a step"),
        pytest.param({"data_parallel": 1}, 1e-3, 0.0, id="one rank gathers nothing"),
    ],
)
def test_each_weight_of_an_adapter_is_a_unit(
    cluster: Cluster, traits: dict[str, int], hop_s: float, units_s: float
):
    """14 weights over eight ranks: seven hops of a ring, a fifth of them for a small message; a
    host that is slower takes as much longer.
    """
    slow = cluster.model_copy(update={"network": link(hop_s, 200e9)})
    layer = RankParameters(dense=1e6, frozen=1e9, adapters=14)
    sent = traffic(slow, "llm-foundry", **{"zero_stage": 3, **traits})
    assert sent.units_s(layer) == pytest.approx(units_s)
    assert traffic(slow, "torchtitan", **{"zero_stage": 3, **traits}).units_s(layer) == 0
    grace = slow.model_copy(update={"host_slowdown": 1000.0})
    behind = traffic(grace, "llm-foundry", **{"zero_stage": 3, **traits}).units_s(layer)
    assert behind == pytest.approx(14 * 0.33 * (units_s > 0))


def test_large_layers_are_gathered_a_third_time(models, cluster: Cluster):
    """Replayed, a layer of 1e9 numbers gives back the half with more than 5e8 behind it, which the
    backward meets after twice as many; without a replay there is nothing to give back.
    """
    sent = traffic(cluster, "deepspeed", data_parallel=8, zero_stage=3)
    assert sent.given_back(BILLION) == 0.5
    assert sent.given_back(RankParameters(dense=5e8)) == 0.0
    assert traffic(cluster, "torchtitan", data_parallel=8, zero_stage=3).given_back(BILLION) == 0.0
    setting = replace(setting_of(models, cluster, 8, hides=0.0), engine=load_engine("deepspeed"))
    state = setting.engine.state.model_copy(update={"reuse_distance": 1.0})
    setting = replace(setting, engine=setting.engine.model_copy(update={"state": state}))
    step = StepModel(setting, Layout(data_parallel=8, zero_stage=3, stages=even_stages(8, 1)))
    assert step.gathered_again(0, "none") == 1.0
    assert step.gathered_again(0, "full") == pytest.approx(2.0)


def test_copies_of_gathered_weights_take_the_device(models, cluster: Cluster):
    """Forward and again backward in a layer, once at an end; at the rate of a copy."""
    setting = replace(setting_of(models, cluster, 8, hides=1.0), engine=load_engine("torchtitan"))
    layout = Layout(data_parallel=8, zero_stage=3, stages=even_stages(8, 1))
    step = StepModel(setting, layout)
    unpacked_s = 4 * step.layer_parameters(0).dense / step.pricer.device.bandwidth_bytes_per_s
    plain = step.pricer.cost(step.operations(0))
    cost = step.layer_cost(0, "none")
    assert cost.forward.pointwise_s - plain.forward.pointwise_s == pytest.approx(unpacked_s)
    assert cost.input_grad.pointwise_s - plain.input_grad.pointwise_s == pytest.approx(unpacked_s)
    head, table = step.ends_cost([1]), step.end_parameters[1].dense
    added_s = head.forward.pointwise_s - step.ends[1].forward.pointwise_s
    assert added_s == pytest.approx(4 * table / step.pricer.device.bandwidth_bytes_per_s)
    assert head.input_grad.pointwise_s == step.ends[1].input_grad.pointwise_s


@settings(max_examples=30)
@given(data=st.data())
def test_a_shard_group_of_everyone_is_no_hybrid(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """Sharding over all of dp x cp said or not said is the same layout: time and memory."""
    case = data.draw(cases())
    la = case.layout
    if la.zero_stage == 0:
        return
    said, unsaid = (
        StepModel(case.setting, replace(la, shard_group=group))
        for group in (la.data_parallel * la.context_parallel, 0)
    )
    assert said.time() == unsaid.time()
    assert said.memory() == unsaid.memory()


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [
        pytest.param(BILLION, 4, 0.1, id="a dense layer: the engine's constant"),
        pytest.param(RankParameters(dense=1e9, expert=8e9), 4, BESIDE_EXPERTS, id="with experts"),
        pytest.param(
            RankParameters(dense=0.0, frozen_expert=8e9),
            4,
            BESIDE_EXPERTS,
            id="with frozen experts",
        ),
        pytest.param(
            RankParameters(dense=0.0, expert=8e9), 8, 0.1, id="experts, weights from two nodes"
        ),
    ],
)
def test_a_layer_with_experts_loses_more(
    cluster: Cluster, parameters: RankParameters, ranks: int, expected: float
) -> None:
    """Four ranks are a node."""
    sent = traffic(cluster, "torchtitan", data_parallel=ranks, zero_stage=3)
    assert float(sent.interference_beside(parameters, 0.1)) == pytest.approx(expected)
