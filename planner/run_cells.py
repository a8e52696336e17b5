"""Cells of a file of measured runs: numbers, or the reason why a row is skipped."""

import math

from planner.limits import MAX_COUNT


class SkippedRow(ValueError):
    """A row that says too little, or nothing that can be priced; the text is the reason."""


def number(row: dict[str, str], key: str) -> float | None:
    """The number in a cell, None if it is empty; raises `SkippedRow` unless it can be measured."""
    text = (row.get(key) or "").strip()
    try:
        value = float(text) if text else None
    except ValueError:
        raise SkippedRow(f"{key} is {text!r}, not a number") from None
    if value is not None and not 0 <= value < math.inf:
        raise SkippedRow(f"{key} is {text}; it takes a number from 0")
    return value


def count(row: dict[str, str], key: str, default: int | None = None, *, least: int = 1) -> int:
    """The whole number in a cell, `default` if it is empty; raises `SkippedRow`."""
    value = number(row, key)
    if value is None:
        if default is None:
            raise SkippedRow(f"{key} is not stated")
        return default
    if value != int(value) or not least <= value <= MAX_COUNT:
        raise SkippedRow(f"{key} is {value:g}; it takes a whole number from {least} to {MAX_COUNT}")
    return int(value)
