"""The model's shape in GPT-NeoX's names, as a Hugging Face configuration.

    feed-forward   norm       residual                       family
    gated          rmsnorm    sequential                     llama, or mistral with a window
    plain          layernorm  sequential, rotary or none     gpt_neox, or nemotron without biases
    plain          layernorm  sequential, learned positions  gpt2
    plain          layernorm  gpt_j_residual, rotary         gpt_neox

Every other combination is named and not priced. The width of a gated feed-forward is a third of
`intermediate_size` (4 h unless stated) in multiples of `mlp_multiple_of`; with `mlp_type: llama`,
which releases before 2024-09 have, it is that size itself, or 8 h / 3 in multiples of 256.

Source: EleutherAI/gpt-neox@ea7aefd8 and @0d4bdb96^ `megatron/model/transformer.py` (ParallelMLP,
LLaMAParallelMLP), `megatron/model/activations.py`, `megatron/model/norms.py`.
"""

from typing import Any

from meshplan.costmodels.model.class_defaults import nothing_left_out
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact, IllegalConfig

_GATED = ("swiglu", "reglu", "bilinear", "glu", "geglu")
_PLAIN = ("gelu", "relu", "softsign", "swish", "mish", "silu")
_NORMS = {
    "layernorm": "layernorm", "te_layernorm": "layernorm",
    "rmsnorm": "rmsnorm", "te_rmsnorm": "rmsnorm",
}  # fmt: skip
_POSITIONS = ("learned", "rotary", "none")
_LLAMA = "llama"  # of mlp_type


class _Shape:
    """The switches that say which family a shape belongs to."""

    def __init__(self, values: Values) -> None:
        kind = values.get("mlp_type")
        self.llama = kind is not None and kind.value == _LLAMA
        self.activation = str(_word(values, "activation", "gelu"))
        self.gated = self.llama or self.activation in _GATED
        self.norm = _NORMS.get(str(_word(values, "norm", "layernorm")))
        self.positions = str(_word(values, "pos_emb", "learned"))
        self.parallel = values.on("gpt_j_residual")
        self.qkv_bias = _default_on(values, "use_bias_in_attn_linear")
        self.mlp_bias = not self.llama and _default_on(values, "use_bias_in_mlp")
        self.window = values.count("sliding_window_width")


def _word(values: Values, name: str, default: str) -> object:
    stated = values.get(name)
    return default if stated is None else stated.value


def _default_on(values: Values, name: str) -> bool:
    stated = values.flag(name)
    return stated is None or bool(stated.value)


def model_config(values: Values) -> dict[str, Any] | None:
    """The shape as a Hugging Face configuration, None when the file does not state it.

    `vocab_size` is absent: GPT-NeoX takes it from the tokenizer.
    """
    layers, hidden, heads = (
        values.count(name) for name in ("num_layers", "hidden_size", "num_attention_heads")
    )
    if layers is None or hidden is None or heads is None:
        return None
    shape, kv_heads = _Shape(values), values.count("num_kv_heads")
    config = {
        "num_hidden_layers": layers.value,
        "hidden_size": hidden.value,
        "num_attention_heads": heads.value,
        "num_key_value_heads": kv_heads.value if kv_heads else heads.value,
        "intermediate_size": _width(values, shape, hidden.value),
        "tie_word_embeddings": not values.on("no_weight_tying"),
        "attention_bias": shape.qkv_bias,
        **_family(values, shape, hidden.value),
    }
    return nothing_left_out(config)


def _family(values: Values, shape: _Shape, hidden: int) -> dict[str, Any]:
    """The fields by which families differ; `model_unread` names what no family has."""
    if shape.gated and shape.window is not None:
        return {"model_type": "mistral", "sliding_window": shape.window.value}
    if shape.gated:
        return {"model_type": "llama", "mlp_bias": shape.mlp_bias}
    if shape.positions == "learned":
        rows = values.count("max_position_embeddings")
        width = _width(values, shape, hidden)
        return {
            "model_type": "gpt2", "n_positions": rows.value if rows else 1, "n_inner": width,
            "attention_bias": None if shape.qkv_bias else False,  # the family always has it
        }  # fmt: skip
    if not shape.mlp_bias:
        return {"model_type": "nemotron", "mlp_bias": False}
    return {"model_type": "gpt_neox", "use_parallel_residual": shape.parallel}


