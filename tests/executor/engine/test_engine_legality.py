"""What the native engine refuses, and that it says so in one line without torch."""

import subprocess
import sys
from dataclasses import replace

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, even_stages
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.training import Training
from meshplan.executor.engine.parts.coordinates import Coordinates
from meshplan.executor.engine.step.legality import check_engine_layout

ATTENTION = Attention(heads=8, kv_heads=2, head_dim=8, v_head_dim=8)
DENSE = Model(
    name="dense", hidden=64, vocab=64, kinds=(Layer(attention=ATTENTION, ffn=64),), pattern=(0,) * 4
)
MOE = replace(
    DENSE,
    name="moe",
    kinds=(Layer(attention=ATTENTION, experts=Experts(experts=8, top_k=2, ffn=32)),),
)
STATE = Recurrent(
    kind="Mamba-2", heads=8, key_dim=8, value_dim=8, groups=2, chunk=16, inner=64,
    projections=2 * 64 + 32 + 8, convolution=4, convolved=64 + 32, numbers=3 * 8 + 64,
)  # fmt: skip
HYBRID = replace(DENSE, kinds=(Layer(recurrent=STATE, ffn=64),))
TRAINING = Training(seq_len=64, global_batch_size=8)
ONE = Layout(stages=even_stages(4, 1))


def window(model):
    """`model` with a sliding window."""
    attention = replace(ATTENTION, window=16)
    return replace(model, kinds=(replace(model.kinds[0], attention=attention),))


@pytest.mark.parametrize(
    ("layout", "model", "training", "text"),
    [
        pytest.param(
            replace(ONE, tensor_parallel=2), DENSE, TRAINING,
            "tensor_parallel 2 runs with sequence_parallel true only; set it", id="tp without sp",
        ),
        pytest.param(
            replace(ONE, tensor_parallel=4, sequence_parallel=True), DENSE, TRAINING,
            "2 key/value heads do not divide by tensor_parallel 4; use a divisor of 2",
            id="2 kv heads on 4 ranks",
        ),
        pytest.param(
            replace(ONE, context_parallel=2), window(DENSE), TRAINING,
            "a sliding window needs context_parallel 1, not 2", id="window across ranks",
        ),
        pytest.param(
            replace(ONE, context_parallel=2), HYBRID, TRAINING,
            "Mamba-2 layers need context_parallel 1, not 2", id="a state across ranks",
        ),
        pytest.param(
            replace(ONE, tensor_parallel=4, sequence_parallel=True), HYBRID, TRAINING,
            "2 heads of keys of Mamba-2 layers do not divide by tensor_parallel 4",
            id="2 groups on 4 ranks",
        ),
        pytest.param(
            ONE, replace(HYBRID, kinds=(Layer(recurrent=replace(STATE, kind="RWKV"), ffn=64),)),
            TRAINING, "RWKV layers: not built", id="another state",
        ),
        pytest.param(
            replace(ONE, data_parallel=4, zero_stage=1, shard_group=3), DENSE, TRAINING,
            "shard_group 3 does not divide data_parallel x context_parallel = 4", id="4 % 3",
        ),
        pytest.param(
            replace(ONE, data_parallel=8, zero_stage=3, shard_group=2, expert_parallel=4), MOE,
            TRAINING, "expert_parallel 4 does not divide the shard group's 2 ranks; use a divisor, "
            "or a larger shard_group", id="2 % 4",
        ),
        pytest.param(
            replace(ONE, data_parallel=2, expert_tensor_parallel=2), MOE, TRAINING,
            "expert_tensor_parallel 2 is not built; use 1", id="split experts",
        ),
        pytest.param(
            Layout(
                pipeline_parallel=2, virtual_stages=2, schedule="interleaved_1f1b",
                stages=even_stages(4, 4), micro_batch_size=8,
            ),
            DENSE, TRAINING, "schedule interleaved_1f1b needs a multiple of pipeline_parallel 2 "
            "micro-batches, not 1", id="1 % 2",
        ),
        pytest.param(
            replace(ONE, stages=(Stage(4, 4),), selective_modules=("norm",)), DENSE, TRAINING,
            "selective recompute of norm is not built; use core_attention, mlp, moe", id="norm",
        ),
        pytest.param(
            ONE, DENSE, replace(TRAINING, precision="fp8"),
            "precision fp8 is not built; use bf16 or fp32", id="fp8",
        ),
        pytest.param(
            ONE, DENSE, replace(TRAINING, optimizer="muon"),
            "optimizer muon is not built; use adamw", id="muon",
        ),
        pytest.param(
            replace(ONE, optimizer_offload=True), DENSE, TRAINING,
            "offloading is not built; keep optimizer and activations on the device", id="offload",
        ),
    ],
)  # fmt: skip
def test_refused(layout, model, training, text):
    """A layout that the engine cannot run is refused with the value, the rule and the fix."""
    with pytest.raises(InvalidLayout) as refused:
        check_engine_layout(layout, model, training)
    assert str(refused.value) == f"native engine: {text}"


def test_unused_selective_modules_do_not_matter():
    """What a selective layer would replay is only checked when there is such a layer: nothing is
    raised.
    """
    check_engine_layout(replace(ONE, selective_modules=("norm",)), DENSE, TRAINING)


@pytest.mark.parametrize("module", ["step.legality", "parts.coordinates"])
def test_without_torch(module):
    """The planner may ask for legality without paying for torch."""
    code = f"import sys, meshplan.executor.engine.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LARGE = Layout(
    data_parallel=4, context_parallel=2, tensor_parallel=2, pipeline_parallel=2, zero_stage=3,
    shard_group=4, expert_parallel=4, stages=even_stages(4, 2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param("tp_group", [20, 21], id="tensor: neighbours"),
        pytest.param("cp_group", [21, 23], id="context: every 2"),
        pytest.param("pp_group", [5, 21], id="pipeline: every 16"),
        pytest.param("shard_group", [17, 19, 21, 23], id="4 of the 8 dp x cp ranks"),
        pytest.param("replica_group", [21, 29], id="the other 4 hold copies"),
        pytest.param("ep_group", [20, 21, 22, 23], id="experts: 4 neighbours, across cp and tp"),
        pytest.param("expert_shard_group", [17, 21], id="2 expert groups in a shard group of 8"),
        pytest.param("expert_replica_group", [21, 29], id="2 shard groups"),
    ],
)
def test_groups_by_hand(group, expected):
    """Rank 21 = ((1 x 4 + 1) x 2 + 0) x 2 + 1: pipeline 1, data 1, context 0, tensor 1."""
    at = Coordinates(LARGE, 21)
    assert (at.pp_rank, at.dp_rank, at.cp_rank, at.tp_rank, at.ep_rank) == (1, 1, 0, 1, 1)
    assert getattr(at, group)() == expected


@pytest.mark.parametrize(
    "group",
    ["tp_group", "cp_group", "pp_group", "shard_group", "replica_group", "ep_group",
     "expert_shard_group", "expert_replica_group"],
)  # fmt: skip
def test_members_agree(group):
    """Every member of a group names the same group, so the groups partition the world."""
    groups = [tuple(getattr(Coordinates(LARGE, rank), group)()) for rank in range(32)]
    assert all(rank in members for rank, members in enumerate(groups))
    assert all(groups[peer] == members for members in groups for peer in members)
