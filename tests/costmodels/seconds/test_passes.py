"""A pass is the plain sum over all of its operations, each asked for each direction by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.operations.kinds import Communication, Operation
from meshplan.costmodels.seconds.collectives import ALL_SENT, collective_s
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.costmodels.seconds.layer import AXES, DIRECTIONS, Pricer
from meshplan.costmodels.seconds.operation import (
    Direction,
    attention_pass_s,
    count_of,
    matmul_pass_s,
    memory_pass_s,
)
from meshplan.costmodels.step.step import StepModel


def parts(
    pricer: Pricer, operations: Sequence[Operation], direction: Direction
) -> dict[str, float]:
    """Seconds of matrix products, attention, kernels bound by memory without what brings gradients
    to their buffers, and of each axis' collectives, of one layout without adapters.
    """
    device, tuning = pricer.device, pricer.device.tuning
    found = {"matmul": 0.0, "attention": 0.0, "memory": 0.0, **dict.fromkeys(AXES, 0.0)}
    for op in operations:
        scale = tuning.expert_scale if "moe" in op.modules else 1.0
        found["matmul"] += scale * matmul_pass_s(device, op, direction)
        found["attention"] += attention_pass_s(device, op, direction)
        found["memory"] += scale * memory_pass_s(device, op, direction)
    busy = found["matmul"] + found["attention"] + found["memory"]
    rooms = {
        "linear": found["matmul"] / 2, "attention": found["attention"], "expert": busy / 2,
        "nothing": 0.0, "first_chunk": found["attention"] / pricer.groups["cp"].size,
    }  # fmt: skip
    overlaps = {
        "linear": pricer.overlap.tensor, "attention": pricer.overlap.context,
        "first_chunk": pricer.overlap.context_gather, "expert": pricer.expert_overlap,
    }  # fmt: skip
    for op in operations:
        if isinstance(op, Communication):
            scale = tuning.expert_scale if "moe" in op.modules else tuning.collective_scale
            routing = op.routing if pricer.deduplicates else ALL_SENT
            group = pricer.groups[op.axis]
            each = collective_s(pricer.cluster, op.kind, op.size_bytes, group, routing)
            whole = count_of(op, direction) * each * scale
            room, overlap = rooms[op.hidden_by], overlaps.get(op.hidden_by, 0.0)
            tier = pricer.cluster.node if group.nodes <= 1 else pricer.cluster.network
            slowed = tuning.interference if tier.interference is None else tier.interference
            found[op.axis] += exposed_s(whole, room, overlap, slowed)
    return found


@settings(max_examples=100)
@given(data=st.data())
def test_a_pass_is_the_sum_over_its_operations(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """What a sum leaves out by the kind of operation, and what is priced once for both directions,
    changes nothing.
    """
    case = data.draw(cases())
    asked = case.setting
    tuning = asked.tuning.model_copy(update={"expert_scale": 1.5, "collective_scale": 1.25})
    training = replace(asked.training, lora=None)
    rank = StepModel(replace(asked, tuning=tuning, training=training), case.layout)
    for kind in range(len(asked.model.kinds)):
        cost = rank.plain_cost(kind, "none")
        passes = (cost.forward, cost.input_grad, cost.weight_grad)
        for direction, found in zip(DIRECTIONS, passes, strict=True):
            plain = parts(rank.pricer, rank.operations(kind), direction)
            assert found.matmul_s == pytest.approx(plain["matmul"], rel=1e-12)
            assert found.attention_s == pytest.approx(plain["attention"], rel=1e-12)
            if direction != "weight_grad":  # brings gradients to their buffers too
                assert found.pointwise_s == pytest.approx(plain["memory"], rel=1e-12)
            assert found.tensor_s == pytest.approx(plain["tp"], rel=1e-9, abs=1e-15)
            context_s = plain["cp"] + plain["cp_in_node"] + plain["cp_between_nodes"]
            assert found.context_s == pytest.approx(context_s, rel=1e-9, abs=1e-15)
            experts_s = plain["ep"] + plain["etp"]
            assert found.expert_s == pytest.approx(experts_s, rel=1e-9, abs=1e-15)
