"""Engines by name, and the fitted constants that belong to an engine on a GPU."""

import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine

HERE = Path(__file__).parent / "engines"
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
def load_engine(name: str) -> Engine:
    """The habits of the engine called `name`; raises `UnknownEngine`."""
    if name not in (*engine_names(), *_variant_names()):
        close = get_close_matches(name, engine_names(), n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UnknownEngine(f"no engine called {name!r}; {hint}known: {', '.join(engine_names())}")
    return Engine.model_validate(_document(name))


@cache
def fitted_as(name: str) -> str:
    """The engine whose constants the engine called `name` runs with: mostly itself. Only what
    stands above the tables of its file is read.
    """
    return _stated_fitted_as(name) or name


def _stated_fitted_as(name: str) -> str | None:
    head = tomllib.loads(_text(name).split("\n[", 1)[0])
    if "fitted_as" in head:
        return str(head["fitted_as"])
    return _stated_fitted_as(head["based_on"]) if "based_on" in head else None


def _text(name: str) -> str:
    folder = HERE if name in engine_names() else VARIANTS
    return (folder / f"{name}.toml").read_text(encoding="utf-8")


@cache
def _document(name: str) -> dict[str, Any]:
    """The file's tables over those of the engine that it is `based_on`."""
    own = tomllib.loads(_text(name))
    if "based_on" not in own:
        return own
    whole = _document(own.pop("based_on")) | {"aliases": []}
    for key, value in own.items():
        whole[key] = {**whole[key], **value} if isinstance(value, dict) else value
    return whole
