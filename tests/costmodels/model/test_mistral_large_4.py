"""Mistral Large 4: its indexers, its layers without positions, worked out by hand."""

from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters

MISTRAL_LARGE_4: dict[str, Any] = {
    "model_type": "mistral_large4_text", "hidden_size": 64, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64,
    "indexer_types": ["full", "shared", "full", "shared"],
}  # fmt: skip


def test_layers_of_mistral_large_4_that_rotate_no_keys() -> None:
    """8 numbers of each head's key come from the latent instead of 8 for all heads from the hidden
    state: 16 x 4 x 8 weights more, 64 x 8 less.
    """
    more, all_rotate = (
        model_parameters(
            model_from_config(MISTRAL_LARGE_4 | {"no_rope_layers": rotated}, "m")
        ).total
        for rotated in ([1, 1, 0, 0], [1, 1, 1, 1])
    )
    assert more - all_rotate == 2 * (16 * 4 * 8 - 64 * 8)
    by_default = model_from_config(MISTRAL_LARGE_4, "m")
    assert [by_default.kinds[kind].attention.rope_head_dim for kind in by_default.pattern] == [
        8, 8, 8, 0
    ]  # fmt: skip


def test_an_indexer_of_mistral_large_4_reads_the_hidden_state() -> None:
    """Queries of 64 x 2 x 16, a key of 64 x 16 with a norm of 2 x 16, weights of 64 x 2, a norm of
    2 x 64 and two numbers of each of 2 heads.
    """
    one, two = (
        model_parameters(model_from_config(MISTRAL_LARGE_4 | {"indexer_types": types}, "m")).total
        for types in (["full", "shared", "shared", "shared"], ["full", "shared", "full", "shared"])
    )
    assert two - one == 64 * 2 * 16 + 64 * 16 + 2 * 16 + 64 * 2 + 2 * 64 + 2 * 2


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kv_source_layers": [0, 0, 2, 3]}, "kv_source_layers"),
        ({"q_lora_rank": 16}, "q_lora_rank"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ],
)
def test_what_mistral_large_4_may_say_and_is_not_priced(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        model_from_config(MISTRAL_LARGE_4 | changed, "m")
    same = MISTRAL_LARGE_4 | {"kv_source_layers": [0, 1, 2, 3]}
    assert model_from_config(same, "m") == model_from_config(MISTRAL_LARGE_4, "m")
