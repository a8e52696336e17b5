"""A Hugging Face `config.json` as a `Model` (`families`), and a refusal for what is not read.

A model file (`traced`) is read in its place wherever a configuration is.

The fields, their names and what an absent one means are those of the families' configuration
classes in huggingface/transformers 5 (`models/<model_type>/configuration_<model_type>.py`); where
the shapes of the weights do not follow from the configuration, those of the `modeling_` file.

What changes neither the sizes nor the time of training noticeably (rotary frequencies, logit
soft-capping, activation kinds) is in `numerics`. Leaves out: the towers of multimodal models, see
`left_out`, but for a vision or audio tower that is read (`towers`).
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields, UnsupportedModel, shown
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.family import read_family
from meshplan.costmodels.model.numerics import numerics_of
from meshplan.costmodels.model.text_parts import (
    THINKER,
    beside_text,
    has_flat_tower,
    has_text_section,
    sees_its_prompt,
    text_part,
    thinker,
)
from meshplan.costmodels.model.towers.vision import tower_of
from meshplan.costmodels.model.traced import TRACE_KEY, left_out_of_trace, model_from_trace
from meshplan.costmodels.model.transformer import Model, Tower
from meshplan.costmodels.model.unread_fields import refuse_unread, unknown_fields

NOT_PRICED = {
    "an encoder-decoder": (
        *("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "t5gemma", "marian", "mvp"),
        *("plbart", "prophetnet", "blenderbot", "blenderbot-small", "bigbird_pegasus", "trocr"),
        *("musicgen", "musicgen_melody", "moshi", "florence2", "t5gemma2", "udop", "pix2struct"),
    ),
    "an encoder": (
        *("bert", "roberta", "deberta", "deberta-v2", "modernbert", "distilbert", "electra"),
        *("camembert", "xlm-roberta", "big_bird", "megatron-bert", "rembert", "roformer", "xlnet"),
        *("bert-generation", "data2vec-text", "ernie", "roberta-prelayernorm", "roc_bert", "xlm"),
        *("xlm-roberta-xl", "xmod", "albert", "nomic_bert", "eurobert", "mpnet", "longformer"),
        *("gte", "new", "jina_embeddings_v3", "esm", "esmc", "mobilebert", "funnel", "ultrabert"),
    ),
    "one block of weights is used by several layers": (
        *("zamba", "zamba2", "hrm_text", "dory", "inkling2_loop_text", "megrez_moe"),
    ),
    "its layers run several times over for each token": ("ouro",),
    "its later layers read the keys, values and states of one earlier layer": ("phi4flash",),
    "attention and a state side by side, keys that layers share, and tokens of its own": ("hymba",),
    "its layers read keys that an earlier one compressed, and some embeddings of n-grams": (
        "deepseek_v41",
        "deepseek_v41_text",
    ),
    "differential attention, two softmaxes for each head,": ("diffllama", "motif", "Motif"),
    "layers that attend to an image": ("mllama_text_model", "git", "idefics", "evolla"),
    "its attention has routed experts": ("jetmoe",),
    "its layers attend to the sums of earlier ones": ("inkling2_text",),
    "its attention has convolutions and learnt relative positions": ("zaya",),
    "its embedding adds those of n-grams of tokens": ("longcat_flash_ngram",),
    "a norm that reads the time of a sound": ("voxtral_realtime_text",),
    "it denoises blocks of tokens, or tokens by experts; LLaDA and Dream are read": (
        *("diffusion_gemma_text", "llada_moe", "sdar", "sdar_moe", "llada2_moe"),
        *("llada2_moe_veomni",),
    ),
    "a mixer of its own generation; RWKV-4 and RWKV-7 are read": ("rwkv5", "rwkv6", "rwkv6_qwen2"),
    "a dense feed-forward beside the experts of each layer": ("arctic", "Grok1ForCausalLM"),
    "block-sparse attention": ("phi3small",),
    "its fields are those of DeepSeek's own inference; the model's config.json says deepseek_v4": (
        "deepseek_ref",
    ),
    "its version says which language model it holds; price that one's config.json": (
        *("minicpmv", "minicpmo"),
    ),
    "it attends to reference tokens beside a window": ("unlimited_ocr_text",),
    "its layers read patches of bytes": ("blt",),
    "hashed attention and reversible layers": ("reformer",),
    "an encoder's layers as a decoder, or prompts of its own": ("modernbert-decoder", "cpmant"),
    "it drafts for another model": ("gemma4_assistant", "gemma4_unified_assistant"),
}
TOWER_SECTIONS = ("vision_config", "audio_config")
NO_TOWERS = (
    "text_config", "llm_config", "quantization_config", "generation_config", "compression_config",
    "img_token_compression_config",
)  # fmt: skip


def model_from_config(config: object, name: str) -> Model:
    """The model that a `config.json`, already parsed, describes.

    Raises `UnsupportedModel` with one line for a family or a feature that is not priced, and for a
    field that is missing, of the wrong type or out of range.
    """
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{name}: a config.json holds an object, not {_kind_of(config)}")
    if TRACE_KEY in config:
        return model_from_trace(config, name)
    outer = thinker(Fields(config, name))
    if outer.flag("is_encoder_decoder", False):
        raise outer.refuse("an encoder-decoder is not priced; decoder-only models are")
    fields, model_type = _typed(outer)
    model = read_family(FAMILIES[model_type], fields)
    numerics = numerics_of(fields)
    refuse_unread(fields, model_type)
    return replace(model, numerics=numerics, tower=_tower(outer, model.hidden)[0])


def _tower(outer: Fields, hidden: int) -> tuple[Tower | None, str]:
    """The tower; where it is not read, None and why: the text may be trained without it."""
    try:
        return tower_of(outer, hidden), ""
    except UnsupportedModel as error:
        return None, str(error).removeprefix(f"{outer.name}: ")


def why_no_tower(config: Mapping[str, object], model: Model) -> str:
    """Why images cannot be priced with this configuration: "" where it has a tower that is read."""
    tower, why = _tower(thinker(Fields(config, "")), model.hidden)
    beside = ", ".join(beside_text(config))
    why = why or (f"not priced: {beside}" if beside else "")
    return "" if tower else why or "its configuration has no vision or audio tower"


def _typed(outer: Fields) -> tuple[Fields, str]:
    """The language model's part of a configuration, and its family."""
    whole = outer.config.get("model_type")
    if whole == "git" and outer.config.get("architectures") == ["Grok1ForCausalLM"]:
        whole = "Grok1ForCausalLM"  # Grok-2's file has another model's type
    if isinstance(whole, str) and any(whole in types for types in NOT_PRICED.values()):
        raise outer.refuse(_why_not(whole))
    fields = text_part(outer)
    model_type = fields.config.get("model_type")
    if not isinstance(model_type, str):
        raise outer.refuse("the field 'model_type' is missing; it says which family this is")
    if model_type not in FAMILIES:
        raise outer.refuse(_why_not(model_type))
    return fields, model_type


