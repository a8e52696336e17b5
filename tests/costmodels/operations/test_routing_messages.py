"""What Megatron-Core's alltoall dispatcher sends beside the tokens, by hand. Run: pytest
tests/costmodels.
"""

from collections.abc import Iterator

import pytest

from meshplan.costmodels.layout import Dispatcher, Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import Communication
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config

MODEL = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
TOKENS, EXPERTS, COPIES = 2048, 8, 2
BESIDE = ("counts", "weights", "gathered_weights")


def messages(rank: Rank) -> Iterator[Communication]:
    """Of a layer, in order."""
    for op in layer_operations(rank.site, MODEL.kinds[0]):
        if isinstance(op, Communication) and op.axis in ("ep", "etp"):
            yield op


def rank_of(
    ep: int, dispatcher: Dispatcher | str = "", etp: int = 1, engine: str = "megatron"
) -> Rank:
    """Of 8 that share experts, each with 2,048 tokens."""
    layout = Layout(
        data_parallel=8 // etp, tensor_parallel=etp, expert_parallel=ep, expert_tensor_parallel=etp,
        sequence_parallel=etp > 1, dispatcher=dispatcher, stages=even_stages(MODEL.num_layers, 1),
    )  # fmt: skip
    training = Training(seq_len=TOKENS * etp, global_batch_size=8 // etp)
    fitted = Setting.fitted(MODEL, training, load_cluster("dgx-h100"), load_engine(engine))
    return Rank(fitted, layout)


def issued(rank: Rank) -> dict[str, tuple[float, float]]:
    """Launches of each message beside the tokens, forward and backward."""
    pricer = rank.pricer
    assert isinstance(pricer, Pricer)
    return {
        op.name: (float(pricer._launches(op, "forward")), float(pricer._launches(op, "input_grad")))
        for op in messages(rank)
        if op.name in BESIDE
    }


def test_counts_go_before_the_tokens_and_weights_behind_them() -> None:
    """8 ranks gather 8 int64 counts of each; 2,048 tokens have 2 copies with an fp32 weight each,
    whose gradients come back.
    """
    found = {op.name: op for op in messages(rank_of(8, "all_to_all"))}
    order = [name for name in found if name in (*BESIDE, "dispatch", "combine")]
    assert order == ["counts", "dispatch", "weights", "gathered_weights", "combine"]
    counts, weights = found["counts"], found["weights"]
    assert (counts.kind, counts.size_bytes) == ("all_gather", 8 * 8 * EXPERTS)
    assert (counts.forward_count, counts.backward_count) == (1, 0)
    assert (weights.kind, weights.size_bytes) == ("all_to_all", 4 * TOKENS * COPIES)
    assert (weights.forward_count, weights.backward_count) == (1, 1)


@pytest.mark.parametrize(
    ("ep", "dispatcher", "etp", "engine", "counts", "weights", "gathered"),
    [
        pytest.param(8, "all_to_all", 1, "megatron", 1, 1, 0, id="all-to-all"),
        pytest.param(8, "deepep", 1, "megatron", 0, 0, 0, id="DeepEP sends weights along"),
        pytest.param(8, "hybridep", 1, "megatron", 0, 0, 0, id="so does HybridEP"),
        pytest.param(1, "", 1, "megatron", 0, 1, 0, id="alone: its function alone"),
        pytest.param(4, "all_to_all", 2, "megatron", 1, 1, 1, id="split experts"),
        pytest.param(4, "deepep", 2, "megatron", 0, 0, 0, id="DeepEP over split experts"),
        pytest.param(1, "", 1, "native", 0, 0, 0, id="nothing on a rank of its own"),
    ],
)
def test_who_issues_what(
    ep: int, dispatcher: str, etp: int, engine: str, counts: int, weights: int, gathered: int
) -> None:
    """Counts forward alone, weights and their gradients both ways."""
    assert issued(rank_of(ep, dispatcher, etp, engine)) == {
        "counts": (counts, 0), "weights": (weights, weights),
        "gathered_weights": (gathered, gathered),
    }  # fmt: skip


def test_weights_that_multiply_what_comes_back_are_not_sent() -> None:
    """NeMo's Megatron-Core gathers counts alone."""
    assert issued(rank_of(8, "all_to_all", engine="nemo")) == {"counts": (1, 0)}
