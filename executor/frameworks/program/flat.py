"""A record with those below it as flat facts, by dotted names: `train.micro_batch_size`."""

from typing import Any

from meshplan.executor.frameworks.program.values import (
    CONSTANTS,
    Class,
    Function,
    Record,
    Ref,
    Unknown,
    is_flat,
)
from meshplan.planner.case.reading import Fact, UnreadableConfig

MAX_FACTS = 5_000  # of one record; Megatron-Bridge's have some 300
_DEEPEST = 6
Facts = dict[str, Fact]


def flat(record: Record) -> tuple[Facts, Facts]:
    """The facts of a record, and what stands in it that is not known, by its words.

    A record in a field counts as stated without a value, as a section of a file does; what a
    function makes that is not followed is not known, below the first level, where functions make
    sections. Names of other packages (`torch.float32`) are their dotted text. What may have changed
    a record stands under `*`.
    """
    found: Facts = {}
    unknown: Facts = {}
    waiting = [("", record, 0)]
    while waiting:
        prefix, held, depth = waiting.pop()
        if held.changed is not None:
            unknown[f"{prefix}*"] = Fact(held.changed.text, held.changed.line)
        for name, (value, line) in held.fields.items():
            path = prefix + name
            if isinstance(value, Record):
                if prefix and not (value.is_made or value.default):
                    unknown[path] = Fact(value.text, line)
                elif value.fields or not value.default:
                    found[path] = Fact(None, line)
                waiting += [(f"{path}.", value, depth + 1)] if depth < _DEEPEST else []
            else:
                _put(path, value, line, found, unknown)
        if len(found) + len(unknown) > MAX_FACTS:
            raise UnreadableConfig(f"more than {MAX_FACTS} fields; no configuration has as many")
    return found, unknown


def _put(path: str, value: Any, line: int, found: Facts, unknown: Facts) -> None:
    if isinstance(value, Unknown):
        unknown[path] = Fact(value.text, line)
    elif isinstance(value, Ref | Class):
        found[path] = Fact(value.dotted, line)
    elif isinstance(value, Function):
        found[path] = Fact(value.node.name, line)
    elif isinstance(value, CONSTANTS):
        found[path] = Fact(value, line)
    elif isinstance(value, list | tuple) and all(is_flat(each) for each in value):
        found[path] = Fact([*value], line)
    elif (part := _unknown_part(value)) is not None:
        unknown[path] = Fact(part.text, line)
    else:
        found[path] = Fact(True, line)


def _unknown_part(value: Any) -> Unknown | None:
    """What is not known among the entries of a list or a mapping."""
    entries = value.values() if isinstance(value, dict) else value
    return next((each for each in entries if isinstance(each, Unknown)), None)
