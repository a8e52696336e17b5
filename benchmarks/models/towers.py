"""Counts parameters and FLOPs of each tower that is read, by transformers.

`python -m benchmarks.models.towers [NAME ...]` needs torch and transformers 5.24. It writes the
configurations and the counts that the tests compare with (those named anew, the others as they
are): parameters of the whole module with its default configuration, on the meta device; FLOPs of
the features of one image, or of a clip of 30 seconds, of a tower cut to `SHALLOW` layers
with tensors on the CPU (which patches are neighbours is data), by torch's FLOP counter.
"""

import json
import sys
from importlib import import_module
from typing import Any

from rich.console import Console

from benchmarks.models.families import VARIANTS, fields_of, quiet
from benchmarks.pages import ROOT
from benchmarks.usage import check_usage
from meshplan.costmodels.model.towers.audio import AUDIO_TOWERS
from meshplan.costmodels.model.towers.vision import TOWERS

OUT = ROOT / "tests" / "costmodels" / "model" / "tower_configs.json"
NOT_COUNTED = ("kimi_vl", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
"""That transformers does not have, and those whose module has an audio tower too."""
SAME_AS = (
    *("shieldgemma2", "qwen3_vl_moe", "qwen3_5_moe", "qwen4_exp", "glm46v", "glmga"),
    "pp_chart2table",
)
"""Others of the same tower, whose parameters alone are counted."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma4": {"vision_config": {"model_type": "gemma4_vision"}},
    "llava, pixtral": {"vision_config": {"model_type": "pixtral", "num_hidden_layers": 4}},
    "qwen4_exp": {"text_config": VARIANTS["qwen4_exp_text"]},
    "llava, siglip": {"vision_config": {"model_type": "siglip_vision_model"}},
}
"""What is not the family's default; after a comma another encoder, of which parameters alone."""
SHALLOW: dict[str, dict[str, Any]] = {
    "gemma4": {"model_type": "gemma4_vision", "num_hidden_layers": 4},
    "gemma3": {"num_hidden_layers": 4, "image_size": 512, "vision_use_head": False},
    "glm4v": {"depth": 2},
    "glm5_next": {"depth": 2},
    "glm_ocr": {"depth": 2},
    "got_ocr2": {"num_hidden_layers": 4, "global_attn_indexes": [2]},
    "llama4": {
        "num_hidden_layers": 4,
        "intermediate_size": 3072,
        "image_size": 112,
        "vision_output_dim": 4096,
    },
    "qwen2_audio": {"encoder_layers": 2},
    "voxtral": {"num_hidden_layers": 2},
    "qwen2_5_vl": {"depth": 4, "fullatt_block_indexes": [3], "hidden_size": 1280},
    "qwen2_vl": {"depth": 2},
    "qwen3_5": {"depth": 2},
    "qwen3_vl": {"depth": 4, "deepstack_visual_indexes": [1]},
}
PARTS = ("vision_tower", "visual", "vision_model", "multi_modal_projector", "mm_projector",
         "embed_vision", "vision_embed_tokens", "audio_tower")  # fmt: skip
WITH_WEIGHTS = ("aten.mm", "aten.addmm", "aten.convolution")


def module_of(config: Any) -> Any:
    """The whole module of a multimodal configuration, on the meta device."""
    torch, transformers = import_module("torch"), import_module("transformers")
    auto = import_module("transformers.models.auto.modeling_auto")
    known = auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    names = (known | auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)[config.model_type]
    name = names[0] if isinstance(names, tuple) else names
    with torch.device("meta"):
        return getattr(transformers, name)(config)


def counted(name: str) -> dict[str, Any]:
    """The default configuration, its parameters, and the FLOPs of a shallow one."""
    model_type = name.partition(",")[0]
    auto = import_module("transformers").AutoConfig
    config = auto.for_model(model_type, **DEFAULTS.get(name, {}))
    parameters = sum(each.numel() for each in module_of(config).parameters())
    found = {"config": fields_of(config), "parameters": parameters}
    return found if name in (*SAME_AS, "fuyu") or "," in name else found | flops_of(model_type)


def flops_of(model_type: str) -> dict[str, Any]:
    """The shallow part, the tokens of one image or clip, and FLOPs of its features: of products
    with weights, and of attention.
    """
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode
    section = "audio_config" if model_type in AUDIO_TOWERS else "vision_config"
    shallow = {section: SHALLOW.get(model_type, {"num_hidden_layers": 4})}
    config = import_module("transformers").AutoConfig.for_model(model_type, **shallow)
    config._attn_implementation = "eager"  # the one whose products are counted
    module = module_of(config)
    inner = getattr(module, "model", module)
    for part in (getattr(inner, name) for name in PARTS if hasattr(inner, name)):
        part.to_empty(device="cpu")
        for buffer in part.buffers():
            buffer.zero_()  # places of patches, which nothing has set
    with torch.no_grad(), counter(display=False) as found:
        if model_type in AUDIO_TOWERS:
            rows = [_heard(inner, config)]
        else:
            rows = _rows(inner.get_image_features(**_image(model_type, config)))
        if model_type == "llama4":  # whose features are not yet joined
            rows = [inner.multi_modal_projector(rows[0])]
    counts = {str(op): n for op, n in found.get_flop_counts()["Global"].items()}
    return {
        section: fields_of(config)[section],
        "image_tokens": sum(each.numel() // each.shape[-1] for each in rows),
        "weight_flops": sum(counts.get(name, 0) for name in WITH_WEIGHTS),
        "attention_flops": counts.get("aten.bmm", 0),
    }


def _rows(made: Any) -> list[Any]:
    """The tensors of features in what a module returns."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(made, name, None) is not None:
            made = getattr(made, name)
            break
    return list(made) if isinstance(made, list | tuple) else [made]


def _heard(inner: Any, config: Any) -> Any:
    """The features of 30 seconds of sound: two frames for each of the encoder's tokens."""
    torch, audio = import_module("torch"), config.audio_config
    frames = torch.zeros(1, audio.num_mel_bins, 2 * audio.max_source_positions)
    hidden = inner.audio_tower(frames).last_hidden_state
    if config.model_type == "voxtral":  # which joins as many as its feed-forward is wide
        hidden = hidden.reshape(-1, audio.intermediate_size)
    return inner.multi_modal_projector(hidden)


def _image(model_type: str, config: Any) -> dict[str, Any]:
    """The arguments of one image: its pixels, or its patches and how many there are each way."""
    torch, vision = import_module("torch"), config.vision_config
    if model_type in ("gemma3", "llava", "internvl", "llama4", "got_ocr2"):
        size = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
        image = {"pixel_values": torch.zeros(1, 3, size, size)}
        layers = {"internvl": -1, "llava": -2}
        more = {"vision_feature_layer": layers[model_type]} if model_type in layers else {}
        chosen = {"vision_feature_select_strategy": "default"}
        return image | more | (chosen if model_type in (*layers, "llama4") else {})
    if model_type in ("mistral3", "mistral_large4"):
        sizes = torch.tensor([[224, 224]])
        return {"pixel_values": torch.zeros(1, 3, 224, 224), "image_sizes": sizes,
                "vision_feature_layer": -1}  # fmt: skip
    patch = vision.patch_size
    if model_type == "gemma4":
        each_way = torch.arange(12)
        places = torch.stack(torch.meshgrid(each_way, each_way, indexing="ij"), -1)
        return {"pixel_values": torch.zeros(1, 144, 3 * patch**2),
                "image_position_ids": places.reshape(1, 144, 2)}  # fmt: skip
    frames = getattr(vision, "temporal_patch_size", 1)
    pixels = (3, patch, patch) if model_type == "kimi_k25" else (3 * frames * patch**2,)
    return {"pixel_values": torch.zeros(256, *pixels),
            "image_grid_thw": torch.tensor([[1, 16, 16]])}  # fmt: skip


def main() -> None:
    """Count and write."""
    quiet()
    every = {*TOWERS, *AUDIO_TOWERS, *DEFAULTS, "fuyu"} - set(NOT_COUNTED)
    named = sys.argv[1:]
    found = json.loads(OUT.read_text()) if named else {}
    found |= {name: counted(name) for name in sorted(named or every)}
    OUT.write_text(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")
    Console().print(f"{len(found)} towers")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
