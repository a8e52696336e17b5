"""Makes docs/json.md: every key of what the commands print with `--json`.

`python -m benchmarks.commands.json_keys` writes it; `--check` fails where it is stale.

A key's meaning is said where the key is made: in the docstring of the class whose field it is, or
of the function that makes the document, as `names  what they are`, further lines indented. Which of
them a command prints, and where in its document, is said in `DOCUMENTS`.
"""

import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from inspect import getdoc
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from benchmarks.commands.json_documents import ANY, DOCUMENTS
from benchmarks.pages import ROOT
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.plan_file import RARE

PAGE = ROOT / "docs" / "json.md"
HEAD = """# What `--json` prints

One JSON document on standard output. `a.b` is the key `b` of the object at `a`, `a[].b` that of
each object of the list at `a`, `a.*` is under a name that is no fixed word. A plan file has the
keys of `plan --json` but `cost` and `comparison`. Null means: not known, or not of this question;
where it says more, its line does. Seconds end in `_s`, bytes in `_bytes`, GiB (2**30 bytes) in
`_gib`; of fractions 1 is all. Not here: `profiles`, which prints profiles as their files have them.

This page is made from the docstrings of what makes each document
(`python -m benchmarks.commands.json_keys`).
"""
UNITS = {
    "_bytes_per_s": "bytes/s", "_bytes": "bytes", "_gib": "GiB", "_per_s_per_gpu": "1/s",
    "_per_s": "1/s", "_s": "s", "_fraction": "fraction", "_probability": "fraction",
    "mfu": "fraction", "hfu": "fraction", "_gpus": "GPUs", "gpus": "GPUs", "_hours": "h",
}  # fmt: skip
"""By how a name ends, the longest first."""
WORDS = {str: "text", bool: "true or false", int: "number", float: "number"}

Source = type | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the page: where, its unit or type, its meaning, what it holds further."""

    path: str
    unit: str
    words: str
    inside: type | None = None


NAME = r"\w+[\w.*\[\]]*"
ENTRY = re.compile(rf"(?P<names>{NAME}(?:, {NAME})*)(?:  +(?P<words>\S.*))?$")


@cache
def said(source: Source) -> Mapping[str, str]:
    """What a docstring says of each name: lines `names  words`, and what is indented below."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (getdoc(source) or "").splitlines()[1:]:
        if line.startswith("  ") and names:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
            continue
        entry = ENTRY.match(line)
        names = entry["names"].split(", ") if entry else []
        found |= {name: entry["words"] or "" for name in names if entry}
    return {name: words for name, words in found.items() if words}


def annotations(kind: type) -> dict[str, Any]:
    """The fields that a document states, with their types; empty for what has none."""
    if issubclass(kind, BaseModel):
        return {
            name: field.annotation for name, field in kind.model_fields.items() if not field.exclude
        }
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind)}
    return get_type_hints(kind) if hasattr(kind, "_fields") else {}


def keys_of(source: Source, only: tuple[str, ...] = ()) -> Iterator[Key]:
    """The keys that `source` makes, none below them; without words where its docstring has none."""
    words = said(source)
    if not isinstance(source, type):
        for name, text in words.items():
            yield Key(name, unit_of(name), text)
        return
    for name, hint in annotations(source).items():
        if only and name not in only:
            continue
        text = words.get(name, "")
        if source in (Layout, Training) and name in RARE:
            text += "; left out where there is none"
        path, unit, inside = _typed(name, hint)
        yield Key(path, unit, text, inside)


def unit_of(name: str) -> str:
    """The unit by the end of a name, empty where it has none."""
    last = name.removesuffix(".*")
    return next((unit for end, unit in UNITS.items() if last.endswith(end)), "")


def _typed(name: str, hint: Any) -> tuple[str, str, type | None]:
    """A field's path, its unit or type in words, and the class of what it holds."""
    hint = _bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return name, ", ".join(f"`{each}`" if each != "" else '`""`' for each in args), None
    if origin is tuple:
        path, unit, inside = _typed(f"{name}[]", args[0])
        return path, unit if unit_of(name) == "" else unit_of(name), inside
    if origin in (dict, Mapping) or hint is dict:
        if args[-1] is Any:
            return f"{name}{ANY}", "", None
        path, unit, inside = _typed(f"{name}.*", args[-1])
        return path, unit_of(name) or unit, inside
    if isinstance(hint, type) and annotations(hint):
        return name, "", hint
    return name, unit_of(name) or WORDS.get(hint, "text"), None


def _bare(hint: Any) -> Any:
    """`hint` without bounds and without None; of several types the first, of words all."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bare(args[0])
    if origin in (Union, types.UnionType):
        kinds = [_bare(each) for each in args if each is not type(None)]
        if all(get_origin(each) is Literal for each in kinds):
            return Literal[tuple(word for each in kinds for word in get_args(each))]
        return kinds[0]
    return hint


def walk(path: str, source: Source, only: tuple[str, ...] = ()) -> Iterator[Key]:
    """The keys of `source` at `path`, what they hold after each."""
    for key in keys_of(source, only):
        whole = f"{path}.{key.path}" if path else key.path
        yield Key(whole, key.unit, key.words, key.inside)
        if key.inside:
            yield from walk(whole, key.inside)


def keys(command: str) -> list[Key]:
    """Every key of a command's document."""
    return [*_described(command), *unnamed(command)]


