"""The model's fields of Megatron-Core in Megatron-LM's words, where a file states a whole shape.

    num_query_groups                     the same, and group_query_attention, which no field says
    num_moe_experts                      num_experts
    gated_linear_unit                    swiglu
    share_embeddings_and_output_weights  the opposite of untie_embeddings_and_output_weights
    add_bias_linear                      it, or disable_bias_linear

As a dump of Megatron-Bridge's configuration has them (`run_config.yaml`). Beside a recipe the
fields that are not stated are the recipe's, a program that is not read: then the file does not say
its model.

Source: NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py,
megatron/training/arguments.py (core_transformer_config_from_args).
"""

from collections.abc import Mapping

from meshplan.planner.case.reading import Fact

_SIZES = ("num_layers", "hidden_size", "num_attention_heads")
_DECIDE = ("gated_linear_unit", "share_embeddings_and_output_weights", "num_query_groups")
_MEGATRON_LM = ("swiglu", "untie_embeddings_and_output_weights", "group_query_attention")


def in_megatrons_words(
    plain: Mapping[str, Fact], stated: Mapping[str, Fact]
) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """`plain` with Megatron-LM's names, and a note where a shape is stated in part.

    stated  the file's entries by their whole names, null ones too
    """
    facts = dict(plain)
    if not all(name in facts for name in _SIZES):
        return facts, ()
    left = [
        f"model.{name}"
        for name, theirs in zip(_DECIDE, _MEGATRON_LM, strict=True)
        if f"model.{name}" not in stated and theirs not in facts and name not in facts
    ]
    if (groups := facts.get("num_query_groups")) is not None:
        facts["group_query_attention"] = Fact(True, groups.line)
    if (experts := facts.pop("num_moe_experts", None)) is not None:
        facts["num_experts"] = experts
    if (gated := facts.pop("gated_linear_unit", None)) is not None:
        facts["swiglu"] = gated
    if (shared := facts.pop("share_embeddings_and_output_weights", None)) is not None:
        facts["untie_embeddings_and_output_weights"] = Fact(not _is_on(shared), shared.line)
    if (bias := facts.pop("add_bias_linear", None)) is not None:
        facts["add_bias_linear" if _is_on(bias) else "disable_bias_linear"] = Fact(True, bias.line)
    return facts, (_in_part(facts["num_layers"].line, left),) if left else ()


def _in_part(line: int, left: list[str]) -> str:
    return (
        f"line {line}: its layers are stated, and {', '.join(left)} left to the recipe, a program "
        "that is not read: state these, or name the model by --model"
    )


def _is_on(fact: Fact) -> bool:
    return str(fact.value).lower() in ("true", "1")
