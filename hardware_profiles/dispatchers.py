"""Libraries that bring tokens to experts, and where they run (`dispatchers.toml`)."""

import tomllib
from functools import cache
from pathlib import Path

from meshplan.hardware_profiles.frozen import Frozen

FILE = Path(__file__).parent / "dispatchers.toml"


class Dispatch(Frozen):
    """One library.

    gpus             names of the accelerators it is built for
    ranks            sizes of a group that it has kernels for, None: any
    ranks_of_a_node  that a larger group has on each of its nodes, None: any number
    """

    title: str
    gpus: tuple[str, ...]
    ranks: tuple[int, ...] | None = None
    ranks_of_a_node: int | None = None
    sources: dict[str, str]


@cache
def load_dispatchers() -> dict[str, Dispatch]:
    """The libraries by name."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Dispatch.model_validate(entry) for name, entry in found.items()}
