"""YAML that people read: texts of several lines as blocks, what occurs twice written twice."""

import yaml


def plain_yaml(*documents: object) -> str:
    """The documents as one stream."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """No anchors; lines of a text stay lines."""

    def ignore_aliases(self, data: object) -> bool:
        """Always."""
        return True


def _text(dumper: _Plain, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)
