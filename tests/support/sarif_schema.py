"""A SARIF log held to the schema of the OASIS standard (tests/data/sarif)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = Path(__file__).parents[1] / "data" / "sarif" / "sarif-schema-2.1.0.json"
VALIDATOR = jsonschema.Draft4Validator(
    json.loads(SCHEMA.read_text(encoding="utf-8")), format_checker=jsonschema.FormatChecker()
)


def valid_log(text: str) -> dict[str, Any]:
    """The log in `text`; raises `ValidationError` where the standard's schema refuses it.

    The schema leaves URIs to a format checker that few machines have: none may hold a blank or a
    backslash (RFC 3986).
    """
    log: dict[str, Any] = json.loads(text)
    VALIDATOR.validate(log)
    for uri in _uris(log):
        assert re.fullmatch(r"[!#-;=?-\[\]_a-z~%]*", uri), uri
    return log


def _uris(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key.lower().endswith("uri"))
        for value in node.values():
            yield from _uris(value)
    elif isinstance(node, list):
        for value in node:
            yield from _uris(value)
