"""One run of Megatron-Bridge or NeMo, as a file, a launch or a recipe says it."""

from collections.abc import Mapping
from dataclasses import field

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.reading import Fact


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its entries, GPUs, what is not understood, notes.

    waits    what of the script's start decided a condition; None: not of a script
    unknown  entries that are stated, and whose values are not known, by their words
    whole    whether nothing is left to a recipe: it was read
    model    the catalogue's name of its model, where a recipe says it
    gpus_open  what of its launch leaves the GPUs open, where no entry states them
    named    how a recipe names a model that is not in the catalogue
    """

    found: Mapping[str, Fact]
    gpus: Fact | None = None
    unread: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    waits: tuple[str, ...] | None = None
    unknown: Mapping[str, Fact] = field(default_factory=dict)
    whole: bool = False
    model: Fact | None = None
    gpus_open: Fact | None = None
    named: str = ""
