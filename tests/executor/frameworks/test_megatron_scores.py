"""Megatron's attention that keeps its scores: which flags mean it, and what it costs in memory."""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading
from meshplan.planner.case.resolve import engine_named

RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --num-layers 4 "
    "--hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--max-position-embeddings 2048 --global-batch-size 8 --bf16 --vocab-size 50304 "
)


def read(flags: str) -> Reading:
    return read_config(RUN + flags + "\n", "run.sh")


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        ("--attention-backend unfused", "megatron-unfused"),
        ("--attention-backend AttnBackend.unfused --attention-dropout 0.1", "megatron-unfused"),
        ("--transformer-impl local --attention-dropout 0.0", "megatron-unfused-no-dropout"),
        ("--attention-backend local --transformer-impl local", "megatron-unfused"),
        ("--attention-backend flash", "megatron"),
        ("--fp8-format hybrid --fp8-param-gather", "megatron-fp8-params"),
        ("--fp8-format hybrid --fp8-param-gather --grad-reduce-in-bf16", "megatron-bridge"),
        ("--transformer-impl transformer_engine", "megatron"),
        ("--transformer-impl local --deepspeed", "megatron-deepspeed"),
    ],
)
def test_which_engine_prices_it(flags: str, engine: str) -> None:
    assert read(flags).engine == engine


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--transformer-impl local --use-flash-attn", "--transformer-impl"),
        ("--transformer-impl local --attention-backend flash", "--transformer-impl"),
        ("--transformer-impl inference_optimized", "--transformer-impl"),
        ("--attention-backend unfused --use-flash-attn", "--attention-backend"),
        ("--attention-backend unfused --fp8-param-gather", "--fp8-param-gather"),
    ],
)
def test_what_contradicts_itself_is_named(flags: str, named: str) -> None:
    assert any(str(fact.value).startswith(named) for fact in read(flags).unread)


def test_gradients_reduced_in_16_bits_are_kept_so() -> None:
    assert read("--attention-backend unfused --grad-reduce-in-bf16").gradient_bytes == 2.0
    assert read("--attention-backend unfused").gradient_bytes == 0.0


def test_the_engines_differ_from_megatron_in_their_scores_alone() -> None:
    fused, unfused = engine_named("megatron"), engine_named("megatron-unfused")
    bare = engine_named("megatron-unfused-no-dropout")
    assert (unfused.kernels.attention, unfused.kernels.dropout) == ("unfused", True)
    assert (bare.kernels.attention, bare.kernels.dropout) == ("unfused", False)
    assert unfused.state == fused.state
