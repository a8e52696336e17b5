"""Counts the parameters of published configurations by transformers, beside ours.

`python -m benchmarks.models.published [FILE ...]` needs torch and transformers 5.24. Of each model
of the catalogue, each file in `published_configs.json` and each file named, the module is built on
the meta device as the file says. It prints the files that differ, those that transformers does
not build, and the families that no published file holds; it ends with 1 where something differs.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.models.families import OUT, built, head_of, quiet
from benchmarks.models.family_fuzz import READ_AS_TRAINED, WITH_BUFFERS
from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.hf_config import model_from_config, why_no_tower
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.hardware_profiles.load_models import load_model_config, model_names

PUBLISHED = OUT.with_name("published_configs.json")
OF_FILES = ("quantization_config", "auto_map", "_source", "_name_or_path", "model_type")
BUILT_AS = {
    "kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text", "step3p7": "step3p5",
    **dict.fromkeys(("baichuan", "internlm2", "minicpm"), "llama"), "mimo": "qwen2",
}  # fmt: skip
"""Types that transformers builds under another name: of the same layers, the last five with code
beside their weights."""
TOWER_PARTS = ("visual", "vision", "multi_modal_projector", "mm_projector", "embed_vision")
"""Beginnings of names of what a language model does not hold."""


def theirs(config: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the module that the file describes, and those of them that are of a tower."""
    torch, transformers = import_module("torch"), import_module("transformers")
    auto = import_module("transformers.models.auto.modeling_auto")
    model_type = BUILT_AS.get(config["model_type"], config["model_type"])
    fields = {key: value for key, value in config.items() if key not in OF_FILES}
    made = transformers.AutoConfig.for_model(model_type, **fields)
    with torch.device("meta"):
        if "vision_config" in fields:
            names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type]
            name = names[0] if isinstance(names, tuple) else names
            module = getattr(transformers, name)(made)
        else:
            module = built(made)
    each = {name: parameter.numel() for name, parameter in module.named_parameters()}
    towers = sum(n for name, n in each.items() if any(part in name for part in TOWER_PARTS))
    with_buffers = made.get_text_config().model_type in WITH_BUFFERS
    alone = 0 if "vision_config" in fields else head_of(made)
    return sum(each.values()) + alone + (_corrections(module) if with_buffers else 0), towers


def _corrections(module: Any) -> int:
    """Correction biases, which are tensors of a checkpoint and buffers of the module."""
    return sum(b.numel() for name, b in module.named_buffers() if "correction" in name)


def files(named: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configurations by name: those named, or the catalogue's and the tests'."""
    for path in named:
        yield path, json.loads(Path(path).read_text())
    if not named:
        for name in model_names():
            yield name, load_model_config(name)
        for name, entry in json.loads(PUBLISHED.read_text()).items():
            yield name, entry["config"]


def compared(config: dict[str, Any], name: str) -> tuple[str, str]:
    """A word for what came of it, and the line that says more."""
    try:
        model = model_from_config(config, name)
    except UnsupportedModel as error:
        return "refused", str(error)
    try:
        total, of_tower = theirs(config)
    except Exception as error:  # whatever a family's own code raises, it is shown
        return "not built", f"{type(error).__name__}: {error}".splitlines()[0][:100]
    ours, expected = model_parameters(model).without_mtp, total - of_tower
    if model.tower:
        ours, expected = ours + tower_parameters(model.tower), total
    left_out = f", without its tower: {why_no_tower(config, model)}" if ours < total else ""
    as_trained = [f"{field}: {why}" for (family, field), why in READ_AS_TRAINED.items()
                  if family == config["model_type"] and config.get(field)]  # fmt: skip
    if ours != expected and as_trained:
        return "read as it is trained", "; ".join(as_trained)
    word = "equal" if ours == expected else "different"
    return word, f"{ours:,} and {expected:,}{left_out}"


def family_of(config: dict[str, Any]) -> str:
    """The family of a configuration's language model."""
    text = config.get("text_config") or config
    return str(text.get("model_type") or config.get("model_type"))


def with_text_parts(held: set[str]) -> set[str]:
    """These families, and the other names of the same text parts: older files state them flat."""
    return held | {
        name for name in FAMILIES if f"{name}_text" in held or name.removesuffix("_text") in held
    }


def without_a_file() -> list[str]:
    """The families of which no published file is stored."""
    stored = {family_of(config) for _, config in files([])}
    return sorted(set(FAMILIES) - with_text_parts(stored))


def main() -> int:
    """Count all, and print what is not equal."""
    quiet()
    console, words, held = Console(width=160), dict[str, int](), set[str]()
    for name, config in track(list(files(sys.argv[1:])), "counting"):
        word, line = compared(config, name)
        words[word] = words.get(word, 0) + 1
        if word == "equal":
            held.add(family_of(config))
        if word != "equal" or "tower" in line:
            console.print(f"{name}: {word}, {line}", highlight=False, markup=False)
    console.print(words)
    if not sys.argv[1:]:
        without = sorted(set(FAMILIES) - with_text_parts(held))
        number = len(FAMILIES) - len(without)
        console.print(f"{number} families; without a file: {', '.join(without)}")
    return 1 if "different" in words else 0


if __name__ == "__main__":
    check_usage(str(__doc__))
    sys.exit(main())
