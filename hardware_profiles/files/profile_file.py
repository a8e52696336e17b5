"""A profile's file, and its name: read whole, or one line that says what to do.

gpus/NAME.toml      the datasheet of one accelerator            Gpu
measured/NAME.toml  how close kernels come to it                Kernels
clusters/NAME.toml  the links of one kind of machine            Cluster, its `gpu` by name
links/NAME.toml     collectives on one kind of link in a node   `measured_as` of a `node`
index.toml          other names, and whose node a GPU sits in
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from meshplan.hardware_profiles.files.toml_io import read_toml
from meshplan.hardware_profiles.names import near_names

HERE = Path(__file__).parents[1]
Model = TypeVar("Model", bound=BaseModel)
OTHER_FORMATS = (".yaml", ".yml", ".json")
"""What a profile is written in by mistake, and is not."""
SHOWN_INPUT = 60
"""How many characters of a faulty value are repeated."""


class UnknownProfile(ValueError):
    """No profile of that name, or no readable profile file: one line that says what to do."""


@cache
def index() -> dict[str, dict[str, str]]:
    """Other names, and whose node a GPU sits in, by table of index.toml."""
    return read_toml(HERE / "index.toml")


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the profiles of one folder."""
    return tuple(sorted(path.stem for path in (HERE / folder).glob("*.toml")))


def resolve(name: str, known: tuple[str, ...], aliases: dict[str, str], what: str) -> str:
    """A known name, or what an alias stands for. Raises `UnknownProfile`."""
    if name in known:
        return name
    if name in aliases:
        return aliases[name]
    raise unknown(name, (*known, *aliases), what)


def unknown(name: str, known: Iterable[str], what: str) -> UnknownProfile:
    """The error for a `name` that is no `what`, with the closest of the `known` ones."""
    known = tuple(known)
    close = near_names(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UnknownProfile(f"no {what} called {name!r}; {hint} (`meshplan profiles` lists all)")


def read_profile(path: Path) -> dict[str, Any]:
    """What a file says, which is something. Raises `UnknownProfile`."""
    try:
        if not (document := read_toml(path)):
            raise ValueError("it is empty")
        return document
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        if path.suffix in OTHER_FORMATS and path.is_file():
            reason = f"a profile is TOML (`meshplan profile` writes it), not {path.suffix}"
        elif isinstance(error, UnicodeDecodeError):
            reason = "not UTF-8 text"
        raise UnknownProfile(f"{path}: cannot be read as a profile: {reason}") from error


def validated(model: type[Model], document: dict[str, Any], where: str) -> Model:
    """A `document` as the `model` that it describes. Raises `UnknownProfile`."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise UnknownProfile(f"{where}: {first_fault(error, model.__name__)}") from error


def first_fault(error: ValidationError, whole: str) -> str:
    """The fault that a reader should hear of first, in one line; `whole` names the document.

    An unknown key is most often a slip of the pen, and the cause of a missing one.
    """
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    field, shown = ".".join(map(str, first["loc"])) or whole, repr(first["input"])
    fault = "no such field" if first["type"] == "extra_forbidden" else first["msg"]
    fault = fault.removeprefix("Value error, ")  # pydantic's, before what we say ourselves
    got = f" (got {shown})" if len(shown) <= SHOWN_INPUT else ""
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field}: {fault}{got}{more}"
