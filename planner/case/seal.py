"""Whether a plan file is as `plan` wrote it, and what of its prediction no longer holds.

The seal is a hash of all that the file says but for itself, the seconds that the search took, and
what `plan --json` prints beside the plan: equal plans have equal seals. It guards against slips,
not against malice: who edits a file can seal it anew.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SEAL = "sha256"
BESIDE = frozenset({"cost", "comparison", SEAL})
"""What stands beside the plan: what it was asked with, and the seal."""

EDITED = (
    "the file was edited since it was written: its prediction, proof, runners-up and reasons may "
    "be of another plan (`meshplan plan` writes it anew)"
)
UNSEALED = (
    "the file has no seal (`sha256`), as those of older versions: nothing tells whether it was "
    "edited (`meshplan plan` writes it anew)"
)
WRITTEN_EVER = frozenset({"search", "runners_up", "reasons"})
"""What `plan` has written behind the prediction since its first version."""

MOVED = 0.001
"""A smaller relative change of a figure is none."""


def content_hash(content: object) -> str:
    """sha256 of `content` as canonical JSON, so that reordering keys does not change it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a plan with its seal near the top, where a file that is cut keeps it.

    sha256  of all else, by which an edited file is known
    """
    first, *rest = document
    return {first: document[first], SEAL: _seal_of(document)} | {key: document[key] for key in rest}


def is_edited(document: Mapping[str, Any]) -> bool:
    """Whether a file says otherwise than when it was sealed; files of before had no seal."""
    return SEAL in document and document[SEAL] != _seal_of(document)


def is_cut(document: Mapping[str, Any], fields: Sequence[str]) -> bool:
    """Whether a file ends early: from one of `fields` on, all of which `plan` writes in this order,
    an edited one has none (one alone may be of a later version), or one without a seal lacks what
    any version writes.
    """
    if SEAL not in document:
        return "prediction" in document and not document.keys() >= WRITTEN_EVER
    held = [at for at, name in enumerate(fields) if name in document]
    return is_edited(document) and held[-1] < len(fields) - 2


def _seal_of(document: Mapping[str, Any]) -> str:
    said = {str(key): document[key] for key in document if key not in BESIDE}
    if isinstance(search := said.get("search"), Mapping):
        said["search"] = {key: value for key, value in search.items() if key != "wall_s"}
    return content_hash(json.loads(json.dumps(said, default=str)))  # a date of YAML is a text


def moved_figures(written: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The names of what a prediction says otherwise than the file; what it leaves out is none."""
    for name, value in written.items():
        if value is not None and not _same(value, now.get(name)):
            yield name


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return not any(moved_figures(before, after))
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, float | int) and isinstance(after, float | int):
        return abs(before - after) <= MOVED * max(abs(before), abs(after))
    return bool(before == after)
