"""YAML, JSON and TOML as flat facts: `parallelism.tp` -> its value and its line.

YAML goes through its node tree rather than through `safe_load`, because only nodes know their
lines and because the loader's constructors fail in ways that are not YAML errors (a date with
month 99). Lists stay values; a merge (`<<: *base`) is what it stands for. A document that is not
a mapping, nests too deep or expands too far is refused in one line.

Source: yaml.org/type/merge (2005): a mapping's own keys win over merged ones, and of a list of
merged mappings the earlier one wins.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import yaml

from meshplan.planner.case.input_limits import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_ENTRIES,
    MAX_PATH,
    check_braces,
    check_toml,
)
from meshplan.planner.case.reading import Fact, UnreadableConfig
from meshplan.planner.case.yaml_text import CYAML, check_yaml

_QUOTED = ("'", '"', "|", ">")
_MERGE = "tag:yaml.org,2002:merge"
_TRUE, _FALSE = frozenset(("true", "yes", "on")), frozenset(("false", "no", "off"))


def read_yaml(text: str) -> dict[str, Fact]:
    """The facts of a YAML mapping; raises `UnreadableConfig`."""
    try:
        check_yaml(text)
        node = yaml.compose(text, Loader=CYAML)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UnreadableConfig(f"not YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:
        raise UnreadableConfig(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UnreadableConfig("not a mapping of keys to values; a config starts with `key: value`")
    found: dict[str, Fact] = {}
    _flatten_yaml(node, "", found, [0])
    return found


def _flatten_yaml(
    node: yaml.MappingNode, prefix: str, found: dict[str, Fact], seen: list[int]
) -> None:
    for key, value in _merged(node).values():
        name = _named(prefix + str(key.value), key.start_mark.line + 1)
        found[name] = Fact(_yaml_value(value, seen), key.start_mark.line + 1)
        if isinstance(value, yaml.MappingNode):
            _flatten_yaml(value, name + ".", found, seen)


def _merged(node: yaml.MappingNode, depth: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The keys and values of a mapping by key, those that it merges included."""
    entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merges = [value for key, value in node.value if key.tag == _MERGE]
    for value in merges:
        line = value.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise UnreadableConfig(f"merges (<<) more than {MAX_DEPTH} deep; no config has", line)
        bases = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for base in bases:
            if not isinstance(base, yaml.MappingNode):
                raise UnreadableConfig("`<<` merges what is not a mapping", line)
            entries = _merged(base, depth + 1) | entries
    own = {str(key.value): (key, value) for key, value in node.value if key.tag != _MERGE}
    return entries | own


def _yaml_value(node: yaml.Node, seen: list[int]) -> Any:
    """A node as a value; mappings become None because their entries are facts of their own."""
    seen[0] += 1
    if seen[0] > MAX_ENTRIES:
        raise UnreadableConfig(f"more than {MAX_ENTRIES} entries; not a training config")
    if isinstance(node, yaml.SequenceNode):
        return [_yaml_value(item, seen) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return None
    quoted = isinstance(node, yaml.ScalarNode) and node.style in _QUOTED
    return node.value if quoted else _scalar(node.value)


_YAML_1_1 = ((re.compile(r"[-+]?0[0-7_]+"), 8), (re.compile(r"[-+]?0x[0-9a-fA-F_]+"), 16),
             (re.compile(r"[-+]?0b[01_]+"), 2))  # fmt: skip


def _scalar(text: str) -> Any:
    """A plain scalar: whole numbers as PyYAML's loaders have them, which frameworks use (`010` is
    8 there: yaml.org/type/int, 2005), others by YAML 1.2's core schema (`1e9` is a number there,
    and of OmegaConf), other text as it is.
    """
    low = text.lower()
    if low in ("", "~", "null"):
        return None
    if low in _TRUE | _FALSE:
        return low in _TRUE
    for pattern, base in _YAML_1_1:
        if len(text) <= MAX_DIGITS and pattern.fullmatch(text):
            return int(text.replace("_", ""), base)
    return number(text)


def number(text: str) -> Any:
    """`text` as int or float if it is one (underscores allowed), else itself."""
    if re.fullmatch(rf"[-+]?[0-9][0-9_]{{0,{MAX_DIGITS}}}", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[-+]?(\d[\d_]*+(\.\d*+)?|\.\d++)([eE][-+]?\d{1,4})?", text):
        return float(text.replace("_", ""))
    return text


def _named(path: str, line: int) -> str:
    """The dotted path of a key; raises `UnreadableConfig` when no config has one as long."""
    if len(path) > MAX_PATH:
        raise UnreadableConfig(f"a key's path of {len(path)} characters; no config has one", line)
    return path


def read_json(text: str, *, once: bool = False) -> dict[str, Fact]:
    """The facts of a JSON object; raises `UnreadableConfig`, also for a key that is there twice
    where each may be there `once`.
    """
    try:
        data = json.loads(text, object_pairs_hook=_each_once if once else None)
    except json.JSONDecodeError as error:
        raise UnreadableConfig(f"not JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableConfig(f"not JSON that a config needs: {error}") from None
    if not isinstance(data, dict):
        raise UnreadableConfig("not a JSON object; a config starts with `{`")
    check_braces(text)
    return _flatten(data, _json_lines(text))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableConfig(f"the key {twice[:80]!r} is there twice, which its reader refuses")
    return found


def _json_lines(text: str) -> dict[str, int]:
    """Line of each key by dotted path, by walking the text's strings, braces and colons."""
    lines: dict[str, int] = {}
    stack: list[str] = []
    key, line = "", 1
    for match in re.finditer(r'"((?:\\.|[^"\\])*)"(\s*:)?|[{}\[\]]|\n', text):
        token = match.group(0)
        if token == "\n":
            line += 1
        elif token in "{[":
            stack.append(key)
            key = ""
        elif token in "}]":
            stack.pop()
            key = ""
        elif match.group(2):
            key = match.group(1)
            lines.setdefault(_named(".".join(part for part in (*stack, key) if part), line), line)
            line += token.count("\n")
    return lines


def read_toml(text: str) -> dict[str, Fact]:
    """The facts of a TOML document; raises `UnreadableConfig`."""
    check_toml(text)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise UnreadableConfig(f"not TOML: {error}", int(at[1]) if at else 1) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableConfig(f"not TOML that a config needs: {error}") from None
    return _flatten(data, _toml_lines(text))


def _toml_lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    table = ""
    for at, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?([^\]]+)\]", line):
            table = header[1].strip().replace('"', "") + "."
            lines.setdefault(table[:-1], at)
        elif entry := re.match(r"\s*([A-Za-z0-9_.\"-]+)\s*=", line):
            lines.setdefault(table + entry[1].replace('"', ""), at)
    return lines


def _flatten(data: Mapping[str, Any], lines: Mapping[str, int]) -> dict[str, Fact]:
    """Facts of nested mappings; a key whose line is unknown gets its parent's."""
    found: dict[str, Fact] = {}
    stack: list[tuple[str, int, Mapping[str, Any]]] = [("", 1, data)]
    while stack:
        prefix, parent_line, mapping = stack.pop()
        for key, value in mapping.items():
            line = lines.get(_named(prefix + key, parent_line), parent_line)
            nested = isinstance(value, dict)
            found[prefix + key] = Fact(None if nested else value, line)
            if nested:
                stack.append((f"{prefix}{key}.", line, value))
                if prefix.count(".") > MAX_DEPTH:
                    raise UnreadableConfig(
                        f"it nests more than {MAX_DEPTH} deep; no config does", line
                    )
    return found
