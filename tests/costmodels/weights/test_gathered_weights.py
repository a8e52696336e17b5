"""In how many bits updated weights are gathered, by hand."""

import pytest
from links import link

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import NONE_FROZEN
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.training import Precision, Training
from meshplan.costmodels.weights.traffic import WeightTraffic, weight_traffic
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster


def gathering(precision: Precision, **traits: int) -> WeightTraffic:
    """Of NeMo on a node of 4 GPUs: 1 us and 100 GB/s."""
    changes = {"gpus_per_node": 4, "node": link(1e-6, 100e9), "bandwidth_by_nodes": {}}
    cluster = load_cluster("dgx-h100").model_copy(update=changes)
    layout, engine = Layout(stages=even_stages(8, 1), **traits), load_engine("nemo")
    training = Training(seq_len=4096, global_batch_size=64, precision=precision)
    return weight_traffic(layout, cluster, engine, 1.0, NONE_FROZEN, training)


@pytest.mark.parametrize(
    ("precision", "gigabytes", "of_experts"),
    [
        pytest.param("fp8", 1.25, 1.0, id="three quarters of them, and all experts, in 8 bits"),
        pytest.param("mxfp8", 2.0, 2.0, id="scales of blocks: 16 bits"),
        pytest.param("bf16", 2.0, 2.0, id="16 bits"),
    ],
)
def test_weights_of_8_bits_are_gathered_so(
    precision: Precision, gigabytes: float, of_experts: float
):
    """4 ranks: 3 us + 3/4 of so many GB / 100; experts over 2 of them: 1 us + 1/2 of theirs."""
    weights = RankParameters(dense=1e9, eight_bit=0.75e9, expert=1e9, eight_bit_expert=1e9)
    sent = gathering(precision, data_parallel=4, zero_stage=1, expert_parallel=2)
    expected_s = 3e-6 + 0.75 * gigabytes / 100 + 1e-6 + 0.5 * of_experts / 100
    assert sent.refresh_s(weights) == pytest.approx(expected_s, rel=1e-12)
    assert sent.latencies.refresh_s(weights) == pytest.approx(4e-6, rel=1e-12)


def test_before_use_weights_of_8_bits_are_gathered_in_16():
    """ZeRO-3's runs speak against 8 bits."""
    weights = RankParameters(dense=1e9, eight_bit=1e9)
    sent = [gathering(name, data_parallel=4, zero_stage=3) for name in ("fp8", "bf16")]
    assert len({float(each.forward_s(weights)) for each in sent}) == 1
