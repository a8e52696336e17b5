"""Reading a multimodal config.json: which of its two parts says what of the text model."""

from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.load_models import load_model_config, model_names

CONFIGS = {name: load_model_config(name) for name in model_names()}


def model(name: str, **changes: Any) -> Model:
    return model_from_config(CONFIGS[name] | changes, name)


def test_text_part_of_a_multimodal_configuration() -> None:
    """The language model is read from `text_config`; the tower is named as left out."""
    text = {key: CONFIGS["gemma-3-4b"][key] for key in ("hidden_size", "num_hidden_layers")}
    text |= {"intermediate_size": 10240, "sliding_window": 1024, "model_type": "gemma3_text"}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    assert model_from_config(config, "gemma-3-4b") == model("gemma-3-4b")
    assert left_out(config) == ("vision tower",)
    assert left_out(CONFIGS["gemma-3-4b"]) == ()


def test_a_quantized_checkpoint_is_named() -> None:
    """A checkpoint that is stored in four bits is trained in the precision that is asked for."""
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    config = {**CONFIGS["gemma-3-4b"], "quantization_config": stored}
    assert left_out(config) == ("quantization of the checkpoint (bitsandbytes)",)


def test_outer_tie_reaches_the_text_part() -> None:
    """`tie_word_embeddings` beside `text_config` counts, unless the inner one says otherwise."""
    text = CONFIGS["llama-3.1-8b"] | {"tie_word_embeddings": None}
    config = {"model_type": "llava", "text_config": text, "tie_word_embeddings": True}
    assert model_from_config(config, "x").tied


SMALL_TEXT = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "text", "fields", "tied"),
    [
        pytest.param("mistral3", "mistral", {"transformers_version": "5.2.0"}, True,
                     id="Mistral 3 of transformers 5: the whole's class ties"),
        pytest.param("mistral3", "mistral", {"transformers_version": "4.50.0.dev0"}, False,
                     id="of transformers 4, as Mistral Small 3.1's: the text's does not"),
        pytest.param("internvl", "qwen2", {"tie_word_embeddings": False}, False, id="it says so"),
        pytest.param("qwen3_vl", "qwen3_vl_text", {"transformers_version": "5.2.0"}, False,
                     id="Qwen3-VL of transformers 5: the whole's class does not tie"),
        pytest.param("gemma3", "gemma3_text", {}, True, id="Gemma 3: both tie"),
        pytest.param("shieldgemma2", "gemma3_text", {"tie_word_embeddings": False}, True,
                     id="its text part is a module with a head of its own"),
    ],
)  # fmt: skip
def test_which_part_says_whether_the_head_is_tied(
    whole: str, text: str, fields: dict[str, Any], tied: bool
) -> None:
    """The whole part where it says so, else its class or the text's, by release."""
    config = {"model_type": whole, "text_config": {"model_type": text, **SMALL_TEXT}, **fields}
    assert model_from_config(config, "x").tied == tied


@pytest.mark.parametrize("kind", [[], {}, 3])
def test_a_type_of_the_whole_that_is_no_name_is_refused(kind: Any) -> None:
    """With its value, and no traceback."""
    config = {"model_type": kind, "text_config": {"model_type": "mistral", **SMALL_TEXT}}
    model_from_config(config, "x")
    with pytest.raises(UnsupportedModel, match="model_type"):
        model_from_config({"model_type": kind, "text_config": SMALL_TEXT}, "x")


def test_the_release_that_wrote_the_whole_file_counts() -> None:
    """Of a text part that another release wrote, and of a thinker, which states none itself."""
    text = {"model_type": "qwen3_vl_text", "tie_word_embeddings": True, **SMALL_TEXT}
    whole = {"model_type": "qwen3_vl", "transformers_version": "5.0.0"}
    config = whole | {"text_config": text | {"transformers_version": "4.57.0"}}
    assert not model_from_config(config, "x").tied
    text |= {"model_type": "qwen2_5_omni_text"}
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": text}
    config = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    tied = [
        model_from_config(config | {"transformers_version": version}, "x").tied
        for version in ("4.57.0", "5.0.0")
    ]
    assert tied == [True, False]


def test_what_a_text_part_says_counts_in_files_of_transformers_4() -> None:
    """Qwen3-VL-2B's whole part is silent where its text part ties; a whole of 5 is not tied."""
    text = {"model_type": "qwen3_vl_text", "tie_word_embeddings": True, **SMALL_TEXT}
    config = {"model_type": "qwen3_vl", "text_config": text}
    tied = [
        model_from_config(config | {"transformers_version": version}, "x").tied
        for version in ("4.57.0", "5.0.0")
    ]
    assert tied == [True, False]


@pytest.mark.parametrize(("whole", "text"), [("internvl", "qwen2"), ("mistral3", "mistral")])
def test_a_tie_that_is_read_in_two_ways_is_refused(whole: str, text: str) -> None:
    """The table of 2 x 512 x 64 numbers is there or not; no version says which."""
    config = {"model_type": whole, "text_config": {"model_type": text, **SMALL_TEXT}}
    with pytest.raises(UnsupportedModel, match=r"not state tie_word_embeddings.*state it"):
        model_from_config(config, "x")


@pytest.mark.parametrize("whole", [None, False, True])
@pytest.mark.parametrize("text", [None, False, True])
def test_the_head_of_llama_4_is_tied_by_its_text_part(
    text: bool | None, whole: bool | None
) -> None:
    """As transformers 5.24 builds Llama4ForConditionalGeneration (on 2026-11-27): `lm_head.weight`
    is the embedding where the text part says so, whatever the whole says.
    """
    part = {**CONFIGS["llama-4-scout"], "tie_word_embeddings": text}
    config = {"model_type": "llama4", "text_config": part, "tie_word_embeddings": whole}
    stated = {name: value for name, value in config.items() if value is not None}
    assert model_from_config(stated, "x").tied == bool(text)
