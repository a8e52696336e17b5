"""Engines by name: those that ship, and a user's own.

MESHPLAN_ENGINES names a folder of a user's own engines, one TOML file each. Such a file says what
its framework does otherwise than the engine that it is `based_on` (`generic` if it says nothing),
in the tables and words of `hardware_profiles.engine_schema`, and takes that one's constants unless
`fitted_as` names another.
"""

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.hardware_profiles.names import near_names

OWN = Path(folder) if (folder := os.environ.get("MESHPLAN_ENGINES")) else None
MAX_ENGINE_BYTES = 2**18  # the largest that ships has 22 KiB
USUAL_BASE, TABLES = "generic", ("legality", "state", "overlap", "kernels", "sources")
HERE = Path(__file__).parent / "engines"
NATIVE = "native"
"""The engine of `executor`."""
VARIANTS = HERE / "variants"
"""Engines that are on no list: what some configurations are priced as that `check` reads, and what
nobody but its laboratory can run and `benchmarks.search.lab_layouts` prices.
"""


class UnknownEngine(ValueError):
    """No engine of that name; the text lists the known ones."""


@cache
def engine_names() -> tuple[str, ...]:
    """The engines that are listed."""
    return tuple(sorted(path.stem for path in HERE.glob("*.toml")))


@cache
def _variant_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in VARIANTS.glob("*.toml")))


@cache
def _own_names() -> tuple[str, ...]:
    """A user's own engines, but for files that have the name of one of ours."""
    ours = (*engine_names(), *_variant_names())
    found = OWN.glob("*.toml") if OWN else ()
    return tuple(sorted(path.stem for path in found if path.stem not in ours))


@cache
def load_engine(name: str) -> Engine:
    """The habits of the engine called `name`; raises `UnknownEngine`."""
    if name in (*engine_names(), *_variant_names()):
        return Engine.model_validate(_document(name))
    if name in _own_names():
        return _own_engine(name)
    known = (*engine_names(), *_own_names())
    close = near_names(name, known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    missing = f"; MESHPLAN_ENGINES: {OWN} is no folder" if OWN and not OWN.is_dir() else ""
    raise UnknownEngine(
        f"no engine called {name!r}; {hint}known: {', '.join(known)} (docs/frameworks.md says "
        f"which prices another framework's files){missing}"
    )


def _own_engine(name: str) -> Engine:
    """A user's own; raises `UnknownEngine` with the place of the first fault of its file."""
    from meshplan.hardware_profiles.files.profile_file import first_fault

    where = _path(name)
    try:
        document = _document(name)
        if document["name"] != name:
            raise ValueError(f"its name is {document['name']!r}, its file's {name!r}")
        return Engine.model_validate(document)
    except ValidationError as error:
        raise UnknownEngine(f"{where}: {first_fault(error, 'engine')}") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UnknownEngine(f"{where}: cannot be read as an engine: {reason}") from None


@cache
def fitted_as(name: str) -> str:
    """The engine whose constants the engine called `name` runs with: mostly itself. Only what
    stands above the tables of its file is read.
    """
    if name in _own_names():
        return load_engine(name).fitted_as
    return _stated_fitted_as(name) or name


def _stated_fitted_as(name: str) -> str | None:
    head = tomllib.loads(_text(name).split("\n[", 1)[0])
    if "fitted_as" in head:
        return str(head["fitted_as"])
    return _stated_fitted_as(head["based_on"]) if "based_on" in head else None


def _path(name: str) -> Path:
    if OWN and name in _own_names():
        return OWN / f"{name}.toml"
    return (HERE if name in engine_names() else VARIANTS) / f"{name}.toml"


@cache
def _text(name: str) -> str:
    return read_bounded(_path(name), MAX_ENGINE_BYTES, "an engine").decode("utf-8")


@cache
def _document(name: str) -> dict[str, Any]:
    """The file's tables over those of the engine that it is `based_on`."""
    own = tomllib.loads(_text(name))
    if name in _own_names():
        own = _with_base(name, own)
    if "based_on" not in own:
        return own
    whole = _document(own.pop("based_on")) | {"aliases": []}
    for key, value in own.items():
        whole[key] = {**whole[key], **value} if isinstance(whole.get(key), dict) else value
    return whole


def _with_base(name: str, stated: dict[str, Any]) -> dict[str, Any]:
    """What a user's file leaves out; its constants are those of what it is based on."""
    base = stated.get("based_on", USUAL_BASE)
    if base not in (*engine_names(), *_variant_names()):
        raise ValueError(f"based_on {base!r} is no engine that ships")
    for key in TABLES:
        if not isinstance(stated.get(key, {}), dict):
            raise ValueError(f"{key} is a table, [{key}]")
    return {"name": name, "title": name, "based_on": base, "fitted_as": fitted_as(base)} | stated
