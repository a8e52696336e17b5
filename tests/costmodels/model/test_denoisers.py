"""Models that denoise whole sequences, each token of which attends to all: LLaDA and Dream.

Of the smaller LLaDA's fields its own class builds 124,327,616 parameters on the meta device
(a run of `num_parameters` that its user printed); Dream's are those of Qwen2.5-7B.
"""

from typing import Any

import pytest

from benchmarks.models.families import our_flops
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.hardware_profiles.load_models import load_model_config
from tests.support.sites import S, site

LLADA: dict[str, Any] = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "activation_type": "silu",
    "alibi": False, "alibi_bias_max": 8.0, "attention_dropout": 0.0, "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True, "bias_for_layer_norm": False, "block_group_size": 1,
    "block_type": "llama", "d_model": 448, "embedding_dropout": 0.0, "embedding_size": 126464,
    "flash_attention": False, "include_bias": False, "include_qkv_bias": False,
    "init_cutoff_factor": None, "init_fn": "mitchell", "input_emb_norm": False,
    "layer_norm_type": "rms", "layer_norm_with_affine": True, "mask_token_id": 126336,
    "max_sequence_length": 1024, "mlp_hidden_size": 768, "mlp_ratio": 2,
    "multi_query_attention": None, "n_heads": 7, "n_kv_heads": 7, "n_layers": 6,
    "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05, "rope": True,
    "rope_full_precision": True, "rope_theta": 10000.0, "scale_logits": False,
    "vocab_size": 126464, "weight_tying": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "parameters"),
    [
        pytest.param({}, 124_327_616, id="as its class counts"),
        pytest.param({"weight_tying": True}, 124_327_616 - 126464 * 448, id="one table"),
        pytest.param({"include_qkv_bias": True}, 124_327_616 + 6 * 3 * 448, id="biases"),
        pytest.param(
            {"n_kv_heads": None, "multi_query_attention": True},
            124_327_616 - 6 * 2 * 448 * (448 - 64),
            id="one head of keys and values, of 64",
        ),
    ],
)
def test_every_parameter_of_llada(changed: dict[str, Any], parameters: int) -> None:
    """To the last one, and nothing unexplained; no layer has a causal mask."""
    model = model_from_config(LLADA | changed, "l")
    assert model_parameters(model).total == parameters
    assert rare_parts(model) == ("attention to later tokens",)
    assert left_out(LLADA | changed) == ()


def test_one_table_is_shared_where_no_field_says() -> None:
    """As the class that LLaDA's is made from has it."""
    unsaid = {key: value for key, value in LLADA.items() if key != "weight_tying"}
    assert model_from_config(unsaid, "l").tied


def test_dream_is_qwen2_that_sees_later_tokens() -> None:
    """The same weights and products with them; each token meets all keys, not half of them."""
    qwen = load_model_config("qwen2.5-7b")
    plain, dream = (
        model_from_config(qwen | {"model_type": name}, "d") for name in ("qwen2", "Dream")
    )
    assert model_parameters(dream) == model_parameters(plain)
    assert our_flops(dream)[0] == our_flops(plain)[0]
    half = 2 * S * S // 2 * 28 * (128 + 128)  # queries, keys, heads, their two products
    for model, flops in ((plain, half), (dream, 2 * half)):
        found = layer_operations(site(model, 1, 1, sequence_parallel=True), model.kinds[0])
        assert [op.forward_flops for op in found if isinstance(op, AttentionCore)] == [flops]
    assert rare_parts(dream) == ("attention to later tokens",)
    assert rare_parts(plain) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alibi", True),
        ("rope", False),
        ("block_type", "sequential"),
        ("block_group_size", 4),
        ("layer_norm_type", "default"),
        ("include_bias", True),
        ("attention_layer_norm", True),
        ("input_emb_norm", True),
    ],
)
def test_what_no_file_of_llada_has_is_refused(field: str, value: object) -> None:
    """By the field's name: these are other layers of the code that it is made from."""
    with pytest.raises(UnsupportedModel, match=f"'{field}' is not read"):
        model_from_config(LLADA | {field: value}, "l")
