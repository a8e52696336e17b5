"""The language model's part of a multimodal configuration, and whether its head is tied.

Either part of a file may say `tie_word_embeddings`. The whole one decides where it says anything;
where it does not, transformers 5 takes what the class of the whole means by that (`TIED`,
`UNTIED`), and transformers 4 took the text part's own (4.57 `modeling_utils.py`, `tie_weights`): by
the file's `transformers_version`. A file without one whose two readings differ is refused.

Source: the configuration classes in huggingface/transformers 5.24, which a test compares with these
lists; types in neither say nothing of their own.
"""

import re
from collections.abc import Mapping

from meshplan.costmodels.model.config_fields import Fields, names
from meshplan.costmodels.model.families import FAMILIES

TIED = names("""
    aya_vision cohere2_vision deepseek_vl deepseek_vl_hybrid diffusion_gemma ernie4_5_vl_moe
    fun_asr_nano gemma3 gemma3n gemma4 gemma4_unified glmasr got_ocr2 granite_docling granite_speech
    granite_speech_plus hunyuan_vl hyperclovax_vision_v2 internvl janus kimi_k25 lfm2_vl lfm3_vl
    lighton_ocr minicpm_ocr mistral3 moss_transcribe_diarize ovis2 paddleocr_vl paligemma
    pp_chart2table qwen3_asr voxtral_realtime
""")
UNTIED = names("""
    apertus1p5 aria cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr2 dots3_note emu3
    exaone4_5 fast_vlm fuyu glm46v glm4v glm4v_moe glm5_next glm_image glm_ocr glmga granite4_vision
    hy_v4_vl idefics2 idefics3 llama4 llava llava_next llava_next_video llava_onevision minicpmv4_6
    minicpmv4_7 minimax_m3_vl mistral_large4 molmo2 qianfan_ocr qwen2_5_omni_thinker qwen2_5_vl
    qwen2_vl qwen3_5 qwen3_5_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen4_exp shieldgemma2
    smolvlm unlimited_ocr video_llama_3 video_llava vipllava
""")
TIED_BY_EITHER = names("""
    glm4v glm4v_moe llava minimax_m3_vl qwen2_5_vl qwen2_vl shieldgemma2
""")
"""Whose head is tied where either part says so: the text part is a module with a head itself."""
TIED_BY_TEXT = names("llama4")
"""Whose head is the text part's own, and tied by its flag alone."""


THINKER = "thinker_config"
BOTH_WAYS = "use_bidirectional_attention"
LLM = "llm_config"
WITH_LLM = names("""
    internvl_chat ovis ovis2_5 NemotronH_Nano_VL_V2 NemotronH_Nano_Omni_Reasoning_V3
    NemotronH_Omni_Reasoning_V3 Llama_Nemotron_Nano_VL
""")
"""Types whose language model is the section `llm_config`."""
TIED_BY_WHOLE = ("internvl_chat",)
"""Whose head is tied where the whole says so (OpenGVLab/InternVL
internvl_chat/internvl/model/internvl_chat/configuration_internvl_chat.py); of the others of
`WITH_LLM` the section decides, of which the language model is made (AIDC-AI/Ovis
ovis/model/modeling_ovis.py, vllm-project/vllm nano_nemotron_vl.py and nemotron_vl.py)."""

LLAVA = {
    "llava": "llama", "llava_llama": "llama", "llava_mistral": "mistral",
    "llava_mixtral": "mixtral", "llava_qwen": "qwen2",
}  # fmt: skip
"""Types of LLaVA's own code, and of their language models (haotian-liu/LLaVA
llava/model/language_model, LLaVA-VL/LLaVA-NEXT llava/model/language_model)."""
DEEPSEEK_VL = "deepseek_vl_v2"
"""DeepSeek-VL2's and DeepSeek-OCR's files, whose section `language_config` is a DeepSeek-V2, with
latent attention or without (deepseek-ai/DeepSeek-OCR modeling_deepseekv2.py, `use_mla`)."""
OF_LATENTS = names("kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim")
NO_LATENTS = "deepseek_ocr2_text"
ERNIE_VL = "ernie4_5_moe_vl"
"""ERNIE 4.5 VL's files of its own code: where a field lists text's and images', both agree or the
layers of either count (huggingface/transformers
src/transformers/models/ernie4_5_vl_moe/convert_ernie4_5_vl_moe_to_hf.py)."""
BESIDE_TEXT = {
    "phi3_v": {"img_processor": "vision tower"},
    "phi4mm": {
        "embd_layer": "vision and audio towers",
        "speech_lora": "adapters for sound", "vision_lora": "adapters for images",
    },
}  # fmt: skip
"""Fields of flat files that hold what text alone does not pass, and what that is. Phi-4 multimodal
turns the adapters off where there is no image and no sound (microsoft/Phi-4-multimodal-instruct
modeling_phi4mm.py, `input_mode`)."""
OF_IMAGES = re.compile(r"(^|_)(mm|image|vision|video|frames|faster)(_|$)|^tokenizer_")


def thinker(outer: Fields) -> Fields:
    """Of a model that speaks too (Qwen-Omni) the part that reads and answers, which has its own
    text and towers; any other configuration as it is.
    """
    part = outer.section(THINKER)
    if part is None:
        return outer
    named = {"model_type": f"{outer.config.get('model_type')}_thinker", **part.config}
    version = outer.config.get("transformers_version")
    told = {} if version is None else {"transformers_version": version}
    return Fields(told | named, outer.name)


