"""GLM-5.3-Flash: indexers of pooled keys, streams that end in their mean, modules of one stream."""

from typing import Any

import pytest

from meshplan.costmodels.model.compression import Indexer, Streams
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters, mtp_parameters_per_rank
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.embedding_head import head_operations, module_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config

T, H = 1024, 64
INDEX = Indexer(heads=2, head_dim=8, top_k=64, block=4, pooled=True)
LATENT = Attention(
    heads=2, kv_heads=2, head_dim=16, v_head_dim=16, q_lora_rank=32, kv_lora_rank=24, indexer=INDEX
)
STREAMS = Streams(count=4, mixed=True, ends_in_mean=True)
SMALL = Model(
    name="x", hidden=H, vocab=512, kinds=(Layer(attention=LATENT, ffn=96),), pattern=(0,),
    streams=STREAMS, mtp_layers=1, plain_modules=True,
)  # fmt: skip
GLM: dict[str, Any] = load_model_config("glm-5.3-flash")


def site_of(model: Model) -> Site:
    shard = Shard(
        seq_len=T, document_len=T, tokens=T, tokens_outside=T, tp=1.0, cp=1.0, ep=1.0, etp=1.0,
        sequence_parallel=0.0,
    )  # fmt: skip
    return Site(model, shard, load_engine("generic").kernels)


def test_an_indexer_of_pooled_keys() -> None:
    """Queries 32 x 16, keys and gates 64 x 8 each, weights 64 x 2, a norm 2 x 8, a bias of 8 for
    each of 4 places; latents 64 x (32 + 24), norms of them 56, 32 x 32, 24 x 2 x 32, out 32 x 64.
    """
    index = 32 * 16 + 64 * (8 + 8 + 2) + 2 * 8 + 4 * 8
    latent = 64 * 56 + 56 + 32 * 32 + 24 * 64 + 32 * 64
    plain = Model(name="x", hidden=H, vocab=1, kinds=(Layer(attention=LATENT),), pattern=(0,))
    assert model_parameters(plain).total == index + latent + 64 + 2 * 64 + 64
    key = next(op for op in layer_operations(site_of(plain), plain.kinds[0])
               if op.name == "index_key")  # fmt: skip
    assert isinstance(key, Matmul)
    assert (key.n, key.k) == (8 + 8 + 2, 64)


def test_a_module_has_one_stream() -> None:
    """Beside a layer of one stream 2 x 64 x 64 and three norms; the projection reads two halves of
    one state, and no head has a product that weighs streams."""
    layer = Model(name="x", hidden=H, vocab=1, kinds=SMALL.kinds, pattern=(0,), final_norm=False)
    alone = model_parameters(layer).total - 2 * 64  # without embedding and head
    assert model_parameters(SMALL).mtp == alone + 2 * 64 * 64 + 3 * 64
    assert mtp_parameters_per_rank(SMALL, 1).dense == model_parameters(SMALL).mtp
    projection, *rest = module_operations(site_of(SMALL))
    assert isinstance(projection, Matmul)
    assert (projection.m, projection.k) == (T, 128)
    assert not [op.name for op in rest if "streams" in op.name]
    heads = [op.name for op in head_operations(site_of(SMALL)) if "streams" in op.name]
    assert heads == ["head_streams_sum"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index_kpool": 3}, "index_topk over index_kpool"),
        ({"q_lora_rank": 0}, "q_lora_rank is missing"),
        ({"layer_types": ["linear_attention"] * 45}, "its module has attention"),
        ({"index_kpool_compress": "mean"}, "'index_kpool_compress' is not read"),
        ({"mhc": False}, "'mhc' is not read"),
    ],
)
def test_what_is_not_priced_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        model_from_config(GLM | {"text_config": GLM["text_config"] | changes}, "x")


def test_its_streams_end_in_their_mean() -> None:
    assert model_from_config(GLM, "x").streams == STREAMS


def test_layers_that_share_a_choice_have_no_indexer() -> None:
    """11 of 45 layers have one: 1536 x 4096 + 4096 x (256 + 32) + 256 + 4 x 128 each."""
    shared = GLM["text_config"] | {"indexer_types": ["shared"] * 45, "num_nextn_predict_layers": 0}
    whole, less = (
        model_parameters(model_from_config(GLM | {"text_config": text}, "x")).without_mtp
        for text in (GLM["text_config"], shared)
    )
    assert whole - less == 11 * (1536 * 4096 + 4096 * (256 + 32) + 256 + 4 * 128)


def test_a_section_wins_over_what_stands_beside_it_too() -> None:
    """A file that transformers has written repeats the section's sizes outside it."""
    text = GLM["text_config"]
    own = {"linear_num_heads": 64, "linear_head_dim": 77, "linear_conv_kernel_dim": 4}
    stated, beside = (
        model_from_config(GLM | {"text_config": text | more}, "x") for more in ({}, own)
    )
    assert stated == beside
    outside = {k: v for k, v in text.items() if k != "linear_attn_config"}
    outside |= {"linear_num_heads": 64, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
    assert model_from_config(GLM | {"text_config": outside}, "x") == stated
