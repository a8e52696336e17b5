"""Text of models that read images or sound too: ERNIE 4.5 VL and its second experts, Phi-4
multimodal and its adapters, Phi-3-vision, DeepSeek-VL2 and DeepSeek-OCR.

That every parameter and product is counted, `test_families.py` holds against transformers' modules
(of Phi-4, which has towers there, less them).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models.families import our_flops
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config, why_no_tower
from meshplan.costmodels.model.parameters import (
    active_parameters,
    layer_parameters_per_rank,
    model_parameters,
)
from meshplan.costmodels.model.rare_parts import rare_parts

ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_vl_moe_text", "vocab_size": 128, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1,
    "moe_intermediate_size": [96, 32],
}  # fmt: skip
OF_ITS_OWN_CODE = ERNIE | {
    "model_type": "ernie4_5_moe_vl", "moe_num_experts": [8, 8], "moe_layer_start_index": [2, 1],
    "moe_layer_end_index": [1, 2], "moe_layer_interval": 1, "moe_gate": "topk", "rope_3d": True,
    "moe_use_aux_free": True, "moe_capacity": [128, 128, 128], "vision_config": {"depth": 2},
}  # fmt: skip
PHI: dict[str, Any] = {
    "model_type": "phi4mm", "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 200064,
    "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8,
    "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    "partial_rotary_factor": 0.75, "sliding_window": 262144, "tie_word_embeddings": True,
    "audio_processor": {"name": "cascades"}, "embd_layer": {"embedding_cls": "image_audio"},
    "speech_lora": {"r": 320}, "vision_lora": {"r": 256},
}  # fmt: skip
DEEPSEEK_OCR: dict[str, Any] = {
    "model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"], "use_mla": False,
    "vision_config": {"image_size": 1024}, "projector_config": {"n_embed": 1280},
    "language_config": {
        "vocab_size": 129280, "hidden_size": 1280, "intermediate_size": 6848, "lm_head": True,
        "moe_intermediate_size": 896, "num_hidden_layers": 12, "num_attention_heads": 10,
        "num_key_value_heads": 10, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_group": 1,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "topk_group": 1, "rm_head": False,
        "topk_method": "greedy", "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None,
        "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
    },
}  # fmt: skip
OF_IMAGES = 8 * (3 * 64 * 32 + 64 + 1)
"""Numbers of 8 experts of width 32, of their router, and of its corrections."""


def test_experts_of_images_are_held_and_idle() -> None:
    """Two layers have them; a token of text uses 2 of 8 experts of width 96 and none of theirs."""
    model = model_from_config(ERNIE, "e")
    held, used = model_parameters(model).total, active_parameters(model).total
    assert held - used == 2 * (6 * 3 * 64 * 96 + OF_IMAGES)
    assert "experts that tokens of images alone visit" in rare_parts(model)


def test_experts_of_images_are_cut_as_those_of_text() -> None:
    """Of 8 on 4 ranks each holds 2 of either kind; on 2 x 2 of them 4 of half the width."""
    model = model_from_config(ERNIE, "e")
    kind = model.kinds[-1]
    for ep, etp in ((4, 1), (2, 2)):
        of_rank = layer_parameters_per_rank(model, kind, 1, ep=ep, etp=etp)
        assert of_rank.expert == 2 * 3 * 64 * (96 + 32)


def test_both_kinds_of_experts_have_their_biases() -> None:
    """As two layers with experts of either width alone."""
    model = model_from_config(ERNIE, "e")
    kind = model.kinds[-1]
    assert kind.experts is not None
    biased = replace(kind.experts, bias=True)
    both, text, images = (
        layer_parameters_per_rank(model, replace(kind, experts=experts), 1, ep=4).expert
        for experts in (biased, *(replace(biased, ffn=n, of_images=0) for n in (96, 32)))
    )
    assert both == text + images


def test_files_of_ernies_own_code_list_both_experts() -> None:
    """The first of either's layers to the last; the tower is named."""
    assert model_from_config(OF_ITS_OWN_CODE, "e") == model_from_config(ERNIE, "e")
    assert left_out(OF_ITS_OWN_CODE) == ("vision tower",)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"moe_num_experts": [8, 4]}, "moe_num_experts does not list one number twice"),
        ({"moe_num_experts": None}, "moe_num_experts does not list one number twice"),
        ({"moe_intermediate_size": [96]}, "moe_intermediate_size does not list two widths"),
        ({"moe_intermediate_size": [96, 0]}, "moe_intermediate_size does not list two widths"),
        ({"moe_gate": "sinkhorn"}, "moe_gate"),
    ],
)
def test_other_experts_of_ernie_are_refused(changed: dict[str, Any], why: str) -> None:
    """By the field's name."""
    with pytest.raises(UnsupportedModel, match=why):
        model_from_config(OF_ITS_OWN_CODE | changed, "e")


