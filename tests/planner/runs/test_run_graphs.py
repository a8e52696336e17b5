"""What a row says of CUDA graphs, and how much less the host then issues."""

import pytest
from rows import ROW

from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model


def test_one_graph_of_a_step_leaves_the_host_nothing_to_do() -> None:
    """Neither kernels nor micro-batches are issued one by one."""
    row = ROW | {"note": "CUDA graphs: full_iteration []; EP"}
    run, plain = run_of(row), run_of(ROW | {"note": "CUDA graphs: transformer_engine [attn]"})
    assert [each.engine.kernels.step_graph for each in (run, plain)] == [True, False]
    tuning = load_fit("megatron-bridge", "h100-sxm").tuning
    assert step_model(run, tuning).rank_costs[0].forward.host_s == 0
    gained = (
        step_model(plain, tuning).time().step_time_s - step_model(run, tuning).time().step_time_s
    )
    assert gained >= 16 * tuning.micro_batch_s - 1e-9  # of 128 sequences over 8 replicas


@pytest.mark.parametrize(
    ("scopes", "part", "fewer"),
    [
        pytest.param("[attn]", ("attention",), True, id="attention"),
        pytest.param("mlp", ("mlp",), True, id="mlp"),
        pytest.param("[moe_router, moe_preprocess]", ("router",), False, id="no experts: no less"),
        pytest.param("[attn, moe_router]", ("attention", "router"), True, id="both"),
    ],
)
def test_graphs_of_parts_of_a_layer(scopes: str, part: tuple[str, ...], fewer: bool) -> None:
    """Kernels in a graph are issued with it; the host issues the others one by one."""
    noted = run_of(ROW | {"note": f"CUDA graphs: transformer_engine {scopes}"})
    assert noted.engine.kernels.graphed == part
    tuning = load_fit("megatron", "h100-sxm").tuning.model_copy(update={"launch_s": 1e-2})
    plain, graphed = (step_model(run, tuning).rank_costs[0] for run in (run_of(ROW), noted))
    assert (graphed.forward.host_s < plain.forward.host_s) == fewer


@pytest.mark.parametrize(
    ("shared", "fewer"),
    [
        pytest.param("0", 1 + 10, id="router 1 + top-k 10"),
        pytest.param("1", 1 + 10 + 3, id="and a shared expert's up, activation, down"),
    ],
)
def test_a_graph_of_the_router_by_hand(shared: str, fewer: int) -> None:
    """Kernels that the host issues less in each of two layers' forward; counts of tokens still come
    back to it.
    """
    experts = {"experts": "8", "top_k": "2", "moe_ffn": "512", "shared_experts": shared}
    row = ROW | experts | {"layers": "2", "tp": "1", "pp": "1", "dp": "8", "gpus": "8"}
    every = {"launch_s": 1.0, "routing_s": 7.0}
    tuning = load_fit("megatron", "h100-sxm").tuning.model_copy(update=every)
    plain, graphed = (
        step_model(run_of(row | {"cuda_graph": graph}), tuning).rank_costs[0].forward.host_s
        for graph in ("", "router")
    )
    assert plain - graphed == pytest.approx(2 * fewer, abs=1e-3)  # less what the graphs take


@pytest.mark.parametrize(
    ("experts", "graph", "launch_s", "waits"),
    [
        pytest.param("8", "attention router", 2e-4, True, id="issued behind the experts' kernels"),
        pytest.param("8", "attention router", 1.0, False, id="under the issuing of a permutation"),
        pytest.param("8", "router", 1.0, False, id="attention in no graph: beside what is issued"),
        pytest.param("8", "", 1.0, False, id="no graph"),
        pytest.param("", "attention", 1.0, False, id="no experts: the host is ahead"),
    ],
)
def test_graphs_run_after_what_the_host_issues_behind_a_wait(
    experts: str, graph: str, launch_s: float, waits: bool
) -> None:
    """A host that takes longer than the device: attention that takes twice as long makes the
    forward as much longer if its graph comes after the experts' kernels, for whose rows the host
    has waited, and lasts longer than the host takes to issue the next permutation; else it is done
    before the host is.
    """
    sparse = {"experts": experts, "top_k": "2", "moe_ffn": "512"} if experts else {}
    row = ROW | sparse | {"layers": "2", "tp": "1", "pp": "1", "dp": "8", "gpus": "8"}
    run, forward = run_of(row | {"cuda_graph": graph}), []
    for scale in (1.0, 2.0):
        update = {"launch_s": launch_s, "attention_scale": scale}
        tuning = load_fit("megatron", "h100-sxm").tuning.model_copy(update=update)
        forward.append(step_model(run, tuning).rank_costs[0].forward)
    longer = forward[1].total_s - forward[0].total_s
    assert forward[0].attention_s > 1e-4
    assert longer == pytest.approx(waits * forward[0].attention_s, abs=1e-5)


@pytest.mark.parametrize(
    ("gate", "graph", "more"),
    [
        pytest.param("capacity", "attention router experts", False, id="all of a layer in graphs"),
        pytest.param("capacity", "attention router", True, id="experts outside"),
        pytest.param("", "attention router experts", True, id="counts are read"),
    ],
)
def test_a_layer_of_experts_in_graphs(gate: str, graph: str, more: bool) -> None:
    """Where experts have a fixed capacity, graphs may hold all of a layer, and more layers take
    the host no longer.
    """
    experts = {"experts": "8", "top_k": "2", "moe_ffn": "512", "gate": gate, "cuda_graph": graph}
    row = ROW | experts | {"tp": "1", "pp": "1", "dp": "8", "gpus": "8"}
    every = {"launch_s": 1.0, "routing_s": 7.0}
    tuning = load_fit("megatron", "h100-sxm").tuning.model_copy(update=every)
    two, four = (
        step_model(run_of(row | {"layers": layers}), tuning).rank_costs[0].forward
        for layers in ("2", "4")
    )
    assert (four.host_s > two.host_s + 1.0) == more
