"""Sizes that a copy of torchtitan gives a flavor, where they are not those of the model that we
take it for: copies are changed, and TOML says no more than the flavor's name. A Llama or Qwen3 of
which all is understood is priced with them (`own_models`); of another model they are named.

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
from meshplan.executor.frameworks.torchtitan.own_models import own_config, sizes_of
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, UnreadableConfig

_PLACES = ("models/{}", "experiments/{}", "models/llama")
_BUILT = sizes_of("").keys() | {"ffn_dim_multiplier", "multiple_of"}
_OUTER = frozenset(("dim", "vocab_size"))  # rotary embeddings have a `dim` of their own
_STATED = _BUILT | _OUTER | {"head_dim"}  # in a function, where all its calls agree
_MULTIPLE_OF = 256  # the default of `multiple_of`
_MOST = 1e9  # of a size; more is no model
_ARGUMENTS = ("model/args.py", "args.py", "model.py", "model/model.py")
_LLAMAS = ("llama2", "llama3")
_KNOWN = _BUILT | {
    "vocab_size", "max_batch_size", "max_seq_len", "norm_eps", "rope_theta", "depth_init",
}  # fmt: skip
"""Numbers among the arguments of torchtitan's own Llama; other models' widths stand there."""
_BY_DEFAULT = frozenset(("n_kv_heads", "multiple_of", "ffn_dim_multiplier"))
"""What a flavor that does not state it has by the class's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a copy says of a flavor: the model's configuration, where all of it is understood and
    our model, if there is one, is another (`said`: a note of it); else what is `named`.
    """

    config: dict[str, object] | None = None
    said: str = ""
    named: tuple[Fact, ...] = ()


def own_model(path: str, module: str, flavor: Fact, ours: str) -> Own:
    """What the copy around the file at `path` says otherwise of `flavor` than `ours` is, "" for a
    flavor that is not ours.
    """
    known = load_model_config(ours) if ours else {}
    for place in _PLACES:
        name = f"torchtitan/{place.format(module)}/__init__.py"
        file = beside(name, Path(path))
        stated = _stated(file, module, str(flavor.value)) if file else None
        if stated is None:
            continue
        others = [*_others(stated.sizes, known, sizes_of(module))]
        if ours and not others and not _ties_otherwise(stated.config, known):
            return Own()
        if stated.config is not None:
            vocab = {"vocab_size": known["vocab_size"]} if "vocab_size" in known else {}
            said = f"model.flavor {shown(flavor.value)} is priced with its sizes in {name}"
            return Own(config=vocab | stated.config, said=said)
        named = (
            Fact(f"model.flavor {shown(flavor.value)} ({name} has {theirs} "
                 f"{stated.sizes[theirs]:g}, {why.format(ours=ours)})", flavor.line)
            for theirs, why in others
        )  # fmt: skip
        return Own(named=tuple(named) if ours else ())
    return Own()


def _ties_otherwise(config: Mapping[str, object] | None, known: Mapping[str, object]) -> bool:
    """Whether the copy's own model has its embeddings tied, or not, where the model has not."""
    tied = "tie_word_embeddings"
    return config is not None and config[tied] != known.get(tied, False)


def _others(
    sizes: Mapping[str, float], known: Mapping[str, object], fields: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Each size that the model does not have, and what is said of it."""
    foreign = [name for name in sizes if name not in _KNOWN | fields.keys()]
    for theirs, field in fields.items():
        derived = theirs == "hidden_dim" and foreign
        if field in known and theirs in sizes and sizes[theirs] != known[field] and not derived:
            yield theirs, f"{{ours}} has {known[field]}"
    yield from ((name, "which torchtitan's own arguments lack") for name in foreign)


@dataclass(frozen=True, slots=True)
class _Stated:
    """A flavor's numbers, with a Llama's feed-forward width, and its configuration if all of it is
    understood.
    """

    sizes: Mapping[str, float]
    config: dict[str, object] | None


def _stated(file: Path, module: str, flavor: str) -> _Stated | None:
    """What the module's table of flavors says of one; None where it is not there."""
    tree = _tree(file)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = _flavor(node.value, flavor, tree)
            if found and any(_of(module, target) for target in targets):
                kind = ast.unparse(found.func) if isinstance(found, ast.Call) else ""
                fields = _fields(kind, file.parent) if kind else {}
                sizes = _with_feed_forward(_numbers(found, fields), module)
                config = own_config(module, found, fields, sizes)
                return _Stated(sizes, config) if sizes else None
    return None


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(text_of(file))
    except (UnreadableConfig, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _of(module: str, target: ast.expr) -> bool:
    named = target.id.lower().replace("_", "") if isinstance(target, ast.Name) else ""
    return named.startswith(module.replace("_", ""))


def _flavor(flavors: ast.Dict, flavor: str, tree: ast.Module) -> ast.Call | ast.FunctionDef | None:
    """The call of a class of arguments, or the function, that makes a flavor."""
    for key, value in zip(flavors.keys, flavors.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == flavor:
            if isinstance(value, ast.Call):
                return value
            functions = (each for each in tree.body if isinstance(each, ast.FunctionDef))
            named = value.id if isinstance(value, ast.Name) else ""
            return next((each for each in functions if each.name == named), None)
    return None


def _numbers(flavor: ast.Call | ast.FunctionDef, fields: Mapping[str, float]) -> dict[str, float]:
    if isinstance(flavor, ast.FunctionDef):
        return _of_function(flavor)
    held = ((each.arg or "", _size(each.value)) for each in flavor.keywords)
    given = {name: size for name, size in held if _says_size(name, size)}
    left = {name: size for name, size in fields.items()
            if (name in _BY_DEFAULT or name not in _KNOWN) and _says_size(name, size)}  # fmt: skip
    return left | given if given else {}


def _fields(kind: str, folder: Path) -> dict[str, float]:
    """The fields of the copy's class of arguments by their defaults: 1 of a switch that is on, else
    0 of what is no size.
    """
    files = (folder / name for name in _ARGUMENTS)
    classes = (node for file in files if file.is_file() for node in _tree(file).body
               if isinstance(node, ast.ClassDef) and node.name == kind.split(".")[-1])  # fmt: skip
    lines = (line for node in islice(classes, 1) for line in node.body)
    return {
        line.target.id: (_size(line.value) or _is_true(line.value)) if line.value else 0
        for line in lines
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


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
                if given.arg in _STATED and (call is outer or given.arg not in _OUTER):
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
        known = _KNOWN | sizes_of(module).keys()
        return {name: size for name, size in sizes.items() if name in known}
    if not {"dim", "n_heads"} <= sizes.keys():
        return sizes
    wide = int(int(2 * 4 * sizes["dim"] / 3) * sizes.get("ffn_dim_multiplier", 1))
    multiple = int(sizes.get("multiple_of", 0)) or _MULTIPLE_OF
    kv_heads = sizes.get("n_kv_heads", sizes["n_heads"])
    return {"hidden_dim": multiple * -(-wide // multiple), "n_kv_heads": kv_heads} | sizes