def test_the_text_of_phi_4_multimodal_is_phi_4_mini() -> None:
    """32 layers of 24 heads over 8 of 128, three products of 3072 x 8192 and two norms, a tied
    table and a norm: the 3,836,021,760 of Phi-4-mini. Towers and adapters are named."""
    layer = 3072 * 128 * (24 + 8 + 8 + 24) + 3 * 3072 * 8192 + 2 * 3072
    total = 32 * layer + 200064 * 3072 + 3072
    assert total == 3_836_021_760
    assert model_parameters(model_from_config(PHI, "p")).total == total
    beside = ("vision and audio towers", "adapters for sound", "adapters for images")
    assert left_out(PHI) == beside
    assert left_out(PHI | {"speech_lora": None, "vision_lora": None}) == beside[:1]


def test_the_text_of_phi_4_multimodal_as_transformers_builds_it() -> None:
    """Its module less the 907,982,272 numbers of `embed_tokens_extend`; no FLOPs of it for text."""
    entry = json.loads(Path(__file__).with_name("family_configs.json").read_text())[
        "phi4_multimodal"
    ]
    model = model_from_config(entry["config"], "p")
    assert model_parameters(model).total == entry["parameters"] - 907_982_272
    weights, attention, _ = our_flops(model)
    assert (weights, attention) == (entry["weight_flops"], entry["other_flops"])
    assert set(left_out(entry["config"])) == {"vision tower", "audio tower"}


def test_images_of_phi_are_refused_with_what_is_missing() -> None:
    model = model_from_config(PHI, "p")
    assert why_no_tower(PHI, model).startswith("not priced: vision and audio towers, adapters")


def test_the_text_of_phi_3_vision_is_phi_3_mini() -> None:
    """3,821,079,552 parameters: 32 layers of four products of 3072 x 3072 and three of 8192."""
    fields = ("hidden_size", "intermediate_size", "num_hidden_layers")
    config = {key: PHI[key] for key in fields} | {
        "model_type": "phi3_v", "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32064, "sliding_window": 131072, "img_processor": {"num_img_tokens": 144},
        "embd_layer": {"embedding_cls": "image"},
    }  # fmt: skip
    layer = 4 * 3072**2 + 3 * 3072 * 8192 + 2 * 3072
    assert 32 * layer + 2 * 32064 * 3072 + 3072 == 3_821_079_552
    assert model_parameters(model_from_config(config, "p")).total == 3_821_079_552
    assert left_out(config) == ("vision tower",)


def test_the_text_of_deepseek_ocr() -> None:
    """12 layers of ten heads of 128, the first dense, and no latents; head and table apart."""
    expert = 3 * 1280 * 896
    layer = 4 * 1280**2 + 2 * 1280
    sparse = layer + (64 + 2) * expert + 64 * 1280
    total = 11 * sparse + layer + 3 * 1280 * 6848 + 2 * 129280 * 1280 + 1280
    model = model_from_config(DEEPSEEK_OCR, "d")
    assert model_parameters(model).total == total
    assert active_parameters(model).total == total - 11 * 58 * expert
    assert left_out(DEEPSEEK_OCR) == ("vision tower",)


def test_the_text_of_deepseek_vl2_has_latents_where_its_file_says_so() -> None:
    """The same fields as a DeepSeek-V2 of its own."""
    of_latents = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
                  "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
    text = DEEPSEEK_OCR["language_config"] | of_latents | {"lm_head": True}
    whole = DEEPSEEK_OCR | {"language_config": text | {"use_mla": True}}
    alone = {key: value for key, value in text.items() if key not in ("use_mla", "lm_head")}
    deepseek = model_from_config(alone | {"model_type": "deepseek_v2"}, "d")
    assert model_from_config(whole, "d") == deepseek


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"language_config": None}, "the section 'language_config', its language model, is"),
        ({"language_config": {"lm_head": False}}, "lm_head is not true"),
        ({"language_config": DEEPSEEK_OCR["language_config"] | {"kv_lora_rank": 8}}, "kv_lora_ra"),
    ],
)
def test_other_files_of_deepseek_vl_are_refused(changed: dict[str, Any], why: str) -> None:
    """No section, no head, latents that the file says are not there."""
    with pytest.raises(UnsupportedModel, match=why):
        model_from_config(DEEPSEEK_OCR | changed, "d")
