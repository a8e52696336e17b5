"""A Llama whose sizes a copy of torchtitan states, as a Hugging Face configuration.

    "26B": ModelArgs(dim=5120, n_layers=80, n_heads=40)       torchtitan's first releases
    "1B": TransformerModelArgs(dim=2048, ...)                 to 0.2
    def _1b(): return Llama3Model.Config(dim=dim, layers=_build_llama3_layers(...))      0.3

None unless all of it is understood: the arguments, the fields of the copy's class of arguments, in
a function every call that it makes, and of the feed-forward a width or the rule that gives it.

Source: pytorch/torchtitan v0.1.0 and v0.2.2 torchtitan/models/llama3/model/args.py, @b5bcd76
torchtitan/models/llama3/__init__.py; earlier releases' Llama ties no embeddings.
"""

import ast
from collections.abc import Iterator, Mapping

_TIES = "enable_weight_tying"
_CLASSES = ("ModelArgs", "TransformerModelArgs")
_ARGUMENTS = frozenset((
    "dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier",
    "norm_eps", "rope_theta", "max_batch_size", "max_seq_len", "depth_init", "norm_type", "eos_id",
    "use_flex_attn", "attn_type", "attn_mask_type", "rope_scaling_args", _TIES,
))  # fmt: skip
_CONFIG = "Llama3Model.Config"
_OF_CONFIG = frozenset(("dim", "vocab_size", "enable_weight_tying", "tok_embeddings", "norm",
                        "lm_head", "layers"))  # fmt: skip
_WIDTH = "compute_ffn_hidden_dim"
_CALLS = frozenset((
    _CONFIG, _WIDTH, "Embedding.Config", "RMSNorm.Config", "Linear.Config", "RoPE.Config",
    "ComplexRoPE.Config", "CosSinRoPE.Config", "_build_llama3_layers", "_output_linear_init",
))  # fmt: skip
_OURS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "hidden_dim": "intermediate_size",
}  # fmt: skip


def llama_of(
    flavor: ast.Call | ast.FunctionDef, fields: frozenset[str], sizes: Mapping[str, float]
) -> dict[str, object] | None:
    """The configuration, of whole `sizes` with the feed-forward's width; None where something of it
    is not understood. `fields`: of the copy's class of arguments.
    """
    known = _is_config(flavor) if isinstance(flavor, ast.FunctionDef) else _is_args(flavor)
    whole = _OURS.keys() <= sizes.keys() and all(sizes[name] % 1 == 0 for name in _OURS)
    if not (known and whole and fields <= _ARGUMENTS and sizes["dim"] % sizes["n_heads"] == 0):
        return None
    ours = {name: int(sizes[theirs]) for theirs, name in _OURS.items()}
    vocab = {"vocab_size": int(sizes["vocab_size"])} if "vocab_size" in sizes else {}
    return {"model_type": "llama", **ours, **vocab, "tie_word_embeddings": _ties(flavor)}


def _is_args(flavor: ast.Call) -> bool:
    named = {each.arg for each in flavor.keywords}
    return not flavor.args and _name(flavor) in _CLASSES and named <= _ARGUMENTS


def _is_config(flavor: ast.FunctionDef) -> bool:
    """Whether a function only assigns, and returns a Llama of known parts."""
    *before, last = (each for each in flavor.body if not _is_docstring(each))
    returned = last.value if isinstance(last, ast.Return) else None
    if not isinstance(returned, ast.Call) or not all(isinstance(b, ast.Assign) for b in before):
        return False
    calls = [each for each in ast.walk(flavor) if isinstance(each, ast.Call)]
    widths = [given.value for call in calls for given in call.keywords if given.arg == "hidden_dim"]
    ruled = all(_is_plain(each) or _name(each) == _WIDTH for each in widths)
    named = {each.arg for each in returned.keywords}
    known = all(_name(each) in _CALLS for each in calls)
    return ruled and known and _name(returned) == _CONFIG and named <= _OF_CONFIG


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.Name)


def _name(call: ast.expr) -> str:
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def _ties(flavor: ast.Call | ast.FunctionDef) -> bool:
    def given() -> Iterator[ast.expr]:
        for call in (each for each in ast.walk(flavor) if isinstance(each, ast.Call)):
            yield from (each.value for each in call.keywords if each.arg == _TIES)

    return any(isinstance(each, ast.Constant) and each.value is True for each in given())
