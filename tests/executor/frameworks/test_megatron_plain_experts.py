"""Experts of two matrices, of Megatron's flags without a gate: parameters, and what is named."""

import pytest

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16 "
    "--micro-batch-size 4 --global-batch-size 32 --vocab-size 50304 --num-experts 4 "
    "--moe-router-topk 1 --moe-grouped-gemm --expert-model-parallel-size 2 "
    "--tensor-model-parallel-size 1 "
)
PLAIN = "--disable-bias-linear "
ROTARY = "--position-embedding-type rope "
EXPERT = 2 * 512 * 2048
OTHERS = 12 * (4 * 512 * 512 + 4 * 512 + 2 * 2 * 512) + 2 * 512 + 50304 * 512
"""Attention, the router and two norms with a bias of each layer; the last norm; a tied head."""


def read(flags: str) -> Reading:
    return read_config(f"{RUN}{flags}\n", "run.sh")


@pytest.mark.parametrize(
    ("flags", "routed", "more"),
    [
        pytest.param(PLAIN, 12 * 4 * EXPERT, 1024 * 512, id="learnt positions"),
        pytest.param(PLAIN + ROTARY, 12 * 4 * EXPERT, 0, id="rotary"),
        pytest.param(
            PLAIN + "--use-rotary-position-embeddings", 12 * 4 * EXPERT, 0, id="rotary's old switch"
        ),
        pytest.param(
            PLAIN + ROTARY + "--ffn-hidden-size 1024", 12 * 4 * EXPERT // 2, 0, id="narrower"
        ),
        pytest.param(
            PLAIN + ROTARY + "--moe-layer-freq '([0]*2+[1]*10)'",
            10 * 4 * EXPERT,
            2 * (EXPERT - 4 * 512),
            id="two dense layers, without routers",
        ),
        pytest.param(
            PLAIN + ROTARY + "--moe-shared-expert-intermediate-size 1024",
            12 * 4 * EXPERT,
            12 * EXPERT // 2,
            id="a shared one of half the width",
        ),
    ],
)
def test_experts_without_a_gate_have_two_matrices(flags: str, routed: int, more: int) -> None:
    reading = read(flags)
    assert not reading.unread
    count = model_parameters(model_from_config(reading.model_config, "x"))
    assert count.routed_experts == routed
    assert count.total == routed + OTHERS + more


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("", "biases, without --disable-bias-linear"),
        (PLAIN + "--multi-latent-attention", "latent attention"),
        (PLAIN + "--moe-shared-expert-gate", "a gate on shared experts"),
        (PLAIN + "--mtp-num-layers 1", "modules of multi-token prediction"),
    ],
)
def test_what_stands_beside_them_and_is_not_modelled_is_named(flags: str, named: str) -> None:
    said = [str(fact.value) for fact in read(flags).unread]
    assert any(named in each for each in said)
    assert not any(named in str(fact.value) for fact in read(PLAIN).unread)


@pytest.mark.parametrize(
    "switch", ["--use-rotary-position-embeddings", "--no-position-embedding", ROTARY]
)
def test_switches_of_older_releases_leave_no_table_of_positions(switch: str) -> None:
    """Dense, with biases: 1,024 positions of 512 less than without the switch."""
    dense = RUN.partition("--num-experts")[0] + "--tensor-model-parallel-size 1 "
    learnt, without = (
        model_parameters(model_from_config(read_config(text, "run.sh").model_config, "x")).total
        for text in (dense + "\n", dense + switch + "\n")
    )
    assert learnt - without == 1024 * 512
