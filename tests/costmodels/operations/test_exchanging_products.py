"""Experts' products that fetch and send rows themselves: what is left around them, and what of an
exchange is seen. Run: pytest tests/costmodels.
"""

from dataclasses import replace

import pytest
from rows import ROW

from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model

EIGHT = {"framework": "torchtitan", "gpus": "8", "gpus_per_node": "8", "gpu": "b200", "dp": "8"}
SPLIT = ROW | EIGHT | {
    "experts": "16", "top_k": "2", "moe_ffn": "1024", "ep": "8", "tp": "1", "pp": "1", "zero": "3",
    "precision": "mxfp8", "cuda_graph": "full_iteration",
}  # fmt: skip


def step_of(dispatcher: str, slowed: float = 1.0) -> StepModel:
    """Of a run on one node of eight, whose links are `slowed`."""
    run = run_of(SPLIT | {"dispatcher": dispatcher})
    step = step_model(run, Tuning())
    node = run.cluster.node
    usual = node.bus_bandwidth
    slow = usual.model_copy(update={"all_to_all": usual.all_to_all / slowed})
    link = node.model_copy(update={"bus_bandwidth": slow, "collective_fits": ()})
    cluster = run.cluster.model_copy(update={"node": link})
    return StepModel(replace(step.setting, cluster=cluster), step.layout)


def of_experts(step: StepModel) -> dict[str, Operation]:
    """The operations of its last layer by name."""
    return {op.name: op for op in step.operations(len(step.setting.model.kinds) - 1)}


def passes(step: StepModel) -> tuple[Pass, Pass]:
    cost = step.layer_cost(len(step.setting.model.kinds) - 1, "none")
    return cost.forward, cost.input_grad


def test_what_is_left_around_the_products() -> None:
    """Of four copies forward one is left, and two backward; no rows of experts are cast."""
    usual, fused = of_experts(step_of("alltoall")), of_experts(step_of("dist_moe"))
    rows = {}
    for name in ("permute", "sort_by_expert", "unsort", "unpermute"):
        before, after = usual[name], fused[name]
        assert isinstance(before, Pointwise)
        assert isinstance(after, Pointwise)
        assert before.forward_bytes == before.backward_bytes > 0
        rows[name] = (
            after.forward_bytes / before.forward_bytes,
            after.backward_bytes / before.backward_bytes,
        )
    assert rows == {
        "permute": (0, 1), "sort_by_expert": (0, 0), "unsort": (0, 0), "unpermute": (1, 1),
    }  # fmt: skip
    products = [op for op in fused.values() if isinstance(op, Matmul) and "experts" in op.modules]
    assert [op.casts for op in products] == [0, 0]


def test_each_exchange_runs_under_its_own_product() -> None:
    """Tokens come under the first, and go back under the second."""
    fused = of_experts(step_of("dist_moe"))
    sent = [fused[name] for name in ("dispatch", "combine")]
    under = [op.hidden_by for op in sent if isinstance(op, Communication)]
    assert under == ["experts_up", "experts_down"]


@pytest.mark.parametrize("backward", [False, True])
def test_of_slow_exchanges_is_seen_what_their_products_are_shorter(backward: bool) -> None:
    """Whatever the links, the two products hide as long as they take: on links twice as slow as
    much as on slow ones.
    """
    hidden = [
        passes(step_of("alltoall", slowed))[backward].expert_s
        - passes(step_of("dist_moe", slowed))[backward].expert_s
        for slowed in (100.0, 200.0)
    ]
    assert hidden[0] == pytest.approx(hidden[1])
    assert 0 < hidden[0] < passes(step_of("dist_moe"))[backward].matmul_s


def test_of_fast_exchanges_is_seen_what_they_slow_their_products() -> None:
    """t i / (1 + i) of t seconds beside products that take longer."""
    slows = Tuning().interference
    whole, seen = (passes(step_of(each, 0.001))[0].expert_s for each in ("alltoall", "dist_moe"))
    assert whole > 0
    assert seen == pytest.approx(whole * slows / (1 + slows))
