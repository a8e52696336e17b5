"""Inkling: convolutions in and after a layer's halves, biases by distance, shared experts that the
router scores.
"""

from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import layer_parameters_per_rank, model_parameters
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine

T, H = 1024, 64
PLAIN = Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16)
OWN = Attention(
    heads=4, kv_heads=2, head_dim=16, v_head_dim=16, convolution=3, relative_rank=8,
    relative_extent=32,
)  # fmt: skip
RELEASED: dict[str, Any] = {
    "model_type": "inkling_mm_model",
    "mtp_config": {"num_nextn_predict_layers": 8},
    "text_config": {
        "hidden_size": 256, "num_hidden_layers": 6, "vocab_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4, "swa_head_dim": 64, "local_layer_ids": [0, 1, 3],
        "dense_mlp_idx": 2, "dense_intermediate_size": 1024, "intermediate_size": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "use_sconv": True, "q_bias": False,
    },
}  # fmt: skip


def layers_of(attention: Attention, **parts: Any) -> tuple[Model, Layer]:
    kind = Layer(attention=attention, ffn=96, **parts)
    return Model(name="x", hidden=H, vocab=1, kinds=(kind,), pattern=(0,)), kind


def operations(model: Model, tp: float = 1.0) -> dict[str, Any]:
    shard = Shard(
        seq_len=T, document_len=T, tokens=T, tokens_outside=T / tp, tp=tp, cp=1.0, ep=1.0, etp=1.0,
        sequence_parallel=float(tp > 1),
    )  # fmt: skip
    site = Site(model, shard, load_engine("generic").kernels)
    return {op.name: op for op in layer_operations(site, model.kinds[0])}


def test_weights_of_a_layer() -> None:
    """3 for each of 2 x 32 channels of keys and values, 64 x 4 x 8 and 8 x 32 of the biases, 5 for
    each of 64 channels after both halves; of 2 ranks each has the table and the outputs' whole.
    """
    (plain, bare), (own, kind) = layers_of(PLAIN), layers_of(OWN, output_convolution=5)
    more = model_parameters(own).total - model_parameters(plain).total
    assert more == 3 * 64 + 64 * 4 * 8 + 8 * 32 + 2 * 5 * 64
    cut = layer_parameters_per_rank(own, kind, 2).dense
    cut -= layer_parameters_per_rank(plain, bare, 2).dense
    assert cut == 3 * 64 / 2 + 64 * 4 * 8 / 2 + 8 * 32 + 2 * 5 * 64


def test_operations_of_a_layer() -> None:
    """Biases of 32 distances for each of 4 heads, 2 x 8 FLOPs each, in place of a rotation; what a
    convolution reads is kept, after a half over the tokens of this rank alone; backward it reads
    that and twice the gradient, of its input's and its weights', and writes one."""
    of_plain, of_own = (
        operations(layers_of(OWN, output_convolution=5)[0] if own else layers_of(PLAIN)[0], 2.0)
        for own in (False, True)
    )
    assert "rotary" in of_plain
    assert "rotary" not in of_own
    bias = of_own["relative_bias"]
    assert isinstance(bias, Matmul)
    assert bias.forward_flops == 2 * 8 * 32 * (T * 4 / 2)
    assert bias.saved_bytes == 2 * 32 * (T * 4 / 2)
    for name, size in (
        ("key_convolution", 2 * T * 64 / 2),
        ("attention_convolution", 2 * T / 2 * 64),
        ("feed_forward_convolution", 2 * T / 2 * 64),
    ):
        made = of_own[name]
        assert isinstance(made, Pointwise)
        moved = (made.forward_bytes, made.backward_bytes, made.saved_bytes)
        assert moved == (2 * size, 4 * size, size)
    scores = of_own["biased_scores"]
    assert isinstance(scores, Pointwise)
    assert (scores.forward_bytes, scores.backward_bytes) == (bias.saved_bytes, 2 * bias.saved_bytes)
    unread = ["unread" in found["feed_forward_output"].modules for found in (of_plain, of_own)]
    assert unread == [True, False]


def test_a_router_that_scores_shared_experts() -> None:
    """8 routed and 2 shared: 10 rows of 64."""
    experts = Experts(experts=8, top_k=2, ffn=32, shared_ffn=64, scored_shared=2)
    kind = Layer(attention=PLAIN, experts=experts)
    model = Model(name="x", hidden=H, vocab=1, kinds=(kind,), pattern=(0,))
    assert model_parameters(model).router == 10 * 64
    assert operations(model)["router"].n == 10


def test_a_released_file_means_an_experts_width_by_its_intermediate_size() -> None:
    """Windows in layers 0, 1 and 3, with 4 key heads and biases of the window's 512 tokens; two
    dense layers of 1,024, then experts of 128 beside two shared ones."""
    model = model_from_config(RELEASED, "x")
    layers = [model.kinds[kind] for kind in model.pattern]
    assert [layer.attention.window for layer in layers] == [512, 512, None, 512, None, None]
    assert [layer.attention.kv_heads for layer in layers] == [4, 4, 2, 4, 2, 2]
    assert [layer.attention.relative_extent for layer in layers] == [
        512,
        512,
        1024,
        512,
        1024,
        1024,
    ]
    assert [layer.ffn for layer in layers] == [1024, 1024, 0, 0, 0, 0]
    assert layers[-1].experts == Experts(
        experts=8, top_k=2, ffn=128, shared_ffn=256, scored_shared=2
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_sconv": False}, "'use_sconv' is not read"),
        ({"use_embed_norm": False}, "'use_embed_norm' is not read"),
        ({"tie_word_embeddings": True}, "the head of this family is not tied"),
    ],
)
def test_a_file_without_what_the_family_always_has_is_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        model_from_config(RELEASED | {"text_config": RELEASED["text_config"] | changes}, "x")


def test_modules_that_its_code_does_not_have_are_refused() -> None:
    """Files that transformers wrote state them in the text part."""
    text = RELEASED["text_config"] | {"num_mtp_layers": 8}
    with pytest.raises(UnsupportedModel, match="'num_mtp_layers' is not read"):
        model_from_config(RELEASED | {"text_config": text}, "x")
