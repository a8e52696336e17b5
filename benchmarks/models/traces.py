"""`models --trace` of every causal language model that transformers builds, by its own defaults.

    python -m benchmarks.models.traces [MODEL_TYPE ...]

Of each: whether it is traced; its parameters beside the module's; where a family reads it too,
FLOPs of products and of attention, and saved bytes, beside those. Needs transformers; a minute
of one core.
"""

import json
import sys
import warnings
from collections import Counter
from importlib import import_module
from typing import Any

from rich.console import Console

from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.executor.trace.command import costs_of
from meshplan.executor.trace.missing import CannotTrace
from meshplan.executor.trace.trace import trace

KINDS_OF_COST = ("product FLOPs", "attention FLOPs", "saved bytes, generic")


def config_of(model_type: str) -> dict[str, Any]:
    """The defaults of a family, as a config.json has them."""
    transformers = import_module("transformers")
    config = transformers.AutoConfig.for_model(model_type)
    fields: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in fields.items() if value is not None}


def compared(model_type: str) -> tuple[str, str]:
    """A word for what came of it, and the line that says more."""
    try:
        config = config_of(model_type)
    except Exception as error:  # a family's own code, shown
        return "not configured", f"{type(error).__name__}: {error}"[:120]
    try:
        found = trace(config, model_type)
    except CannotTrace as error:
        return "not traced", str(error)[:160]
    try:
        family = model_from_config(config, model_type)
    except UnsupportedModel as error:
        return "traced, no family", f"{found.parameters:,} parameters; {error}"[:160]
    traced = model_from_config(found.model_dump(mode="json"), model_type)
    if len(set(found.pattern)) == 0 or family.num_layers != traced.num_layers:
        return "traced, other layers", f"{traced.num_layers} and {family.num_layers} layers"
    return _differences(traced, family)


def _differences(traced: Model, family: Model) -> tuple[str, str]:
    counts = model_parameters(traced).total, model_parameters(family).without_mtp
    told = [] if counts[0] == counts[1] else [f"parameters {counts[0]:,} and {counts[1]:,}"]
    for what in KINDS_OF_COST:
        ours, theirs = (_total(model, what) for model in (traced, family))
        tolerance = 1e-3 if "FLOPs" in what else 0.02
        if abs(ours - theirs) > tolerance * max(ours, theirs):
            told.append(
                f"{what} {ours / theirs - 1:+.1%}" if theirs else f"{what} {ours:.3g} and 0"
            )
    return ("equal", "") if not told else ("different", "; ".join(told))


def _total(model: Model, what: str) -> float:
    each = [costs_of(model, kind)[what] for kind in model.kinds]
    return sum(each[kind] for kind in model.pattern)


def main() -> None:
    """All families, or those named."""
    warnings.simplefilter("ignore")
    auto = import_module("transformers.models.auto.modeling_auto")
    names = sys.argv[1:] or sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    outcomes: Counter[str] = Counter()
    for name in names:
        outcome, line = compared(name)
        outcomes[outcome] += 1
        Console(width=200).print(f"{name}: {outcome} {line}", highlight=False, markup=False)
    Console().print(*(f"{count} {outcome}" for outcome, count in outcomes.items()), sep="\n")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
