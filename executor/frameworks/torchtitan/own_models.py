"""A Llama or dense Qwen3 whose sizes a copy of torchtitan states, as a Hugging Face configuration.

    "26B": ModelArgs(dim=5120, n_layers=80, n_heads=40)       torchtitan's first releases
    "1B": TransformerModelArgs(dim=2048, ...)                 to 0.2; Qwen3ModelArgs(...)
    def _1b(): return Llama3Model.Config(dim=dim, layers=_build_llama3_layers(...))      0.3

None unless all of it is understood: the arguments, the fields of the copy's class of arguments, in
a function every call that it makes, and of the feed-forward a width or the rule that gives it.

Source: pytorch/torchtitan v0.1.0 and v0.2.2 torchtitan/models/{llama3,qwen3}/model/args.py,
@b5bcd76 torchtitan/models/{llama3,qwen3}/__init__.py; earlier releases' Llama ties no embeddings.
"""

import ast
from collections.abc import Iterator, Mapping

from meshplan.hardware_profiles.dataclass import dataclass

_OURS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "hidden_dim": "intermediate_size",
}  # fmt: skip
_TIES = "enable_weight_tying"
_WIDTH = "compute_ffn_hidden_dim"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What is understood of a family's flavors.

    sizes      by our names, all of which are stated
    classes    of arguments, which may have these `arguments`
    idle       further fields of such a class, which do nothing at their defaults
    on         switches without which it is another model
    config     the class that a function returns, with these arguments (`of_config`) and `calls`
    """

    model_type: str
    sizes: Mapping[str, str]
    classes: tuple[str, ...]
    arguments: frozenset[str]
    idle: frozenset[str] = frozenset()
    on: frozenset[str] = frozenset()
    config: str
    of_config: frozenset[str]
    calls: frozenset[str]


_ARGUMENTS = frozenset((
    "dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "rope_theta",
    "max_seq_len", "depth_init", "eos_id", "use_flex_attn", "attn_type", "attn_mask_type",
))  # fmt: skip
_OF_CONFIG = frozenset(("dim", "vocab_size", _TIES, "tok_embeddings", "norm", "lm_head", "layers"))
_CALLS = frozenset((
    "Embedding.Config", "Linear.Config", "RoPE.Config", "ComplexRoPE.Config", "CosSinRoPE.Config",
    "_output_linear_init",
))  # fmt: skip
_LLAMA = _Family(
    model_type="llama", sizes=_OURS, classes=("ModelArgs", "TransformerModelArgs"),
    arguments=_ARGUMENTS | {"multiple_of", "ffn_dim_multiplier", "max_batch_size", "norm_type",
                            "rope_scaling_args", _TIES},
    config="Llama3Model.Config", of_config=_OF_CONFIG,
    calls=_CALLS | {_WIDTH, "RMSNorm.Config", "_build_llama3_layers"},
)  # fmt: skip
_QWEN = _Family(
    model_type="qwen3", sizes=_OURS | {"head_dim": "head_dim"}, classes=("Qwen3ModelArgs",),
    arguments=_ARGUMENTS | {"head_dim", "hidden_dim", "qk_norm", _TIES},
    idle=frozenset(("moe_enabled", "moe_inter_dim", "moe_args")), on=frozenset(("qk_norm",)),
    config="Qwen3Model.Config", of_config=_OF_CONFIG | {"rope"},
    calls=_CALLS | {"_qwen3_norm", "_build_qwen3_layers"},
)  # fmt: skip
_FAMILIES = {"llama2": _LLAMA, "llama3": _LLAMA, "qwen3": _QWEN}


def sizes_of(module: str) -> Mapping[str, str]:
    """What a flavor of the module states of its sizes, by our names."""
    return _FAMILIES[module].sizes if module in _FAMILIES else _OURS


def own_config(
    module: str,
    flavor: ast.Call | ast.FunctionDef,
    fields: Mapping[str, float],
    sizes: Mapping[str, float],
) -> dict[str, object] | None:
    """The configuration, of whole `sizes` with the feed-forward's width; None where something of it
    is not understood. `fields`: of the copy's class of arguments, by their defaults.
    """
    family = _FAMILIES.get(module)
    if family is None or not _is_known(family, flavor, fields):
        return None
    whole = family.sizes.keys() <= sizes.keys()
    if not whole or any(sizes[name] % 1 for name in family.sizes):
        return None
    if "head_dim" not in sizes and sizes["dim"] % sizes["n_heads"]:
        return None
    ours = {name: int(sizes[theirs]) for theirs, name in family.sizes.items()}
    vocab = {"vocab_size": int(sizes["vocab_size"])} if "vocab_size" in sizes else {}
    tied = _switch(flavor, _TIES, default=bool(fields.get(_TIES)))
    return {"model_type": family.model_type, **ours, **vocab, "tie_word_embeddings": tied}


def _is_known(
    family: _Family, flavor: ast.Call | ast.FunctionDef, fields: Mapping[str, float]
) -> bool:
    """Whether nothing of a flavor is left that may make it another model."""
    if isinstance(flavor, ast.FunctionDef):
        return _is_config(family, flavor)
    named = {each.arg for each in flavor.keywords}
    plain = not flavor.args and _name(flavor) in family.classes and named <= family.arguments
    idle = fields.keys() <= family.arguments | family.idle and not fields.get("moe_enabled")
    return plain and idle and all(
        _switch(flavor, name, default=not fields or bool(fields.get(name))) for name in family.on
    )  # fmt: skip


def _is_config(family: _Family, flavor: ast.FunctionDef) -> bool:
    """Whether a function only assigns, and returns a model of known parts."""
    *before, last = (each for each in flavor.body if not _is_docstring(each))
    returned = last.value if isinstance(last, ast.Return) else None
    if not isinstance(returned, ast.Call) or not all(isinstance(b, ast.Assign) for b in before):
        return False
    calls = [each for each in ast.walk(flavor) if isinstance(each, ast.Call)]
    widths = [given.value for call in calls for given in call.keywords if given.arg == "hidden_dim"]
    ruled = all(_is_plain(each) or _name(each) == _WIDTH for each in widths)
    named = {each.arg for each in returned.keywords}
    known = all(_name(each) in family.calls | {family.config} for each in calls)
    return ruled and known and _name(returned) == family.config and named <= family.of_config


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.Name)


def _name(call: ast.expr) -> str:
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def _switch(flavor: ast.Call | ast.FunctionDef, name: str, *, default: bool) -> bool:
    """Whether a flavor has a switch on; as it is by `default` where nothing of it says so."""

    def given() -> Iterator[ast.expr]:
        for call in (each for each in ast.walk(flavor) if isinstance(each, ast.Call)):
            yield from (each.value for each in call.keywords if each.arg == name)

    values = [isinstance(each, ast.Constant) and each.value is True for each in given()]
    return any(values) if values else default
