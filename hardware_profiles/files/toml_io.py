"""Profile files: TOML in and out, with long tables of measurements as CSV text inside it.

    matmul_points = '''
    dtype,m,n,k,flops_per_s
    bf16,4096,8192,10240,1451.6e12
    '''

A table of records reads like a table, diffs by line and parses much faster than an array of TOML
tables; between single quotes, where no character begins an escape, also faster than between double
ones. Cells become numbers or booleans by the schema, an empty cell is the schema's default, and a
cell with several numbers ("1e-5 2e-5") is a tuple.
"""

import csv
import io
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from meshplan.hardware_profiles.files.bounded_file import dotted_key, read_bounded
from meshplan.hardware_profiles.files.whole_file import write_whole

MAX_PROFILE_BYTES = 2**20  # the largest built-in file has 60 KiB
MOST_DOTS = 20
TABLES = frozenset({"matmul_points", "attention_points", "collective_points", "collective_fits"})
PROSE = frozenset({"sources", "conditions"})  # text about fields, under the fields' own names
TUPLES = frozenset({"latency_s", "bandwidth_bytes_per_s"})


def read_toml(path: Path) -> dict[str, Any]:
    """The document at `path`, its CSV tables (at any depth) as lists of dicts.

    Raises `OSError` when it cannot be read and `ValueError` when it is no file, not TOML or not
    UTF-8.
    """
    text = read_bounded(path, MAX_PROFILE_BYTES, "a profile").decode("utf-8")
    if _may_be_dotted(text) and dotted_key(MOST_DOTS).search(text):
        raise ValueError("a key of 20 parts or more; no profile has one")
    try:
        return _expand(tomllib.loads(text))
    except RecursionError:
        raise ValueError("it nests too deep; no profile does") from None


def _may_be_dotted(text: str) -> bool:
    """Whether a line has as many dots as such a key, whose search takes far longer."""
    return any(line.count(".") >= MOST_DOTS for line in text.splitlines())


def _expand(document: dict[str, Any]) -> dict[str, Any]:
    for key, value in document.items():
        if key in TABLES and isinstance(value, str):
            document[key] = _rows(value)
        elif isinstance(value, dict) and key not in PROSE:
            _expand(value)
    return document


def _rows(text: str) -> list[dict[str, Any]]:
    try:
        header, *lines = csv.reader(line.strip() for line in text.strip().splitlines())
    except csv.Error as error:
        raise ValueError(f"not a CSV table: {error}") from None
    return [
        {
            name: tuple(cell.split()) if name in TUPLES else cell
            for name, cell in zip(header, cells, strict=True)
            if cell
        }
        for cells in lines
        if cells
    ]


def write_toml(document: Mapping[str, Any], path: Path) -> None:
    """Write `document` (plain values, dicts and lists of records) to `path`, all or nothing.

    `None` is left out: TOML has no null, and every optional field of a profile defaults to it.
    """
    write_whole(path, "\n".join(_lines(document, ())) + "\n")


def _lines(document: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterable[str]:
    tables = {key: value for key, value in document.items() if isinstance(value, Mapping)}
    if prefix:
        yield ""
        yield f"[{'.'.join(map(_key, prefix))}]"
    for key, value in document.items():
        if key in tables or value is None:
            continue
        if key in TABLES and not isinstance(value, str):
            if value:
                yield f"{key} = '''"
                yield from _csv(value)
                yield "'''"
        else:
            yield f"{_key(key)} = {_value(value)}"
    for key, table in tables.items():
        yield from _lines(table, (*prefix, key))


def _key(key: object) -> str:
    text = str(key)
    bare = text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    return text if bare else _value(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    # JSON's escapes are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _number(value: float) -> str:
    """The shortest text that reads back as `value`: 9.89e14 rather than 989000000000000.0."""
    if not value or 1e-3 <= abs(value) < 1e6 or not math.isfinite(value):
        return repr(value)
    text = next(t for t in (f"{value:.{n}e}" for n in range(18)) if float(t) == value)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}"


def _csv(records: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = [dict(record) for record in records]
    # A column in which every record has nothing to say is left out; a record at its defaults may
    # lack columns that another has.
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if any(row.get(name) is not None for row in rows)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue().splitlines()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(item) for item in value)
    return _value(value) if isinstance(value, (bool, int, float)) else str(value)
