"""What each kind of context parallelism sends and keeps, by hand, and what a layout states."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import Communication
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config

S, TP, CP = 32768, 2, 8
T = S // CP  # tokens of a rank
KV = 2 * T * 8 // TP * (128 + 128)  # bytes of its keys and values: 4 heads of 8
OWN = 2 * T * 32 // TP * (128 + 128)  # of its queries and outputs: 16 heads of 32
LAYOUT = Layout(
    data_parallel=2, tensor_parallel=TP, context_parallel=CP, zero_stage=1, sequence_parallel=True,
    stages=even_stages(32, 1),
)  # fmt: skip


def setting(engine: str = "megatron", model: str = "llama-3.1-8b") -> Setting:
    return Setting.fitted(
        model_from_config(load_model_config(model), model),
        Training(seq_len=S, global_batch_size=2),
        load_cluster("dgx-h100"),
        load_engine(engine),
    )


def exchanges(kind: str, engine: str = "megatron") -> list[Communication]:
    rank = Rank(setting(engine), replace(LAYOUT, context_kind=kind))
    return [op for op in rank.operations(0) if isinstance(op, Communication) and "cp" in op.axis]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        pytest.param(
            "ring", [("cp", "all_gather", CP * KV, 1, 2, "attention")], id="8 ranks' keys, values"
        ),
        pytest.param(
            "all_gather", [("cp", "all_gather", CP * KV, 1, 2, "first_chunk")], id="the same, first"
        ),
        pytest.param(
            "all_to_all", [("cp", "all_to_all", OWN + KV, 1, 1, "nothing")], id="q, k, v and output"
        ),
        pytest.param(
            "hierarchical",
            [
                ("cp_in_node", "all_to_all", OWN + KV, 1, 1, "nothing"),
                ("cp_between_nodes", "all_gather", 2 * KV, 1, 2, "attention"),
            ],
            id="4 ranks of a node divide the heads, 2 nodes are a ring",
        ),
    ],
)
def test_what_a_kind_sends(kind: str, sent: list[tuple[object, ...]]) -> None:
    """tp2 cp8 on nodes of 8: a group has 4 ranks on each of 2 nodes."""
    found = [
        (op.axis, op.kind, op.size_bytes, op.forward_count, op.backward_count, op.hidden_by)
        for op in exchanges(kind)
    ]
    assert found == sent


def test_what_is_exchanged_is_kept() -> None:
    """Attention keeps the outputs of other ranks' tokens where heads are exchanged: 2 t a d."""
    saved = {
        kind: Rank(setting(), replace(LAYOUT, context_kind=kind)).layer_saved_bytes(0, "none")
        for kind in CONTEXT_KINDS
    }
    assert saved["all_gather"] == saved["ring"]
    assert saved["all_to_all"] - saved["ring"] == 2 * T * 16 * 128
    assert saved["hierarchical"] == saved["all_to_all"]


def test_a_ring_hides_more_than_a_gather_beside_its_first_chunk() -> None:
    """torchtitan's gather may hide beside 1/8 of the attention, Megatron's beside none."""
    kinds = ("ring", "all_gather")

    def seen(engine: str) -> list[float]:
        cost = [
            Rank(setting(engine), replace(LAYOUT, context_kind=kind)).plain_cost(0, "none")
            for kind in kinds
        ]
        return [float(each.forward.context_s) for each in cost]

    titan, megatron = seen("torchtitan"), seen("megatron")
    assert titan[0] < titan[1]
    rank = Rank(setting("megatron"), replace(LAYOUT, context_kind="all_gather"))
    (op,) = exchanges("all_gather")
    whole = rank.pricer._collective_s(op) * rank.pricer.device.tuning.collective_scale
    assert megatron[1] == pytest.approx(float(whole))


