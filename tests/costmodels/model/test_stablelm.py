"""StableLM 2 12B: a norm with weights of its own for each head of queries and keys."""

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters

CONFIG = {
    "model_type": "stablelm", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 13824,
    "vocab_size": 100352, "tie_word_embeddings": False, "use_parallel_residual": True,
    "use_qkv_bias": False, "qk_layernorm": True,
}  # fmt: skip
"""As StabilityAI's model card has the sizes (stablelm-2-12b)."""


def test_norms_of_each_head_are_counted() -> None:
    """A layer: attention 2 x 5120^2 + 2 x 5120 x 1280, gated feed-forward 3 x 5120 x 13824, one
    norm of two rows, and (32 + 8) heads of 160 (transformers, StableLmLayerNormPerHead, no biases).
    """
    layer = 2 * 5120**2 + 2 * 5120 * 1280 + 3 * 5120 * 13824 + 2 * 5120 + (32 + 8) * 160
    expected = 40 * layer + 2 * 100352 * 5120 + 2 * 5120
    assert model_parameters(model_from_config(CONFIG, "stablelm-2-12b")).total == expected
    plain = model_from_config({**CONFIG, "qk_layernorm": False}, "plain")
    assert expected - model_parameters(plain).total == 40 * (32 + 8) * 160