def left_out(config: Mapping[str, object]) -> tuple[str, ...]:
    """What the configuration holds that the `Model` does not, in words for a warning."""
    if TRACE_KEY in config:
        return left_out_of_trace(config)
    outer = thinker(Fields(config, ""))
    parts = [
        f"{key.removesuffix('_config')[:40]} tower"
        for key, part in outer.config.items()
        if isinstance(part, dict) and _is_tower(key, beside_text=has_text_section(outer.config))
    ]
    if has_flat_tower(config):
        parts.append("vision tower")
    parts += beside_text(config)
    if THINKER in config:
        parts.append("part that speaks")
    if sees_its_prompt(config):
        parts.append("attention of a prompt to its later tokens")
    fields, model_type = _typed(outer)
    model = read_family(FAMILIES[model_type], fields)
    tower = _tower(outer, model.hidden)[0]
    if tower and tower.words not in parts:
        parts.append(tower.words)  # of fields beside the text part's (Fuyu)
    if any(kind.sums for kind in model.kinds):  # costmodels.operations.attention_residuals
        parts.append("memory of earlier layers' sums that a pipeline rank holds beyond its own")
    numerics_of(fields)
    unread = (
        f"field {key}, which is not understood," for key in unknown_fields(fields, model_type)
    )
    return (*parts, *_quantization(config), *_other_class(outer, fields, model), *unread)


_OF_CLASS = re.compile(r"(?:For[A-Z].*|LMHeadModel|Model|LM)$")
"""What transformers adds to a family's name in the names of its classes."""
_CLASSES = {"nemotron-nas": "decilm", "llada": "lladamodel"}
"""Families whose class has another name than their `model_type`, in published files."""


def _other_class(outer: Fields, fields: Fields, model: Model) -> Iterator[str]:
    """A class of `architectures` by whose name the file is another family's, or code of its own:
    `model_type` decides, as in transformers. None where that family reads the same model.
    """
    listed = outer.config.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else None
    types = [str(each.config.get("model_type")) for each in (outer, fields)]
    if not isinstance(named, str) or _is_of(named, *types, *(_CLASSES.get(t) for t in types)):
        return
    for family in (family for key, family in FAMILIES.items() if _is_of(named, key)):
        with suppress(UnsupportedModel):
            if read_family(family, fields) == model:
                return
    yield f"class {shown(named)} of architectures, which model_type {shown(types[-1])} has not,"


def _is_of(named: str, *types: str | None) -> bool:
    """Whether a class is called as one of these types, in whatever order of its parts."""
    own = _letters(_OF_CLASS.sub("", named))
    known = [_letters(each) for each in types if each is not None]
    return any(each.startswith(own) or sorted(own) == sorted(each) for each in known)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _is_tower(key: object, *, beside_text: bool) -> bool:
    """Whether a section describes another module: one of the known ones, or any beside a text
    part.
    """
    named = isinstance(key, str) and key.endswith("_config")
    return key in TOWER_SECTIONS or (named and beside_text and key not in NO_TOWERS)


QUANTIZATION = "quantization of the checkpoint"


def _quantization(config: Mapping[str, object]) -> Iterator[str]:
    """How the weights of a checkpoint are stored says nothing of how they are trained."""
    stored = config.get("quantization_config")
    if isinstance(stored, Mapping) and stored:
        yield f"{QUANTIZATION} ({stored.get('quant_method', 'unnamed')})"


def _why_not(model_type: str) -> str:
    for reason, types in NOT_PRICED.items():
        if model_type in types:
            return f"model_type {model_type!r} is not priced: {reason}"
    shown = model_type if len(model_type) <= 40 else model_type[:37] + "..."
    close = difflib.get_close_matches(model_type[:40], FAMILIES, n=3)
    like = f" (close names: {', '.join(close)})" if close else ""
    known = (
        f"docs/models.md lists the {len(FAMILIES)} that are, and `meshplan models CONFIG --trace` "
        "makes a model file of any other decoder that transformers knows"
    )
    return f"model_type {shown!r} is not priced{like}; {known}"


def _kind_of(value: object) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a single value")
