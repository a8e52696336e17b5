"""Changes each number and flag of each vision part, one at a time, and counts again.

`python -m benchmarks.tower_fuzz [MODEL_TYPE ...]` needs torch and transformers 5.24. Language
model, tower and joiner together have the module's parameters, or the field is refused: the text is
read without its tower, and images are not priced. It ends with 1 where something is different.
"""

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.family_fuzz import OF_NO_MODULE, Outcome, fields_of, others_than
from benchmarks.towers import DEFAULTS, NOT_IN_TRANSFORMERS, module_of
from meshplan.costmodels.model.hf_config import model_from_config, why_no_tower
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.tower_families import TOWERS
from meshplan.costmodels.model.towers import tower_parameters

BUFFERS = {"kimi_k25": 58 * 256}
"""Correction biases of DeepSeek-V3's router, which the module has as buffers."""


def seen_families() -> list[str]:
    """The model types whose towers are read and built, each tower once."""
    built = {TOWERS[name]: name for name in TOWERS if name not in NOT_IN_TRANSFORMERS}
    return sorted(built.values())


def outcomes(model_type: str) -> Iterator[Outcome]:
    """One for each value that a field of its vision part takes instead of its own."""
    auto = import_module("transformers").AutoConfig
    config = auto.for_model(model_type, **DEFAULTS.get(model_type, {}))
    for field, value in config.vision_config.to_dict().items():
        for other in others_than(value) if field not in OF_NO_MODULE else ():
            yield _outcome(model_type, config, field, other)


def _outcome(model_type: str, default: Any, field: str, value: object) -> Outcome:
    auto = import_module("transformers").AutoConfig
    vision = {**default.vision_config.to_dict(), field: value}
    try:
        config = auto.for_model(model_type, vision_config=vision)
        counted = sum(each.numel() for each in module_of(config).parameters())
    except Exception as error:  # whatever a family's own code raises, it has refused the value
        return Outcome(field=field, value=value, word="unbuilt", detail=str(error)[:80])
    read = fields_of(config)
    try:
        model = model_from_config(read, model_type)
    except Exception as error:  # a crash of ours is what is looked for
        return Outcome(field=field, value=value, word="crashed", detail=repr(error))
    if model.tower is None:
        why = why_no_tower(read, model)
        return Outcome(field=field, value=value, word="refused", detail=why)
    mine = model_parameters(model).without_mtp + tower_parameters(model.tower)
    mine -= BUFFERS.get(model_type, 0)
    word = "equal" if mine == counted else "different"
    return Outcome(field=field, value=value, word=word, detail=f"{mine:,} and {counted:,}")


def main() -> int:
    """Count all outcomes, and print what is different."""
    warnings.simplefilter("ignore")
    import_module("transformers").logging.set_verbosity_error()
    console, words = Console(), dict[str, int]()
    for model_type in track(sys.argv[1:] or seen_families(), "changing"):
        for each in outcomes(model_type):
            words[each.word] = words.get(each.word, 0) + 1
            if each.word in ("different", "crashed"):
                console.print(f"{model_type}.{each.field} = {each.value}: {each.detail}")
    console.print(words)
    return 1 if {"different", "crashed"} & set(words) else 0


if __name__ == "__main__":
    sys.exit(main())