def _width(values: Values, shape: _Shape, hidden: int) -> int:
    """The feed-forward width; raises `IllegalConfig` where the two matrices do not meet."""
    stated, factor = values.count("intermediate_size"), values.num("expansion_factor")
    unit = values.count("mlp_multiple_of") or Fact(1, 1)
    if shape.llama:
        return stated.value if stated else -(-(hidden * 8 // 3) // 256) * 256
    whole = stated.value if stated else int((factor.value if factor else 4) * hidden)
    if not shape.gated:
        outer, inner = _up(whole, 2 * unit.value), _up(whole, unit.value)
    else:
        narrow = int(whole * 2 / 3)
        outer, inner = _up(narrow, 2 * unit.value) // 2, _up(narrow // 2, unit.value)
    if inner < 1 or (outer != inner and shape.activation != "geglu"):  # which is named: two widths
        line = stated.line if stated else unit.line
        raise IllegalConfig(
            f"intermediate_size {whole} in multiples of {unit.value}: the first matrix gives "
            f"{outer} columns and the second takes {inner}; GPT-NeoX stops in its first step",
            line,
        )
    return int(inner)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def model_unread(values: Values, *, flash: bool) -> list[Fact]:
    """What of the shape no family has, one line each; `flash` says that FlashAttention runs."""
    shape = _Shape(values)
    found = [*_other_words(values, shape), *_other_switches(values, shape, flash=flash)]
    if found:
        return found
    if shape.gated != (shape.norm == "rmsnorm"):
        kind = "gated" if shape.gated else "plain"
        why = f"with a {kind} feed-forward it is not modelled"
        return [_named(values, "norm", f"{shape.norm} ({why})")]
    if shape.parallel and (shape.gated or shape.positions == "learned" or not shape.mlp_bias):
        return [_named(values, "gpt_j_residual", "(modelled in GPT-NeoX-20B's kind of layer only)")]
    biased = shape.qkv_bias and shape.mlp_bias
    if shape.positions == "learned" and (shape.gated or not biased):
        why = "with a gated feed-forward or without biases it is not modelled"
        return [_named(values, "pos_emb", f"learned ({why})")]
    return []


def _other_words(values: Values, shape: _Shape) -> list[Fact]:
    found = values.besides((_LLAMA, "regular"), "mlp_type", "not known")
    if shape.norm is None:
        found.append(_named(values, "norm", f"{shown(_word(values, 'norm', ''))} (not modelled)"))
    if shape.positions not in _POSITIONS:
        found.append(_named(values, "pos_emb", f"{shown(shape.positions)} (not modelled)"))
    if shape.activation not in _GATED + _PLAIN:
        found.append(_named(values, "activation", f"{shown(shape.activation)} (not known)"))
    elif shape.activation in _GATED and shape.llama:
        why = "with mlp_type llama its width depends on the release"
        found.append(_named(values, "activation", f"{shape.activation} ({why})"))
    elif shape.activation == "geglu":
        why = "2 h wide before 2024-09 and 4 h / 3 since: not modelled"
        found.append(_named(values, "activation", f"geglu ({why})"))
    return found


def _other_switches(values: Values, shape: _Shape, *, flash: bool) -> list[Fact]:
    tied = values.switched_on("gpt_j_tied", "one norm per layer is not modelled")
    biased = _default_on(values, "use_bias_in_norms")
    found = values.switched_on("use_qk_layernorm", "norms of its own width: not modelled")
    found += tied if shape.parallel else []
    if shape.norm == "layernorm" and not biased:
        found.append(_named(values, "use_bias_in_norms", "false (not modelled)"))
    if shape.window is not None and not (flash and shape.gated and not shape.mlp_bias):
        why = "modelled for Mistral's layers with FlashAttention only"
        found.append(_named(values, "sliding_window_width", f"({why})"))
    return found


def _named(values: Values, name: str, what: str) -> Fact:
    stated = values.found.get(name)
    return Fact(f"{name} {what}", stated.line if stated is not None else 1)
