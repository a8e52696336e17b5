"""How many nodes and ranks a token's copies reach, by hand and against drawn tokens."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import Routing
from meshplan.costmodels.seconds.collectives import collective_s
from meshplan.costmodels.seconds.dispatch import distinct
from meshplan.costmodels.seconds.process_groups import Group, exchanges_between_nodes
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config


@pytest.mark.parametrize(
    ("places", "routing", "expected"),
    [
        pytest.param(4.0, Routing(2), 1.75, id="any of 4: 4 (1 - (3/4)^2) = 1.75"),
        pytest.param(4.0, Routing(2, 4, 2), 1.5, id="2 groups of 4: 2 (1 - (1/2)^2) = 1.5"),
        pytest.param(8.0, Routing(2, 4, 2), 1.75, id="a group on 2 places: 4 (1 - (3/4)^2) = 1.75"),
        pytest.param(
            2.0, Routing(2, 4, 2), 4 / 3, id="2 groups each: 2 (1 - 1/6 - 4/6 (1/2)^2) = 4/3"
        ),
        pytest.param(1.0, Routing(8, 8, 4), 1.0, id="one place is always reached"),
        pytest.param(3.0, Routing(2, 4, 2), 5 / 3, id="3 places cut 4 groups: no limit, 5/3"),
        pytest.param(8.0, Routing(8, 8, 4), 3.5995, id="DeepSeek-V3, 8 nodes: 4 (1 - (3/4)^8)"),
        pytest.param(8.0, Routing(8, 8, 4, 256), 1.0, id="256 dealt out, 8 nodes of 32: one"),
        pytest.param(64.0, Routing(8, 8, 4, 256), 2.0, id="64 ranks of 4: two"),
        pytest.param(4.0, Routing(6, 0, 0, 12), 2.0, id="0-5 and 6-11, 3 to a place: two"),
        pytest.param(4.0, Routing(2, 0, 0, 12), 4 / 3, id="2-3 and 8-9 of six straddle: 1 + 2/6"),
    ],
)
def test_places_by_hand(places: float, routing: Routing, expected: float):
    """A router limited to g of G groups limits places as the groups are placed."""
    assert distinct(places, routing) == pytest.approx(expected, abs=1e-4)
    together = distinct(np.array([places, 1.0, places]), routing)
    assert together == pytest.approx([expected, 1.0, expected], abs=1e-4)


@pytest.mark.parametrize("places", [2, 4, 8, 16])
def test_places_as_drawn(places: int):
    """20,000 tokens that draw their groups, and experts of them with replacement, meet as many."""
    groups, top, copies, draw = 8, 3, 4, random.Random(places)
    experts = range(16)
    met = 0
    for _ in range(20_000):
        chosen = set(draw.sample(range(groups), top))
        allowed = [e for e in experts if e * groups // len(experts) in chosen]
        met += len({e * places // len(experts) for e in draw.choices(allowed, k=copies)})
    assert distinct(float(places), Routing(copies, groups, top)) == pytest.approx(
        met / 20_000, rel=0.01
    )


@pytest.mark.parametrize("places", [2, 4, 8, 32])
@pytest.mark.parametrize(("experts", "copies"), [(128, 4), (512, 22), (384, 8), (64, 6)])
def test_places_as_dealt(places: int, experts: int, copies: int):
    """AutoModel's own line of code, arange(tokens x copies) % experts, read by place."""
    choices = np.arange(experts * copies).reshape(-1, copies) % experts
    met = [len(set(token)) for token in (choices * places // experts).tolist()]
    dealt = distinct(float(places), Routing(copies, 0, 0, experts))
    assert dealt == pytest.approx(np.mean(met), rel=1e-12)
    assert dealt <= distinct(float(places), Routing(copies)) + 1e-9


def test_a_limit_never_sends_more():
    """Whatever the group, fewer groups to choose from reach no more nodes, and take no longer."""
    cluster = load_cluster("dgx-h800")
    for ranks, tops in itertools.product((8, 16, 32, 64, 128), itertools.pairwise((1, 2, 4, 8))):
        fewer, more = (
            collective_s(cluster, "all_to_all", 1e8, Group(ranks, 8.0), Routing(8, 8, top))
            for top in tops
        )
        assert fewer <= more


def test_limits_are_the_models_own():
    """The model's file says the groups, and models that differ in them are not the same."""
    found = {
        name: model_from_config(load_model_config(name), name)
        for name in ("deepseek-v3", "kimi-k2", "qwen3-30b-a3b")
    }
    groups = {name: model.expert_groups for name, model in found.items()}
    assert groups == {"deepseek-v3": (8, 4), "kimi-k2": (0, 0), "qwen3-30b-a3b": (0, 0)}
    limited = found["deepseek-v3"]
    assert replace(limited, numerics=found["kimi-k2"].numerics) != limited


@pytest.mark.parametrize(
    ("ranks", "each", "stated", "usual", "node", "expected"),
    [
        pytest.param(16, 1, "", "all_to_all", 8, True, id="16 ranks on nodes of 8"),
        pytest.param(8, 1, "", "all_to_all", 8, False, id="8 ranks on one"),
        pytest.param(8, 2, "", "all_to_all", 8, True, id="8 ranks, each expert over 2 GPUs"),
        pytest.param(64, 1, "", "all_to_all", 72, False, id="64 ranks of one NVLink domain"),
        pytest.param(16, 1, "deepep", "all_to_all", 8, False, id="one copy for each node"),
        pytest.param(16, 1, "", "deduplicated", 8, False, id="so the engine usually does"),
        pytest.param(16, 1, "all_to_all", "hybridep", 8, True, id="all-to-all, as the layout says"),
    ],
)
def test_experts_between_nodes(
    ranks: int, each: int, stated: str, usual: str, node: int, expected: bool
):
    """Whether copies for each expert leave their node."""
    layout = Layout(
        data_parallel=128, expert_parallel=ranks, expert_tensor_parallel=each, dispatcher=stated,
        stages=(),
    )  # fmt: skip
    assert exchanges_between_nodes(layout, usual, node) is expected
