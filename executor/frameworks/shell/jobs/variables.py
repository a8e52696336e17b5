"""The variables that a job's document (Kubernetes, Kubeflow, SkyPilot, Azure ML) gives its command.

    env: [{name: TP, value: "4"}]      a container's (Kubernetes' API, EnvVar)
    envs, environment_variables        mappings of SkyPilot and Azure ML
    num_nodes, resources.accelerators  SKYPILOT_NUM_NODES, SKYPILOT_NUM_GPUS_PER_NODE (SkyPilot's
                                       documentation, "Distributed Jobs on Many Nodes")

One that two containers set otherwise stays unknown. Leaves out: values from secrets, config maps
and other fields (`valueFrom`), and what Kubeflow's operator sets (`WORLD_SIZE`, `PET_...`).
"""

import re
from collections.abc import Iterator
from typing import TypeGuard

import yaml

_SECTIONS = ("env", "envs", "environment_variables")
_NAME = re.compile(r"[A-Za-z_]\w*")
_CARDS = re.compile(r"[\w.-]+:(\d{1,4})")


def variables_of(documents: list[yaml.Node | None]) -> dict[str, str]:
    """What the documents set, by name."""
    found: dict[str, set[str]] = {}
    for name, value in _stated(documents):
        if _NAME.fullmatch(name):
            found.setdefault(name, set()).add(value)
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


def _stated(documents: list[yaml.Node | None]) -> Iterator[tuple[str, str]]:
    pending, seen = list(documents), set[int]()
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue  # an alias stands for what was looked at already
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif isinstance(node, yaml.MappingNode):
            pending += [value for _, value in node.value]
            yield from _of_mapping({str(key.value): value for key, value in node.value})


def _of_mapping(named: dict[str, yaml.Node]) -> Iterator[tuple[str, str]]:
    for section in _SECTIONS:
        value = named.get(section)
        if isinstance(value, yaml.MappingNode):
            yield from _scalars({str(key.value): each for key, each in value.value})
        elif isinstance(value, yaml.SequenceNode):
            yield from container_variables(value).items()
    resources = named.get("resources")
    if isinstance(resources, yaml.MappingNode):
        stated = {str(key.value): each for key, each in resources.value}
        cards = _cards(stated.get("accelerators"))
        if cards:
            nodes = named.get("num_nodes")
            yield "SKYPILOT_NUM_GPUS_PER_NODE", cards
            yield "SKYPILOT_NUM_NODES", str(nodes.value) if _is_text(nodes) else "1"


def container_variables(node: yaml.Node | None) -> dict[str, str]:
    """Those of a container's list `env` that state a value."""
    entries = node.value if isinstance(node, yaml.SequenceNode) else ()
    return dict(pair for each in entries for pair in _entry(each))


def _entry(node: yaml.Node) -> Iterator[tuple[str, str]]:
    """One of a container's: its name and value."""
    if isinstance(node, yaml.MappingNode):
        stated = {str(key.value): value for key, value in node.value}
        name, value = stated.get("name"), stated.get("value")
        if _is_text(name) and _is_text(value):
            yield str(name.value), str(value.value)


def _scalars(stated: dict[str, yaml.Node]) -> Iterator[tuple[str, str]]:
    for name, value in stated.items():
        if _is_text(value) and value.tag != "tag:yaml.org,2002:null":
            yield name, str(value.value)


def _cards(node: yaml.Node | None) -> str:
    """Of `H100:8` or `{H100: 8}`, one kind of card; "" where neither is there."""
    if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        (card, count), *_ = node.value
        text = f"{card.value}:{count.value}"
    else:
        text = str(node.value) if _is_text(node) else ""
    match = _CARDS.fullmatch(text)
    return match[1] if match else ""


def _is_text(node: yaml.Node | None) -> TypeGuard[yaml.ScalarNode]:
    return isinstance(node, yaml.ScalarNode)
