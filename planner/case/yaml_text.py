"""YAML in and out. PyYAML takes as long to import as twenty of our modules and most commands read
none, so what reads or writes a file imports this then.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import yaml
from yaml import YAMLError as YAMLError

from meshplan.planner.case.input_limits import MAX_DEPTH, check_counts
from meshplan.planner.case.reading import UnreadableConfig

CYAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where there is one: 8 x as fast


def parsed(text: str) -> Any:
    """What the text says, JSON or YAML; raises `UnreadableConfig` and `YAMLError`, as `check_yaml`
    does.
    """
    check_yaml(text)
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            return json.loads(text)  # of whose numbers YAML 1.1 takes 1e-05 for a word
    return yaml.load(text, Loader=CYAML)


def written(document: dict[str, Any]) -> str:
    """The document's text, its keys in their order."""
    text: str = yaml.safe_dump(document, sort_keys=False, width=100)
    return text


def check_yaml(text: str) -> None:
    """Refuse YAML that nests too deep or that its aliases make too large.

    The parser's events say both before anything is built: libyaml's composer recurses on the C
    stack, and what an alias stands for is counted where it is used. Raises `UnreadableConfig`, and
    `yaml.YAMLError` for text that is not YAML.
    """
    total, anchors = 0, dict[str, int]()
    opened: list[tuple[str | None, int]] = []
    for event in _yaml_events(text):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (name for name, _ in opened):
                raise UnreadableConfig(f"the alias *{event.anchor} contains itself", line)
            total += anchors.get(event.anchor or "", 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = opened.pop()
            if name:
                anchors[name] = total - before
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, total - 1))
            elif event.anchor:
                anchors[event.anchor] = 1
        check_counts(total, len(opened), line)


def _yaml_events(text: str) -> Iterator[yaml.Event]:
    """The parser's events. PyYAML 6.0.4's libyaml has a limit of its own, 1000 flow levels, and
    meets it while it looks ahead, before the events that would reach `MAX_DEPTH`.
    """
    try:
        yield from yaml.parse(text, Loader=CYAML)
    except yaml.MarkedYAMLError as error:
        if "maximum nesting depth" in str(error):
            mark = error.problem_mark or error.context_mark
            check_counts(0, MAX_DEPTH + 1, mark.line + 1 if mark else 1)
        raise
