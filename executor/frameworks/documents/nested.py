"""Entries by their dotted names, written as YAML with sections."""

from collections.abc import Mapping

import yaml


def as_yaml(flat: Mapping[str, object]) -> str:
    """Dotted names as sections."""
    nested: dict[str, object] = {}
    for name, value in flat.items():
        section, _, field = name.rpartition(".")
        if not section:
            nested[field] = value
            continue
        inner = nested.setdefault(section, {})
        assert isinstance(inner, dict)
        inner[field] = value
    return yaml.safe_dump(nested, sort_keys=False)
