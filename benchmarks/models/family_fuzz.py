"""Changes each number and flag of each family's configuration, one at a time, and counts again.

`python -m benchmarks.models.family_fuzz [MODEL_TYPE ...]` needs torch and transformers 5.24. For
each value that the configuration class accepts, the module is built on the meta device and its
parameters are compared with ours: they are equal, or the field is refused; a difference that
nothing says is an error, and the command ends with 1. Layers are cut to `LAYERS`, for speed.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.models.families import VARIANTS, fields_of, quiet
from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters

Counted = tuple[dict[str, Any], int]
LAYERS = 6
OF_NO_MODULE = ("num_labels", "chunk_size_feed_forward")
WITH_BUFFERS = ("deepseek_v3",)
"""Whose correction biases are tensors of the checkpoint, and buffers of the module."""
READ_AS_TRAINED = {
    ("longcat_flash", "zero_expert_num"): "transformers allocates rows that it never reads",
    ("mpt", "expansion_ratio"): "llm-foundry builds what it says, transformers always 4",
    ("mpt", "no_bias"): "llm-foundry has biases without it, transformers never",
}
"""Fields that we read as the framework does that trains the family, not as transformers does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one changed field led to: "equal", "refused", "unbuilt" (by transformers), "different"
    or "crashed".
    """

    field: str
    value: object
    word: str
    detail: str = ""


def base_of(model_type: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The changes under which the family's module is read exactly, and all its fields with them;
    None where there are none.
    """
    auto = import_module("transformers").AutoConfig
    for layers in ({"num_hidden_layers": LAYERS}, {}):
        for varied in ({}, VARIANTS.get(model_type, {})):
            try:
                config = auto.for_model(model_type, **varied, **layers)
                if theirs(config) in ours(fields_of(config)):
                    everything = json.loads(config.to_json_string(use_diff=False))
                    return {**varied, **layers}, everything
            except Exception:  # its own default may not build: try the next
                continue
    return None


def outcomes(model_type: str) -> Iterator[Outcome]:
    """One for each value that a field of the family takes instead of its own."""
    found = base_of(model_type)
    if found is None:
        return
    changes, fields = found
    for field, value in fields.items():
        if field not in OF_NO_MODULE and (model_type, field) not in READ_AS_TRAINED:
            for other in others_than(value):
                yield outcome(field, other, partial(_changed, model_type, changes), ours)


def _changed(model_type: str, changes: dict[str, Any], field: str, value: object) -> Counted:
    config = import_module("transformers").AutoConfig.for_model(
        model_type, **{**changes, field: value}
    )
    return fields_of(config), theirs(config)


def outcome(
    field: str,
    value: object,
    counted_with: Callable[[str, object], Counted],
    ours: Callable[[dict[str, Any]], tuple[int, ...]],
) -> Outcome:
    """What a field's other value leads to: what the file says then and the module's parameters,
    beside ours, any of which may be meant.
    """
    try:
        read, counted = counted_with(field, value)
    except Exception as error:  # whatever a family's own code raises, it has refused the value
        return Outcome(field=field, value=value, word="unbuilt", detail=str(error)[:80])
    try:
        mine = ours(read)
    except UnsupportedModel as error:
        return Outcome(field=field, value=value, word="refused", detail=str(error))
    except Exception as error:  # a crash of ours is what is looked for
        return Outcome(field=field, value=value, word="crashed", detail=repr(error))
    word = "equal" if counted in mine else "different"
    return Outcome(field=field, value=value, word=word, detail=f"{mine[0]:,} and {counted:,}")


def others_than(value: object) -> list[object]:
    """Values of the same type; for null a flag and two sizes."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 1, value // 2, 3] if value else [1, 2, 64]
    if isinstance(value, float):
        return [2 * value, 0.25] if value else [0.5]
    return [True, 2, 64] if value is None else []


def theirs(config: Any) -> int:
    """Parameters of the module on the meta device, and the buffers that we count among them."""
    torch, transformers = import_module("torch"), import_module("transformers")
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    counted: int = sum(each.numel() for each in module.parameters())
    if config.model_type not in WITH_BUFFERS:
        return counted
    buffers = (b.numel() for name, b in module.named_buffers() if "correction" in name)
    return counted + int(sum(buffers))


def ours(fields: dict[str, Any]) -> tuple[int, ...]:
    """Parameters of what we read: of the language model, and of its vision tower with it."""
    model = model_from_config(fields, "changed")
    language = model_parameters(model).without_mtp
    return (language, language + tower_parameters(model.tower)) if model.tower else (language,)


def causal_families() -> list[str]:
    """The families of ours that transformers has a causal language model of."""
    auto = import_module("transformers.models.auto.modeling_auto")
    return sorted(set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(FAMILIES))


def told(families: list[str], outcomes_of: Callable[[str], Iterator[Outcome]]) -> int:
    """Count all outcomes, and print what is different; 1 where something is."""
    quiet()
    console, words = Console(), dict[str, int]()
    for model_type in track(families, "changing"):
        made = list(outcomes_of(model_type))
        if not made:
            console.print(f"{model_type}: no configuration is read exactly, none is changed")
        for each in made:
            words[each.word] = words.get(each.word, 0) + 1
            if each.word in ("different", "crashed"):
                console.print(f"{model_type}.{each.field} = {each.value}: {each.detail}")
    console.print(words)
    return 1 if {"different", "crashed"} & set(words) else 0


if __name__ == "__main__":
    check_usage(str(__doc__))
    sys.exit(told(sys.argv[1:] or causal_families(), outcomes))
