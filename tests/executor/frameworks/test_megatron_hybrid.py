"""Megatron's hybrids: the flags of Nemotron-H 8B give the catalogue's model; what stays named."""

import pytest

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.reading import NothingToRead, Reading

PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
RUN = (
    "torchrun --nproc_per_node 8 pretrain_mamba.py --tensor-model-parallel-size 8 --num-layers 52 "
    "--hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --kv-channels 128 --mamba-num-heads 128 --squared-relu "
    "--untie-embeddings-and-output-weights --normalization RMSNorm --seq-length 8192 --bf16 "
    "--position-embedding-type none --max-position-embeddings 8192 --micro-batch-size 1 "
    "--global-batch-size 64 --vocab-size 131072 --is-hybrid-model "
    "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec "
)
PLAIN = "--disable-bias-linear "


def read(flags: str) -> Reading:
    return read_config(RUN + flags + "\n", "run.sh")


@pytest.mark.parametrize("flag", ["--hybrid-override-pattern", "--hybrid-layer-pattern"])
def test_the_flags_of_nemotron_h_are_its_model(flag: str) -> None:
    reading = read(f"{PLAIN} {flag} {PATTERN}")
    assert not reading.unread
    ours = model_from_config(reading.model_config, "ours")
    theirs = model_from_config(load_model_config("nemotron-h-8b"), "theirs")
    assert model_parameters(ours).total == model_parameters(theirs).total
    assert ours.pattern == theirs.pattern


def test_experts_of_a_hybrid_are_read() -> None:
    """By hand: 23 layers of 128 experts of 2 x 2,688 x 1,856, and a shared one of 3,712."""
    letters = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    flags = RUN.replace("hidden-size 4096", "hidden-size 2688", 1).replace("21504", "1856")
    more = (
        "--num-experts 128 --moe-ffn-hidden-size 1856 --moe-router-topk 6 "
        "--moe-shared-expert-intermediate-size 3712 --mamba-head-dim 64 --moe-grouped-gemm "
    )
    reading = read_config(f"{flags} {PLAIN} {more} --hybrid-override-pattern {letters}\n", "a.sh")
    assert not reading.unread
    count = model_parameters(model_from_config(reading.model_config, "x"))
    assert count.routed_experts == 23 * 128 * 2 * 2688 * 1856
    assert (reading.model_config or {})["num_experts_per_tok"] == 6


def test_a_token_of_a_hybrid_goes_to_two_experts_where_none_are_stated() -> None:
    """Megatron-Core's own default of `moe_router_topk`."""
    letters = PATTERN.replace("-", "E")
    reading = read(f"{PLAIN} --num-experts 8 --moe-ffn-hidden-size 1024 --mamba-head-dim 64 "
                   f"--hybrid-override-pattern {letters}")  # fmt: skip
    assert (reading.model_config or {})["num_experts_per_tok"] == 2


@pytest.mark.parametrize(
    "flags",
    [
        f"--hybrid-override-pattern {PATTERN}",  # with biases
        f"{PLAIN} --swiglu --hybrid-override-pattern {PATTERN}",
        f"{PLAIN} --hybrid-override-pattern {PATTERN}M",
        f"{PLAIN} --hybrid-override-pattern {PATTERN[:-1]}X",
        f"{PLAIN} --hybrid-layer-pattern {PATTERN[:-2]}|-",
    ],
)
def test_what_is_not_a_pattern_that_is_read_stays_named(flags: str) -> None:
    assert any("hybrid" in str(fact.value) for fact in read(flags).unread)


def test_without_a_pattern_the_program_is_refused() -> None:
    with pytest.raises(NothingToRead, match="mamba"):
        read(PLAIN)