@pytest.mark.parametrize(
    ("engine", "field", "usual"),
    [("megatron", "context_kind", "ring"), ("megatron", "dispatcher", "deepep"),
     ("nemo", "dispatcher", "all_to_all")],
)  # fmt: skip
def test_the_usual_kind_costs_the_same_stated(engine: str, field: str, usual: str) -> None:
    """What an engine does where a layout is silent costs the same, to the digit, where it is not;
    any other kind costs otherwise.
    """
    where = setting(engine, "mixtral-8x7b")
    silent = replace(LAYOUT, expert_parallel=8)
    own = StepModel(where, silent).time()
    steps = {
        kind: StepModel(where, replace(silent, **{field: kind})).time()
        for kind in (CONTEXT_KINDS if field == "context_kind" else DISPATCHERS)
    }
    assert steps[usual] == own
    assert all((step == own) == (kind == usual) for kind, step in steps.items())


def test_launches_are_those_of_the_kind() -> None:
    """A level of its own is one kernel more to issue, forward."""
    launches = {}
    for kind in ("ring", "hierarchical"):
        rank = Rank(setting(), replace(LAYOUT, context_kind=kind))
        assert isinstance(rank.pricer, Pricer)
        launches[kind] = rank.pricer.launches(
            layer_operations(rank.site, rank.setting.model.kinds[0])
        )
    assert launches["hierarchical"] - launches["ring"] == 1


@pytest.mark.parametrize("kind", CONTEXT_KINDS)
def test_a_rank_of_its_own_issues_no_exchange(kind: str) -> None:
    """Keys reach no other rank without context parallelism, whose kinds all cost the same then; a
    ring of two is one kernel more to issue, forward and backward.
    """
    alone = replace(LAYOUT, context_parallel=1)
    assert _issued(replace(alone, context_kind=kind)) == _issued(alone)
    ring = _issued(replace(LAYOUT, context_kind="ring"))
    assert [many - one for many, one in zip(ring, _issued(alone), strict=True)] == [1, 1]


def test_experts_that_are_whole_issue_no_gather() -> None:
    """Ranks that split experts gather their tokens and scatter what comes out, either way."""
    whole = replace(LAYOUT, tensor_parallel=2, expert_parallel=4, expert_tensor_parallel=1)
    split = replace(whole, expert_tensor_parallel=2)
    more = zip(_issued(split, "mixtral-8x7b"), _issued(whole, "mixtral-8x7b"), strict=True)
    assert [many - one for many, one in more] == [2, 2]


@pytest.mark.parametrize(
    ("engine", "model", "more"),
    [
        pytest.param("megatron", "llama-3.1-8b", 0, id="Transformer Engine's layers: nothing"),
        pytest.param(
            "megatron", "mixtral-8x7b", 3, id="tokens and weights to experts, tokens back"
        ),
        pytest.param("megatron-deepspeed", "llama-3.1-8b", 4, id="around attention, around MLP"),
        pytest.param("nanotron", "llama-3.1-8b", 0, id="nanotron's: inside products"),
        pytest.param("torchtitan", "mixtral-8x7b", 0, id="PyTorch's: nothing"),
    ],
)
def test_functions_that_a_rank_of_its_own_applies(engine: str, model: str, more: int) -> None:
    """Both ways, beside what it issues without; where several share sequences all are sent."""
    alone = Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1))
    two = replace(
        alone, data_parallel=4, tensor_parallel=2, expert_parallel=4, sequence_parallel=True
    )
    for layout, each in ((alone, more), (two, 0)):
        said = _issued(layout, model, engine, functions=False)
        applied = zip(_issued(layout, model, engine), said, strict=True)
        assert [function - none for function, none in applied] == [each, each]


def _issued(
    layout: Layout, model: str = "llama-3.1-8b", engine: str = "megatron", *, functions: bool = True
) -> tuple[float, float]:
    """Kernels of a layer that the host issues forward and backward, without weight gradients."""
    rank = Rank(setting(engine, model), layout)
    pricer, kind = rank.pricer, rank.setting.model.kinds[0]
    assert isinstance(pricer, Pricer)
    if not functions:
        pricer = replace(pricer, functions_alone=())
    operations = layer_operations(rank.site, kind)
    forward = sum(pricer._launches(op, "forward") for op in operations)
    return float(forward), float(sum(pricer._launches(op, "input_grad") for op in operations))
