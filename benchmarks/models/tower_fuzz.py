"""Changes each number and flag of each vision part, one at a time, and counts again.

`python -m benchmarks.models.tower_fuzz [MODEL_TYPE ...]` needs torch and transformers 5.24.
Language model, tower and joiner together have the module's parameters, or the field is
refused: the text is read without its tower, and images are not priced. It ends with 1 where
something is different.
"""

import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.models.families import fields_of
from benchmarks.models.family_fuzz import (
    OF_NO_MODULE,
    Counted,
    Outcome,
    others_than,
    outcome,
    told,
)
from benchmarks.models.towers import DEFAULTS, NOT_COUNTED, module_of
from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config, why_no_tower
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.costmodels.model.towers.vision import TOWERS

BUFFERS = {"kimi_k25": 58 * 256}
"""Correction biases of DeepSeek-V3's router, which the module has as buffers."""


def seen_families() -> list[str]:
    """The model types whose towers are read and built, each tower once."""
    built = {TOWERS[name]: name for name in TOWERS if name not in NOT_COUNTED}
    return sorted(built.values())


def outcomes(model_type: str) -> Iterator[Outcome]:
    """One for each value that a field of its vision part takes instead of its own."""
    auto = import_module("transformers").AutoConfig
    config = auto.for_model(model_type, **DEFAULTS.get(model_type, {}))
    for field, value in config.vision_config.to_dict().items():
        for other in others_than(value) if field not in OF_NO_MODULE else ():
            yield outcome(field, other, partial(_changed, config), partial(_ours, model_type))


def _changed(default: Any, field: str, value: object) -> Counted:
    auto, vision = import_module("transformers").AutoConfig, default.vision_config.to_dict()
    config = auto.for_model(default.model_type, vision_config={**vision, field: value})
    return fields_of(config), sum(each.numel() for each in module_of(config).parameters())


def _ours(model_type: str, read: dict[str, Any]) -> tuple[int, ...]:
    """Language model and tower; raises `UnsupportedModel` where the tower is not read."""
    model = model_from_config(read, model_type)
    if model.tower is None:
        raise UnsupportedModel(why_no_tower(read, model))
    both = model_parameters(model).without_mtp + tower_parameters(model.tower)
    return (both - BUFFERS.get(model_type, 0),)


if __name__ == "__main__":
    check_usage(str(__doc__))
    sys.exit(told(sys.argv[1:] or seen_families(), outcomes))
