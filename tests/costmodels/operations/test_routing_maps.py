"""What HybridEP sends beside the tokens, by hand and beside DeepEP. Run: pytest
tests/costmodels.
"""

import pytest

from meshplan.costmodels.layout import Dispatcher, Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Operation, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

MODEL = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
TOKENS, EXPERTS, COPIES, HIDDEN = 2048, 8, 2, 4096


def found(dispatcher: Dispatcher, ep: int, ranks_per_node: int) -> dict[str, Operation]:
    """A layer's operations by name, of Mixtral on `ep` ranks of experts."""
    layout = Layout(
        data_parallel=ep,
        expert_parallel=ep,
        dispatcher=dispatcher,
        stages=even_stages(MODEL.num_layers, 1),
    )
    shard = shard_of(layout, Training(seq_len=TOKENS, global_batch_size=ep))
    site = Site(MODEL, shard, load_engine("megatron").kernels, 2.0, 1.0, float(ranks_per_node))
    return {op.name: op for op in layer_operations(site, MODEL.kinds[0])}


@pytest.mark.parametrize(("ranks_per_node", "weights"), [(8, 8), (4, 4), (1, 1)])
def test_a_copy_carries_the_weights_of_a_node_s_experts(ranks_per_node: int, weights: int) -> None:
    """8 experts on 8 ranks: a copy brings 4 bytes for each expert of a node, beside 8,192 bytes of
    the token itself; what comes back brings none.
    """
    operations = found("hybridep", 8, ranks_per_node)
    sent, back = operations["dispatch"], operations["combine"]
    assert isinstance(sent, Communication)
    assert isinstance(back, Communication)
    assert sent.size_bytes == TOKENS * COPIES * (2 * HIDDEN + 4 * weights)
    assert back.size_bytes == TOKENS * COPIES * 2 * HIDDEN


def test_every_rank_learns_where_all_tokens_go() -> None:
    """A byte for each token of 8 ranks and each of 8 experts is gathered once, forward, and read;
    5 bytes are written for each token and the one expert here.
    """
    operations = found("hybridep", 8, 8)
    gathered, read = operations["routing_map"], operations["read_routing_map"]
    assert isinstance(gathered, Communication)
    assert isinstance(read, Pointwise)
    assert gathered.size_bytes == 8 * TOKENS * EXPERTS
    assert (gathered.forward_count, gathered.backward_count) == (1, 0)
    assert read.forward_bytes == 8 * TOKENS * (EXPERTS + 5)
    assert read.backward_bytes == 0


def test_other_libraries_gather_no_map() -> None:
    """DeepEP sends what it sent, and nobody sends anything to experts that are all here."""
    assert "routing_map" not in found("deepep", 8, 8)
    assert "routing_map" not in found("all_to_all", 8, 8)
    alone = found("hybridep", 1, 1)
    gathered, sent = alone["routing_map"], alone["dispatch"]
    assert isinstance(gathered, Communication)
    assert isinstance(sent, Communication)
    assert gathered.size_bytes == gathered.present == 0
    assert sent.size_bytes == TOKENS * COPIES * 2 * HIDDEN


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_hybridep_is_never_cheaper_than_deepep(ep: int, tensor_parallel: int) -> None:
    """So the search may let the first of the two that runs stand for both."""
    cluster = load_cluster("dgx-h100")
    training = Training(seq_len=TOKENS, global_batch_size=64)
    seconds = {}
    for name in ("deepep", "hybridep"):
        layout = Layout(
            data_parallel=16 // tensor_parallel,
            tensor_parallel=tensor_parallel,
            sequence_parallel=tensor_parallel > 1,
            expert_parallel=ep,
            dispatcher=name,
            stages=even_stages(MODEL.num_layers, 1),
        )
        setting = Setting(MODEL, training, cluster, load_engine("megatron"), Tuning())
        seconds[name] = float(StepModel(setting, layout).time().step_time_s)
    assert seconds["deepep"] < seconds["hybridep"]


@pytest.mark.parametrize(
    ("dispatcher", "ep", "issued"),
    [
        pytest.param("hybridep", 8, 0, id="HybridEP permutes in the calls that send"),
        pytest.param("deepep", 8, 8, id="DeepEP: two launches for each of four copies"),
        pytest.param("all_to_all", 8, 8, id="all-to-all: as many"),
        pytest.param("hybridep", 1, 8, id="all experts are here: nothing is sent"),
    ],
)
def test_copies_that_the_host_issues(dispatcher: Dispatcher, ep: int, issued: int) -> None:
    """Rows are copied before they are sent and when they come, and the same on the way back."""
    operations = found(dispatcher, ep, 8)
    copies = [operations[name] for name in ("permute", "sort_by_expert", "unsort", "unpermute")]
    assert all(isinstance(copy, Pointwise) for copy in copies)
    launches = [copy.kernels * copy.issued_share for copy in copies if isinstance(copy, Pointwise)]
    assert sum(launches) == issued