def text_part(outer: Fields) -> Fields:
    """The language model of a multimodal configuration; a flat one is returned as it is."""
    if str(outer.config.get("model_type")) in WITH_LLM:
        return _of_llm_config(outer)
    if outer.config.get("model_type") == ERNIE_VL:
        return _of_ernie(outer)
    if outer.config.get("model_type") == DEEPSEEK_VL:
        return _of_deepseek(outer)
    text = outer.section("text_config")
    if text is None:
        return _beside_images(outer) if has_flat_tower(outer.config) else outer
    given = {key: value for key, value in text.config.items() if value is not None}
    if sees_its_prompt(outer.config):
        given.pop(BOTH_WAYS, None)
    tied = _tied(outer, given)
    told = {} if tied is None else {"tie_word_embeddings": tied}
    return Fields({"model_type": outer.config.get("model_type"), **given, **told}, outer.name)


def has_text_section(config: Mapping[str, object]) -> bool:
    """Whether the language model is a section of its own, beside which others are towers."""
    return "text_config" in config or str(config.get("model_type")) in WITH_LLM


def sees_its_prompt(config: Mapping[str, object]) -> bool:
    """Whether a prompt's tokens attend to its later ones: PaliGemma's do unless its text part says
    no (transformers 5.24 `configuration_paligemma.py`; answers attend to earlier tokens alone).
    """
    text = config.get("text_config")
    said = text.get(BOTH_WAYS) if isinstance(text, Mapping) else None
    return config.get("model_type") == "paligemma" and said is not False


def has_flat_tower(config: Mapping[str, object]) -> bool:
    """Whether fields of images stand beside those of the text, as LLaVA's own code writes them."""
    return str(config.get("model_type")) in LLAVA and "mm_vision_tower" in config


def _beside_images(outer: Fields) -> Fields:
    """The language model of LLaVA's own files, without their fields of images."""
    text = {key: value for key, value in outer.config.items() if not OF_IMAGES.search(str(key))}
    return Fields(text | {"model_type": LLAVA[str(outer.config["model_type"])]}, outer.name)


def beside_text(config: Mapping[str, object]) -> tuple[str, ...]:
    """What a flat file holds beside its language model, in words."""
    known = BESIDE_TEXT.get(str(config.get("model_type")), {})
    return tuple(words for field, words in known.items() if config.get(field))


def _of_ernie(outer: Fields) -> Fields:
    """The language model of ERNIE 4.5 VL's own files, as transformers' converter reads them."""
    number = set(outer.counts("moe_num_experts") or ())
    if len(number) != 1:
        raise outer.refuse("moe_num_experts does not list one number twice, for text and images")
    told = {"moe_num_experts": number.pop(), "model_type": "ernie4_5_vl_moe_text"}
    for field, of_either in (("moe_layer_start_index", min), ("moe_layer_end_index", max)):
        layers = outer.counts(field)
        if layers:
            told[field] = of_either(layers)
    return outer.changed(told)


def _of_deepseek(outer: Fields) -> Fields:
    """The language model of DeepSeek-VL2's files: without latents their fields are 0 or null."""
    text = outer.section("language_config")
    if text is None:
        raise outer.refuse("the section 'language_config', its language model, is missing")
    latent = text.flag("use_mla", True)
    given = {
        key: value for key, value in text.config.items()
        if latent or value or key not in OF_LATENTS
    }  # fmt: skip
    if given.pop("lm_head", True) is not True:
        raise outer.refuse("language_config.lm_head is not true: a model without a head")
    given.pop("use_mla", None)
    return Fields(given | {"model_type": "deepseek_v2" if latent else NO_LATENTS}, outer.name)


def _of_llm_config(outer: Fields) -> Fields:
    """The language model that is a section of its own in files of code beside the weights."""
    text = outer.section(LLM)
    if text is None:
        raise outer.refuse(f"the section {LLM!r}, its language model, is missing")
    by_whole = outer.config["model_type"] in TIED_BY_WHOLE
    told = {"tie_word_embeddings": outer.flag("tie_word_embeddings", False)} if by_whole else {}
    return Fields({**text.config, **told}, outer.name)


def _tied(outer: Fields, given: Mapping[str, object]) -> object:
    """What `tie_word_embeddings` of the text part is; None: what it says or means itself."""
    whole = str(outer.config.get("model_type"))
    said = outer.config.get("tie_word_embeddings")
    if whole in TIED_BY_EITHER:
        return True if said is True else None
    if whole in TIED_BY_TEXT:
        return None
    if said is not None or whole not in TIED | UNTIED:
        return said
    by_class, by_text = whole in TIED, _by_text(outer, given)
    version = _major_version(outer, given)
    if by_class == by_text or version is not None:
        return by_text if version is not None and version < 5 else by_class
    raise outer.refuse(
        f"the whole file does not state tie_word_embeddings: as {whole} of transformers 5 it is "
        f"{str(by_class).lower()}, by its text part {str(by_text).lower()}; state it"
    )


def _by_text(outer: Fields, given: Mapping[str, object]) -> bool:
    family = FAMILIES.get(str(given.get("model_type", outer.config.get("model_type"))))
    return Fields(given, outer.name).flag("tie_word_embeddings", bool(family and family.tied))


def _major_version(outer: Fields, given: Mapping[str, object]) -> int | None:
    """Of the transformers that wrote the file, None where it does not say."""
    for part in (outer.config, given):
        first = str(part.get("transformers_version", "")).partition(".")[0]
        if first.isdecimal():
            return int(first)
    return None
