"""The files that a trainer's file or a script names: those that the script writes itself, and those
that lie beside it or below a folder above it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact


@dataclass(frozen=True, slots=True)
class Nearby:
    """What a file at `path` may name.

    written  the files of its here-documents, by name
    shipped  those that its trainer brings along, by the end of their path
    """

    path: Path
    written: Mapping[str, str] = field(default_factory=dict)
    shipped: Mapping[str, str] = field(default_factory=dict)

    def here(self, name: str) -> str | None:
        """The text that the script writes into the file `name`; None where it writes none."""
        named = (text for each, text in self.written.items() if normpath(each) == normpath(name))
        return next(named, None)

    def text(self, name: str) -> str | None:
        """The text of the file `name`, the script's own first, which is there when its program
        starts; None where it is in neither place. Raises `UnreadableConfig`.
        """
        own = self.here(name)
        found = beside(name, self.path) if own is None else None
        return text_of(found) if found else own

    def moved(self, name: str) -> str | None:
        """The text of the file beside `path` that is called as the file `name` of an absolute path:
        the run's files were copied from the machine that it ran on. None where there is none.
        """
        found = self.path.parent / Path(name).name
        return text_of(found) if Path(name).is_absolute() and found.is_file() else None

    def of_trainer(self, name: str) -> str | None:
        """The text of the trainer's own file that `name` ends in; None where it has none."""
        ends = (text for end, text in self.shipped.items() if f"/{name}".endswith(f"/{end}"))
        return next(ends, None)


def known_files(stated: Mapping[str, Fact], near: Nearby) -> tuple[dict[str, Fact], Nearby]:
    """The arguments with a plain name for each file that the script writes into a folder that it
    leaves open (`run_$(date +%s)/ds.json`), and `near` with that file by that name.
    """
    named = {
        name: fact.value.replace("$", "_")
        for name, fact in stated.items()
        if isinstance(fact.value, str) and "$" in fact.value and near.here(fact.value) is not None
    }
    known = {name: Fact(plain, stated[name].line) for name, plain in named.items()}
    written = {plain: near.here(stated[name].value) or "" for name, plain in named.items()}
    return {**stated, **known}, replace(near, written={**near.written, **written})