def _described(command: str) -> list[Key]:
    return [key for part in DOCUMENTS[command] for key in walk(*part)]


def unnamed(command: str) -> list[Key]:
    """The objects of a document that no docstring names; of each, what makes it says what it is."""
    named = {"", *(key.path.removesuffix("[]") for key in _described(command))}
    whole = [part for part in DOCUMENTS[command] if part[0].removesuffix("[]") not in named]
    first = {path: source for path, source, *only in reversed(whole) if not only}
    return [Key(path, "", first_sentence(source)) for path, source in first.items()]


def first_sentence(source: Source) -> str:
    """What a docstring begins with, as the words of a line."""
    text = " ".join((getdoc(source) or "").split("\n\n")[0].split())
    return text[0].lower() + text[1:].rstrip(".")


def unknown(command: str, document: Any) -> set[str]:
    """The keys of a command's document that the page does not have."""
    said = re.compile("|".join({text for key in keys(command) for text in _patterns(key)}))
    return {path for path in _paths("", document) if not said.fullmatch(path)}


def _paths(path: str, value: Any) -> Iterator[str]:
    """The path of each key of a document; a list has that of what it holds."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(f"{path}[]", each)
    elif isinstance(value, dict):
        for name, each in value.items():
            whole = f"{path}.{name}" if path else name
            yield whole
            yield from _paths(whole, each)


def _patterns(key: Key) -> Iterator[str]:
    """The paths that a key of the page stands for, and those of what it is in."""
    steps = key.path.removesuffix(ANY).split(".")
    texts = ["[^.\\[]+" if step == "*" else re.escape(step.removesuffix("[]")) for step in steps]
    many = [re.escape("[]") * step.endswith("[]") for step in steps]
    for end in range(1, len(steps) + 1):
        inside = [text + mark for text, mark in zip(texts, many, strict=True)][: end - 1]
        yield re.escape(".").join([*inside, texts[end - 1]])
    if key.path.endswith(ANY):
        yield re.escape(".").join(texts) + r"(\..*)?"


def page() -> str:
    """The whole page; what two documents share is listed at its first place."""
    lines, places = [HEAD], dict[Source, str]()
    for command, parts in DOCUMENTS.items():
        lines += [f"## {command}\n", "| key | unit or type | meaning |", "|---|---|---|"]
        found = [key for part in parts for key in _listed(command, places, *part)]
        lines += [*map(_row, _in_order([*found, *unnamed(command)])), ""]
    return "\n".join(lines)


def _listed(
    command: str,
    places: dict[Source, str],
    path: str,
    source: Source,
    only: tuple[str, ...] = (),
) -> Iterator[Key]:
    """The lines of what `source` makes; one that refers to `places` where these are before."""
    if first := places.get(source):
        yield Key(path, "", f"{_some(only)}{first}")
        return
    if not only:
        at = f"as of `{path}`" if path else "all"
        places[source] = f"{at} under [{command}](#{anchor(command)})"
    for key in keys_of(source, only):
        whole = replace(key, path=f"{path}.{key.path}" if path else key.path)
        yield whole
        if key.inside:
            yield from _listed(command, places, whole.path, key.inside)


def _in_order(found: list[Key]) -> list[Key]:
    """One line for each path, what it holds right behind it."""
    merged: dict[str, Key] = {}
    for key in found:
        at = _plain(key.path)
        before = merged.get(at, replace(key, words=""))
        if key.words not in before.words:
            before = replace(before, words="; ".join(filter(None, (before.words, key.words))))
        merged[at] = before
    order: dict[str, int] = {}
    for at in merged:
        for upto in _ways(at):
            order.setdefault(upto, len(order))
    return sorted(merged.values(), key=lambda key: [order[upto] for upto in _ways(key.path)])


def _ways(path: str) -> list[str]:
    """A path and all that it is in, the outermost first."""
    steps = _plain(path).split(".")
    return [".".join(steps[:end]) for end in range(1, len(steps) + 1)]


def _plain(path: str) -> str:
    return path.replace("[]", "")


def _row(key: Key) -> str:
    shown = f"`{key.path.removesuffix(ANY)}`" if key.path else "the rest"
    return f"| {shown} | {key.unit} | {_cell(key.words)} |"


def _some(only: tuple[str, ...]) -> str:
    return f"{', '.join(f'`{name}`' for name in only)}: " if only else ""


def _cell(words: str) -> str:
    return words.replace("None", "null").replace("|", "\\|")


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE} is stale: python -m {__spec__.name}")
    PAGE.write_text(page())
