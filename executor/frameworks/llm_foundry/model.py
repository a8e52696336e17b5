"""MPT's shape in llm-foundry's names, as a Hugging Face configuration.

    ffn_type   biases    norms          family
    mptmlp     no_bias   any            mpt
    mptmlp     biases    layer norms    mpt
    mptglu     no_bias   any            llama, without a learned position table

Norms without a bias weigh the same whatever they are called. A width of `mptmlp` that is not a
multiple of `d_model`, windows, norms of queries and keys, experts and `block_overrides` are named
and not priced.

Source: mosaicml/llm-foundry@8c8dd48f `llmfoundry/models/mpt/configuration_mpt.py` (defaults),
`llmfoundry/models/layers/ffn.py` (resolve_ffn_hidden_size), `llmfoundry/models/layers/blocks.py`.
"""

from typing import Any

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact, IllegalConfig

_ATTENTION = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
_FUSED = ("flash", "triton")
_RMS = ("rmsnorm", "low_precision_rmsnorm", "triton_rmsnorm")
_LAYER = ("layernorm", "low_precision_layernorm")
_DEFAULTS = {"d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048,
             "vocab_size": 50368}  # fmt: skip


def mpt_config(values: Values) -> dict[str, Any]:
    """The shape as a Hugging Face configuration; raises `IllegalConfig` where llm-foundry stops."""
    sizes = {
        name: fact.value if (fact := values.count(f"model.{name}")) else default
        for name, default in _DEFAULTS.items()
    }
    hidden, heads = sizes["d_model"], sizes["n_heads"]
    if hidden % heads:
        stated = values.found.get("model.n_heads", values.found.get("model.d_model", Fact(0, 1)))
        raise IllegalConfig(f"d_model {hidden} does not divide by n_heads {heads}", stated.line)
    tied = values.flag("model.tie_word_embeddings")
    common: dict[str, Any] = {"tie_word_embeddings": tied is None or tied.value}
    if (head_dim := values.count("model.head_dim")) is not None:
        common["head_dim"] = head_dim.value
    kv_heads, width = _kv_heads(values, heads), _width(values, hidden)
    if _word(values, "ffn_config.ffn_type", "mptmlp") == "mptglu":
        return common | {
            "model_type": "llama", "hidden_size": hidden, "num_attention_heads": heads,
            "num_hidden_layers": sizes["n_layers"], "num_key_value_heads": kv_heads,
            "intermediate_size": width, "vocab_size": sizes["vocab_size"],
        }  # fmt: skip
    return common | sizes | {
        "model_type": "mpt", "no_bias": values.on("model.no_bias"),
        "expansion_ratio": max(1, width // hidden), "learned_pos_emb": _learns_positions(values),
        "attn_config": {"alibi": values.on("model.attn_config.alibi"), "kv_n_heads": kv_heads},
    }  # fmt: skip


def mpt_unread(values: Values) -> list[Fact]:
    """What of an MPT no family has, one line each."""
    why = "logits of another size are not modelled"
    loss = values.besides(("fused_crossentropy",), "model.loss_fn", why)
    return [*_attention(values), *_feed_forward(values), *_norms(values), *loss]


def _word(values: Values, name: str, default: str) -> str:
    stated = values.get(f"model.{name}")
    return default if stated is None else str(stated.value)


def _kv_heads(values: Values, heads: int) -> int:
    kind = _word(values, "attn_config.attn_type", _ATTENTION[0])
    grouped = values.count("model.attn_config.kv_n_heads")
    if kind == "multiquery_attention":
        return 1
    if kind != "grouped_query_attention":
        return heads
    if grouped is None or heads % grouped.value:
        line = grouped.line if grouped else values.found["model.attn_config.attn_type"].line
        stated = f"kv_n_heads {grouped.value}" if grouped else "no kv_n_heads"
        raise IllegalConfig(
            f"grouped_query_attention with {stated}: it must divide n_heads {heads}", line
        )
    return int(grouped.value)


def _width(values: Values, hidden: int) -> int:
    """The feed-forward width; raises `IllegalConfig` where it is not a whole number."""
    stated = values.count("model.ffn_config.ffn_hidden_size")
    ratio = values.num("model.expansion_ratio") or Fact(4, 1)
    if stated is not None:
        return int(stated.value)
    width = hidden * ratio.value
    if width != int(width) or width < 1:
        raise IllegalConfig(
            f"d_model {hidden} x expansion_ratio {ratio.value} must be a whole number", ratio.line
        )
    return int(width)


def _learns_positions(values: Values) -> bool:
    learned = values.flag("model.learned_pos_emb")
    others = values.on("model.attn_config.alibi") or values.on("model.attn_config.rope")
    return (learned is None or bool(learned.value)) and not others


def _attention(values: Values) -> list[Fact]:
    found = []
    kind, runs = (values.get(f"model.attn_config.{name}") for name in ("attn_type", "attn_impl"))
    if kind is not None and kind.value not in _ATTENTION:
        found.append(Fact(f"attn_type {shown(kind.value)} (not modelled)", kind.line))
    if runs is not None and runs.value not in _FUSED:
        why = "only flash and triton are modelled with FSDP"
        found.append(Fact(f"attn_impl {shown(runs.value)} ({why})", runs.line))
    window = values.get("model.attn_config.sliding_window_size")
    if window is not None and window.value != -1:
        found.append(Fact("sliding_window_size (not modelled in an MPT)", window.line))
    for name in ("qk_ln", "qk_gn"):
        if values.on(f"model.attn_config.{name}"):
            line = values.found[f"model.attn_config.{name}"].line
            found.append(Fact(f"{name} (a norm over queries and keys: not modelled)", line))
    return found


def _feed_forward(values: Values) -> list[Fact]:
    kind = values.get("model.ffn_config.ffn_type") or Fact("mptmlp", 1)
    if kind.value not in ("mptmlp", "mptglu"):
        return [Fact(f"ffn_type {shown(kind.value)} (not modelled)", kind.line)]
    if kind.value == "mptglu" and not values.on("model.no_bias"):
        return [Fact("ffn_type mptglu (with biases it is not modelled)", kind.line)]
    if kind.value == "mptglu" and _learns_positions(values):
        why = "with learned positions it is not modelled"
        return [Fact(f"ffn_type mptglu ({why})", kind.line)]
    hidden = values.count("model.d_model") or Fact(_DEFAULTS["d_model"], 1)
    width = _width(values, hidden.value)
    if kind.value == "mptmlp" and width % hidden.value:
        why = f"no multiple of d_model {hidden.value}, which mptmlp is modelled with"
        line = values.found.get("model.expansion_ratio", kind).line
        return [Fact(f"feed-forward width {width} ({why})", line)]
    return []


def _norms(values: Values) -> list[Fact]:
    norm = values.get("model.norm_type") or Fact(_LAYER[1], 1)
    bare = values.on("model.no_bias")
    own = values.flag("model.attention_bias")
    found = []
    if str(norm.value).lower() not in _LAYER + (_RMS if bare else ()):
        why = "it is not modelled beside biases" if norm.value in _RMS else "not known"
        found.append(Fact(f"norm_type {shown(norm.value)} ({why})", norm.line))
    if own is not None and own.value == bare:
        found.append(Fact("attention_bias (unlike no_bias: not modelled)", own.line))
    return found
