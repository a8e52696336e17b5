"""The host's wait for how many rows its experts get: by hand, and against a clock of both."""

import random

import pytest
from rows import ROW

from meshplan.costmodels.operations.kinds import Pointwise
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.expert_counts import in_step_s, wait_at
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model

EXPERTS = {"experts": "8", "top_k": "2", "moe_ffn": "512"}
LAYERS = 2
SPLIT = ROW | EXPERTS | {"layers": f"{LAYERS}", "tp": "1", "pp": "1", "dp": "8", "gpus": "8"}


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        pytest.param(0, 1 + 5.6, id="long kernel first: the host is ahead from then on"),
        pytest.param(1, 1 + 1 + 1 + 5, id="long kernel last: all is issued before it begins"),
        pytest.param(2, 1 + 1 + 5.5, id="long kernel second"),
    ],
)
def test_in_step_by_hand(wait: int, seconds: float) -> None:
    """Three launches of a second each; kernels of 5, 0.5 and 0.1 s."""
    assert max(in_step_s([1.0, 1.0, 1.0], [5.0, 0.5, 0.1], wait)) == pytest.approx(seconds)


def test_in_step_is_what_two_clocks_show() -> None:
    """The host issues one after the other; the device begins each when it is issued and the one
    before it is done.
    """
    draw = random.Random(7)
    for _ in range(200):
        n = draw.randint(1, 9)
        issued = [draw.choice((0.0, draw.random())) for _ in range(n)]
        lasting = [draw.choice((0.0, 3 * draw.random())) for _ in range(n)]
        wait = draw.randrange(n)
        host = device = 0.0
        for i in (*range(wait, n), *range(wait)):
            host += issued[i]
            device = max(device, host) + lasting[i]
        assert max(in_step_s(issued, lasting, wait)) == pytest.approx(device)


def test_the_wait_is_before_the_exchange() -> None:
    """Nowhere without a router, or where what replays sends nothing."""
    names = ("norm", "router", "top_k", "dispatch", "combine")
    layer = [Pointwise(name=name, forward_bytes=1.0, backward_bytes=1.0) for name in names]
    assert wait_at(layer) == names.index("dispatch")
    assert wait_at(layer[:1] + layer[2:]) is None
    assert wait_at(layer[:3]) is None


@pytest.mark.parametrize(
    ("framework", "ep", "waits"),
    [
        pytest.param("Megatron-LM", "1", True, id="sizes of the grouped product are the host's"),
        pytest.param("Megatron-LM", "8", True, id="and splits of the exchange"),
        pytest.param("torchtitan", "1", False, id="torch._grouped_mm: sizes on the device"),
        pytest.param("torchtitan", "8", True, id="splits of the exchange are the host's"),
    ],
)
def test_the_device_stands_still_while_the_host_reads_counts(
    framework: str, ep: str, waits: bool
) -> None:
    """A host that issues in no time and reads for a tenth of a millisecond, once in the forward
    pass of each layer, and never backward.
    """
    run = run_of(SPLIT | {"framework": framework, "ep": ep})
    tuning = load_fit(run.engine.name, "h100-sxm").tuning
    tuning = tuning.model_copy(update={"launch_s": 0.0, "routing_s": 1e-4})
    cost = step_model(run, tuning).rank_costs[0]
    assert cost.forward.total_s > LAYERS * 1e-3
    assert cost.forward.host_s == pytest.approx(waits * LAYERS * 1e-4, abs=1e-12)
    assert cost.input_grad.host_s == 0


def test_nothing_is_read_of_experts_of_a_fixed_capacity() -> None:
    """Tokens beyond it are dropped and rows that lack are padded, so the host knows the sizes: all
    that it took to read them is spared, forward and backward.
    """
    free, fixed = (run_of(SPLIT | {"framework": "NeMo", "ep": "8", "gate": gate})
                   for gate in ("", "capacity"))  # fmt: skip
    tuning = load_fit("nemo", "h100-sxm").tuning
    tuning = tuning.model_copy(update={"launch_s": 1.0, "routing_s": 100.0})
    reading, knowing = (step_model(run, tuning).rank_costs[0] for run in (free, fixed))
    assert reading.input_grad.host_s - knowing.input_grad.host_s == pytest.approx(LAYERS * 100)
    assert reading.forward.host_s - knowing.forward.host_s >= LAYERS * 100
    rank = Rank(step_model(fixed, tuning).setting, fixed.layout)
    assert rank.pricer.chains_s(rank.operations(0)) == []


@pytest.mark.parametrize("launch_s", [1e-6, 3e-5, 3e-4])
def test_a_forward_pass_takes_the_longest_chain(launch_s: float) -> None:
    """Whoever is slower: it is longer than what either takes alone, and no longer than both."""
    run = run_of(SPLIT | {"framework": "Megatron-LM", "ep": "8"})
    tuning = load_fit(run.engine.name, "h100-sxm").tuning
    tuning = tuning.model_copy(update={"launch_s": launch_s, "routing_s": 1e-4})
    rank = Rank(step_model(run, tuning).setting, run.layout)
    passed = rank.plain_cost(0, "none").forward
    busy_s = passed.total_s - passed.host_s
    issued_s = rank.pricer.issued_s(rank.operations(0), "forward")
    assert passed.total_s == pytest.approx(max(rank.pricer.chains_s(rank.operations(0))))
    assert max(busy_s, issued_s) < passed.total_s < busy_s + issued_s
