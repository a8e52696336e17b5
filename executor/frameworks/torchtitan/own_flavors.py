"""Sizes that a copy of torchtitan gives a flavor, where they are not those of the model that we
take it for: copies are changed, and TOML says no more than the flavor's name.

    torchtitan/models/llama3/__init__.py     llama3_configs = {"8B": TransformerModelArgs(dim=...)}
    since 0.3                                llama3_configs = {"8B": _8b}
                                             def _8b(): return Llama3Model.Config(dim=...)

Only numbers that stand there are held against the model's; nothing is run. Of a function those are
taken that all its calls agree on, its width of what it returns alone. A size that the arguments of
torchtitan's own Llama lack (`ffn_dim=8192`, or a field of the copy's class with such a default) may
say anything, the width of the feed-forward too: it is named.

Source: pytorch/torchtitan v0.2.2 `torchtitan/models/*/__init__.py`, `models/llama3/model/model.py`
(FeedForward: 8/3 of the width, times `ffn_dim_multiplier`, up to a multiple of `multiple_of`),
`models/*/model/args.py` (the arguments); of earlier ones Llama is in `models/llama`, its arguments
in `model.py`.
"""

import ast
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.executor.frameworks.documents.values import shown
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, UnreadableConfig

_PLACES = ("models/{}", "experiments/{}", "models/llama")
_FIELDS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "hidden_dim": "intermediate_size",
}  # fmt: skip
_BUILT = _FIELDS.keys() | {"ffn_dim_multiplier", "multiple_of"}
_OUTER = frozenset(("dim",))  # rotary embeddings have a `dim` of their own
_MULTIPLE_OF = 256  # the default of `multiple_of`
_MOST = 1e9  # of a size; more is no model
_ARGUMENTS = ("model/args.py", "args.py", "model.py", "model/model.py")
_LLAMAS = ("llama2", "llama3")
_KNOWN = _BUILT | {
    "vocab_size", "max_batch_size", "max_seq_len", "norm_eps", "rope_theta", "depth_init",
}  # fmt: skip
"""Numbers among the arguments of torchtitan's own Llama; other models' widths stand there."""


def own_sizes(path: str, module: str, flavor: Fact, ours: str) -> Iterator[Fact]:
    """What the copy around the file at `path` says otherwise of `flavor` than `ours` is."""
    known = load_model_config(ours)
    for place in _PLACES:
        name = f"torchtitan/{place.format(module)}/__init__.py"
        file = beside(name, Path(path))
        sizes = _sizes(file, module, str(flavor.value)) if file else {}
        for theirs, why in _others(sizes, known):
            said = f"{name} has {theirs} {sizes[theirs]:g}, {why.format(ours=ours)}"
            yield Fact(f"model.flavor {shown(flavor.value)} ({said})", flavor.line)
        if sizes:
            return


def _others(sizes: Mapping[str, float], known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each size that the model does not have, and what is said of it."""
    foreign = [name for name in sizes if name not in _KNOWN]
    for theirs, field in _FIELDS.items():
        derived = theirs == "hidden_dim" and foreign
        if field in known and theirs in sizes and sizes[theirs] != known[field] and not derived:
            yield theirs, f"{{ours}} has {known[field]}"
    yield from ((name, "which torchtitan's own arguments lack") for name in foreign)


def _sizes(file: Path, module: str, flavor: str) -> Mapping[str, float]:
    """The numbers of a flavor, with a Llama's feed-forward width; none where it is not there."""
    tree = _tree(file)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_of(module, target) for target in targets):
                sizes = _numbers(node.value, flavor, tree, file.parent)
                return _with_feed_forward(sizes, module)
    return {}


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(text_of(file))
    except (UnreadableConfig, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _of(module: str, target: ast.expr) -> bool:
    named = target.id.lower().replace("_", "") if isinstance(target, ast.Name) else ""
    return named.startswith(module.replace("_", ""))


def _numbers(flavors: ast.Dict, flavor: str, tree: ast.Module, at: Path) -> dict[str, float]:
    for key, value in zip(flavors.keys, flavors.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == flavor:
            if isinstance(value, ast.Call):
                held = ((each.arg or "", _size(each.value)) for each in value.keywords)
                given = {name: size for name, size in held if _says_size(name, size)}
                return _foreign_fields(ast.unparse(value.func), at) | given if given else {}
            functions = (each for each in tree.body if isinstance(each, ast.FunctionDef))
            named = value.id if isinstance(value, ast.Name) else ""
            return next((_of_function(each) for each in functions if each.name == named), {})
    return {}


def _foreign_fields(kind: str, folder: Path) -> dict[str, float]:
    """Sizes that the class of arguments has and torchtitan's own has not, by their defaults."""
    files = (folder / name for name in _ARGUMENTS)
    classes = (node for file in files if file.is_file() for node in _tree(file).body
               if isinstance(node, ast.ClassDef) and node.name == kind.split(".")[-1])  # fmt: skip
    fields = (line for node in islice(classes, 1) for line in node.body)
    held = ((each.target.id, _size(each.value)) for each in fields
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            and each.value is not None)  # fmt: skip
    return {name: size for name, size in held if name not in _KNOWN and _says_size(name, size)}


def _says_size(name: str, size: float) -> bool:
    """Whether a number is torchtitan's own, or more than a switch, a rate or a token's number."""
    foreign = size > 1 and size == int(size) and not name.endswith("_id")
    return bool(name and size) and (name in _KNOWN or foreign)


def _of_function(function: ast.FunctionDef) -> dict[str, float]:
    """The sizes that a flavor's function states, of each only what all places agree on."""
    stated: dict[str, float] = {}
    for line in function.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            stated[line.targets[0].id] = _size(line.value)
    found: dict[str, set[float]] = {}
    returned = (each.value for each in function.body if isinstance(each, ast.Return))
    for outer in filter(None, returned):
        for call in (each for each in ast.walk(outer) if isinstance(each, ast.Call)):
            for given in call.keywords:
                if given.arg in _BUILT and (call is outer or given.arg not in _OUTER):
                    name = given.value.id if isinstance(given.value, ast.Name) else ""
                    found.setdefault(given.arg, set()).add(stated.get(name) or _size(given.value))
    return {name: max(sizes) for name, sizes in found.items() if len(sizes) == 1 and max(sizes)}


def _size(value: ast.expr) -> float:
    """The number that stands there; 0 where none does that is a size."""
    number = value.value if isinstance(value, ast.Constant) else None
    if not isinstance(number, int | float) or isinstance(number, bool):
        return 0
    return number if 0 < number < _MOST else 0


def _with_feed_forward(sizes: dict[str, float], module: str) -> dict[str, float]:
    if module not in _LLAMAS:
        return {name: size for name, size in sizes.items() if name in _KNOWN}
    if not {"dim", "n_heads"} <= sizes.keys():
        return sizes
    wide = int(int(2 * 4 * sizes["dim"] / 3) * sizes.get("ffn_dim_multiplier", 1))
    multiple = int(sizes.get("multiple_of", 0)) or _MULTIPLE_OF
    kv_heads = sizes.get("n_kv_heads", sizes["n_heads"])
    return sizes | {"hidden_dim": multiple * -(-wide // multiple), "n_kv_heads": kv_heads}
