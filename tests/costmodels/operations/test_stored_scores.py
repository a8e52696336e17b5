"""Attention whose scores are stored: where, what it multiplies, and who takes its softmax."""

from dataclasses import replace
from typing import Any

import pytest
from sites import S, site

from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.attention.core import (
    MEGATRONS,
    TRANSFORMERS,
    core,
    is_fused,
    softmax_apart,
)
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import ScoreOperators
from meshplan.hardware_profiles.engines import load_engine

NARROW = Attention(heads=16, kv_heads=8, head_dim=256, v_head_dim=256)
WIDE = replace(NARROW, kv_heads=2, head_dim=512, v_head_dim=512)
MODEL = Model(
    name="m", hidden=1024, vocab=512, pattern=(0,), kinds=(Layer(attention=NARROW, ffn=4096),)
)


def where(**habits: Any) -> Site:
    """One sequence on a rank whose engine has these habits."""
    plain = site(MODEL, 1, 1, sequence_parallel=False)
    return replace(plain, kernels=plain.kernels.model_copy(update=habits))


@pytest.mark.parametrize(
    ("kernel", "attention", "fused"),
    [
        pytest.param("cudnn", NARROW, True, id="cuDNN takes 256"),
        pytest.param("cudnn", WIDE, False, id="and no more: Transformer Engine stores scores"),
        pytest.param("flash2", WIDE, True, id="PyTorch keeps its memory-efficient kernel"),
        pytest.param(
            "cudnn", replace(WIDE, window=128, out_groups=8), True,
            id="DeepSeek-V4's kernels read keys by index",
        ),
    ],
)  # fmt: skip
def test_which_kernels_take_a_head(kernel: str, attention: Attention, fused: bool) -> None:
    """Gemma 4's global layers have heads of 512; what is stored is 4 bytes a score, or a number of
    4 bytes a query.
    """
    at = where(attention=kernel, flash_attention=True, dropout=False, softmax_blocks=1)
    assert is_fused(at, attention) == fused
    op = core(at, attention)
    assert (op.fused, op.wide) == (fused, attention is WIDE)
    assert op.saved_bytes == 4 * 16 * S * (1 if fused else S)


def test_stored_scores_of_a_window_are_those_of_all_keys() -> None:
    """A mask hides what is outside of the window; a kernel that stores nothing leaves it out."""
    sliding = replace(NARROW, window=64)
    fused, stored = (core(where(flash_attention=each), sliding) for each in (True, False))
    assert (fused.all_keys, stored.all_keys) == (64, S)
    assert fused.keys == stored.keys


@pytest.mark.parametrize(
    ("blocks", "keys", "apart", "moved"),
    [
        pytest.param(1, 0, 0, MEGATRONS, id="a kernel that takes all"),
        pytest.param(4, S + 8, 0, MEGATRONS, id="16 heads, fewer keys than its limit"),
        pytest.param(4, S, 1, MEGATRONS, id="as many keys"),
        pytest.param(0, 0, 1, TRANSFORMERS, id="transformers' eager attention has no kernel"),
    ],
)
def test_who_scales_masks_and_takes_the_softmax(
    blocks: int, keys: int, apart: int, moved: ScoreOperators
) -> None:
    """Transformer Engine's kernel takes sequences x heads in fours and fewer than 16,384 keys."""
    at = where(flash_attention=False, softmax_blocks=blocks, softmax_keys=keys)
    assert softmax_apart(at, NARROW) == apart
    assert core(at, NARROW).apart == moved


def test_kernels_beside_the_softmax() -> None:
    """A cast on each side, the scale and the mask; an added mask has no backward."""
    assert (MEGATRONS.kernels, TRANSFORMERS.kernels) == ((4, 4), (4, 3))


@pytest.mark.parametrize(
    ("own_masks", "moved", "kernels"),
    [
        pytest.param("filled", (2 * 2, 2 * 2), (1, 1), id="a mask is filled in, both ways"),
        pytest.param("multiplied", (3 * 4, 2 * 4), (5, 2), id="scale, mask, penalty; mask, scale"),
    ],
)
def test_masks_of_an_engines_own(
    own_masks: str, moved: tuple[float, float], kernels: tuple[int, int]
) -> None:
    """Operators of 16 bits read and write a score each, 4 bytes, where the kernel would take all of
    them; their probabilities are kept as its are.
    """
    one = where(flash_attention=False, softmax_blocks=4)
    at = where(flash_attention=False, softmax_blocks=4, own_masks=own_masks)
    assert (softmax_apart(one, NARROW), softmax_apart(at, NARROW)) == (0, 1)
    assert (core(at, NARROW).apart.moved, core(at, NARROW).apart.kernels) == (moved, kernels)
    assert core(at, NARROW).saved_bytes == core(one, NARROW).saved_bytes
    assert softmax_apart(where(flash_attention=True, own_masks=own_masks), NARROW) == 0


def test_engines_of_transformers_modules_have_no_such_kernel() -> None:
    """Those that run on them inherit it, Megatron's old tree under DeepSpeed does not."""
    found = {
        name: load_engine(name).kernels.softmax_blocks
        for name in ("deepspeed", "accelerate", "transformers", "automodel", "deepspeed-2021")
    }
    assert found == {
        "deepspeed": 0, "accelerate": 0, "transformers": 0, "automodel": 0, "deepspeed-2021": 4,
    }  # fmt: skip
    bridge = load_engine("megatron-bridge").kernels
    assert (bridge.softmax_blocks, bridge.softmax_keys) == (4, 16384)
