"""Kimi K3: attention residuals, wide gates, experts in a normed latent width."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config

KIMI: dict[str, Any] = load_model_config("kimi-k3")


def test_the_released_tensors_to_the_last_number() -> None:
    """By the shapes that vllm-project/tpu-inference's test lists, correction biases apart, and
    decays of 96 heads where a tensor of 128 is stored.
    """
    h, wide, latent = 7168, 96 * 128, 3584
    delta = 5 * wide * h + 3 * wide * 4 + 96 + wide + 128 * (h + wide) + 96 * h + 128
    query = h * 1536 + 1536 + 1536 * 96 * 192
    heads = query + h * 576 + 512 + 512 * 96 * 256 + 2 * wide * h
    routed = 896 * 3 * 3072 * latent
    experts = 896 * h + 2 * latent * h + latent + 3 * 6144 * h + routed
    ends = 2 * 163840 * h + h + 2 * h
    total = 69 * delta + 24 * heads + 92 * experts + 3 * 33792 * h + 93 * 6 * h + ends
    model = model_from_config(KIMI, "k")
    assert model_parameters(model).total == total
    assert active_parameters(model).total == total - 92 * routed * (896 - 16) // 896


def test_which_sums_a_layer_reads() -> None:
    """The embedding is the first, read from the first layer's second half on; layers 12, 24 ... end
    a block. The head reads eight. On average 4.5 of 92 cuts' sums are sent beside the stream. All
    layers together read as many as by their places; those of a kind the mean of theirs.
    """
    model = model_from_config(KIMI, "k")
    sums = [model.kinds[kind].sums for kind in model.pattern]
    before = [0, *(at // 12 + (at % 12 > 0) for at in range(1, 93))]
    after = [at // 12 + 1 for at in range(93)]
    assert len(model.kinds) == 4
    assert (sums[0], sums[92]) == ((0, 1), (8, 8, 8))
    assert sum(each[0] for each in sums) == pytest.approx(sum(before))
    assert sum(each[1] for each in sums) == pytest.approx(sum(after))
    attending = [at for at in range(92) if at % 4 == 3]
    assert sums[3][1] == pytest.approx(sum(after[at] for at in attending) / len(attending))
    cuts = 12 * sum(range(1, 8)) + 8 * 8
    assert model.sent_width == pytest.approx(7168 * (1 + cuts / 92))


def test_a_mean_of_sums() -> None:
    """Of 3 states: 4 passes forward, 10 backward, one of them kept, 4 x 3 x 64 FLOPs a token; a
    half that reads none has no such operation, and the head has one after the last layer."""
    at = Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16)
    kind = Layer(attention=at, ffn=96, sums=(0, 2))
    model = Model(name="x", hidden=64, vocab=1, kinds=(kind,), pattern=(0,))
    shard = Shard(
        seq_len=128, document_len=128, tokens=128, tokens_outside=64, tp=2.0, cp=1.0, ep=1.0,
        etp=1.0, sequence_parallel=1.0,
    )  # fmt: skip
    site = Site(model, shard, load_engine("generic").kernels)
    (found,) = (op for op in layer_operations(site, kind) if op.name.endswith("_sums"))
    assert isinstance(found, Pointwise)
    one = 2 * 64 * 64
    assert found.name == "feed_forward_sums"
    assert (found.forward_bytes, found.backward_bytes) == (4 * one, 10 * one)
    assert (found.saved_bytes, found.forward_flops) == (one, 4 * 3 * 64 * 64)
    last = layer_operations(site, replace(kind, sums=(0, 2, 2)))
    assert [op.name for op in last if op.name.endswith("_sums")] == [found.name, "head_sums"]


def test_another_family_does_not_read_its_blocks() -> None:
    text = {**KIMI["text_config"], "model_type": "deepseek_v3"}
    with pytest.raises(UnsupportedModel, match="is not read"):
        model_from_config(KIMI | {"text_config": text}, "k")


def test_its_parts_are_named_where_a_framework_has_them_not() -> None:
    parts = rare_parts(model_from_config(KIMI, "k"))
    assert "attention to the sums of earlier layers" in parts
    assert "experts in a latent width" in parts


def test_what_pipeline_ranks_hold_of_earlier_sums_is_said_not_to_be_priced() -> None:
    (held,) = left_out(KIMI)
    assert held == "memory of earlier layers' sums that a pipeline rank holds beyond its own"
    assert not any("sums" in part for part in left_out(load_model_config("kimi-k2.5")))
