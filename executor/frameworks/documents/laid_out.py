"""YAML and TOML in their plain layout, a key a line, by which a format is recognised.

YAML may be written as JSON (`{"parallelism": {"dp": 2}}`) and TOML with dotted keys or inline
tables: what the file says is the same, and readers take its facts and lines from the file itself.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from meshplan.planner.case.input_limits import check_toml
from meshplan.planner.case.yaml_text import CYAML, check_yaml

_YAML = (".yaml", ".yml")


def laid_out(name: str, text: str) -> str | None:
    """The text of a file called `name` with a key a line; None where it is neither YAML nor TOML,
    or cannot be parsed.
    """
    try:
        if name.endswith(_YAML) and any(mark in text for mark in "{\"'"):
            return _yaml(text)
        return _toml(text) if name.endswith(".toml") else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _yaml(text: str) -> str | None:
    check_yaml(text)
    node = yaml.compose(text, Loader=CYAML)
    if not isinstance(node, yaml.MappingNode):
        return None
    _open(node)
    written: str = yaml.serialize(node, width=float("inf"))
    return written


def _open(root: yaml.Node) -> None:
    """Write the nodes below `root` in lines of their own, and quote none that needs no quotes."""
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            node.style = None
        elif isinstance(node, yaml.CollectionNode):
            node.flow_style = False
            pairs = isinstance(node, yaml.MappingNode)
            left += [each for pair in node.value for each in pair] if pairs else node.value


def _toml(text: str) -> str:
    check_toml(text)
    return "\n".join(_tables(tomllib.loads(text), ""))


def _tables(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """The lines of a table: its own values, then each table in it below its header."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    yield from (f"{key} = {json.dumps(value, default=str)}"
                for key, value in table.items() if key not in inner)  # fmt: skip
    for key, value in inner.items():
        yield f"[{name}{key}]"
        yield from _tables(value, f"{name}{key}.")
