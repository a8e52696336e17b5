"""What a recipe that is read says, and nothing here understands."""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.keys.lists import NEMO, judged
from meshplan.executor.frameworks.megatron.model_config import SHAPE
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.nemo.sections import JUDGED, is_known
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.reading import Fact

_SIZES = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads", "num_query_groups": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size", "mtp_num_layers": "num_nextn_predict_layers",
}  # fmt: skip
"""Sizes in Megatron's words, and in a config.json's."""
_STATED_BY_NONE = ("mtp_num_layers",)
"""Sizes that None takes away."""
_SAME_SIZES = ("vocab_size", "rotary_base", "untie_embeddings_and_output_weights")
"""What does not change a model's layers: of a padded vocabulary the price knows nothing."""


def changed_model(run: Run, plain: Mapping[str, Fact], values: Values) -> list[Fact]:
    """Sizes that a recipe states beside a model that it names, where they are not the model's: it
    is another one then.
    """
    if run.model is None and not run.named:
        return []
    config = load_model_config(run.model.value) if run.model else {}
    unread = []
    for name in {**_SIZES, **dict.fromkeys(SHAPE, "")}:
        fact = run.found.get(f"model.{name}") if name in _STATED_BY_NONE else plain.get(name)
        if fact is None or name in _SAME_SIZES:
            continue
        values.asked.add(name)
        if (fact.value or None) != (config.get(_SIZES.get(name, "")) or None):
            why = "it changes the model that the recipe names"
            unread.append(Fact(f"model.{name} {shown(fact.value)} ({why})", fact.line))
    return unread


def of_unknown(run: Run, values: Values) -> list[Fact]:
    """Entries that are asked for, or may matter, and whose values are not known."""
    unread = []
    for name, fact in run.unknown.items():
        section, _, last = name.rpartition(".")
        matters = last in values.asked and is_known(name)
        if not matters and section in JUDGED:
            matters = bool(judged([(last, Fact(True, fact.line))], NEMO, "{}")[0])
        if matters:
            unread.append(Fact(f"{name} = {fact.value} (not known)", fact.line))
    return unread
