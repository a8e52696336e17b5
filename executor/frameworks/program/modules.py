"""The Python files of one repository: parsed once, found by the names that an import says.

    from . import model_registry                        the package's `__init__.py`
    from torchtitan.models.llama3.config_registry import llama3_8b
                                                        below the file's folder or one above it, up
                                                        to the repository's own, or a `src` there

Nothing is imported. Leaves out installed packages: their names stay names.
"""

import ast
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.input_limits import MAX_PROGRAM_BYTES, check_lines, check_size
from meshplan.planner.case.reading import UnreadableConfig

MAX_NESTED = 100  # nodes of syntax in each other, from the file down
MAX_MODULES = 60  # of one file's imports; Megatron-Bridge's recipes need 12
_MAX_KEPT = 128  # files whose syntax is kept for the next one of a folder
_ABOVE = 8  # folders above a file in which a package is looked for


@dataclass(slots=True, eq=False)
class Module:
    """A parsed file: its dotted name and folder's, and the names of its own level once needed."""

    name: str
    tree: ast.Module
    path: Path | None
    is_package: bool = False
    names: dict[str, Any] | None = field(default=None)

    def package(self, level: int) -> str:
        """The dotted package that `from ..` of so many dots means."""
        parts = self.name.split(".") if self.name else []
        up = level - (1 if self.is_package else 0)
        return ".".join(parts[: len(parts) - up]) if up <= len(parts) else ""


def parse(text: str) -> ast.Module:
    """The syntax of a Python file; raises `UnreadableConfig`."""
    check_size(text, "a Python file")
    check_lines(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, of the text: `2if` is no config of ours
            tree = ast.parse(text)
    except SyntaxError as error:
        raise UnreadableConfig(f"not Python: {error.msg}", error.lineno or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableConfig(f"not Python that a config needs: {error}") from None
    _check_depth(tree)
    return tree


def _check_depth(tree: ast.Module) -> None:
    """Raise `UnreadableConfig` for expressions or blocks in each other deeper than any config's."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTED):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    if level:
        line = next((node.lineno for node in level if isinstance(node, ast.expr | ast.stmt)), 1)
        raise UnreadableConfig(f"nested more than {MAX_NESTED} deep", line)


class Repository:
    """The files around one: the trees are kept, the names of a `Module` are each program's own.

    tree  the syntax of the file itself
    own   its keyword arguments, whose lines are the file's
    """

    def __init__(self, text: str, path: str) -> None:
        self._path = Path(path).absolute() if path else None
        self.tree = parse(text)
        self.own = {node for node in ast.walk(self.tree) if isinstance(node, ast.keyword)}
        self._found: dict[str, tuple[ast.Module, Path, bool] | None] = {}
        self._met = 0
        self._roots = self._found_roots()

    def _found_roots(self) -> list[Path]:
        """Folders in which a package's folder may lie, the nearest first."""
        if self._path is None:
            return []
        roots: list[Path] = []
        for folder in list(self._path.parents)[:_ABOVE]:
            roots += [folder, folder / "src"]
            if (folder / ".git").exists():
                break
        return roots

    def main(self) -> Module:
        """The file itself, anew: nobody has stored into its names."""
        return Module(self._own_name(), self.tree, self._path)

    def _own_name(self) -> str:
        """The file's dotted name, of the packages that it lies in."""
        if self._path is None:
            return ""
        parts, folder = [self._path.stem], self._path.parent
        while (folder / "__init__.py").is_file() and len(parts) < _ABOVE:
            parts.insert(0, folder.name)
            folder = folder.parent
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(parts)

    def module(self, dotted: str) -> Module | None:
        """The module of that name, None where none of the repository's files is it."""
        if dotted not in self._found:
            self._found[dotted] = self._look_for(dotted)
        found = self._found[dotted]
        return Module(dotted, *found) if found else None

    def _look_for(self, dotted: str) -> tuple[ast.Module, Path, bool] | None:
        parts = dotted.split(".")
        if not all(part.isidentifier() for part in parts) or self._met >= MAX_MODULES:
            return None
        for root in self._roots:
            base = root.joinpath(*parts)
            for file, is_package in (
                (base / "__init__.py", True),
                (base.with_suffix(".py"), False),
            ):
                tree = _tree(file)
                if tree is not None:
                    self._met += 1
                    return tree, file, is_package
        return None


def _tree(file: Path) -> ast.Module | None:
    """A file's syntax; None where it is not there, or is nothing that a configuration imports."""
    try:
        if not file.is_file():
            return None
        about = file.stat()
    except (OSError, ValueError):
        return None
    if about.st_size > MAX_PROGRAM_BYTES:
        return None
    return _parsed(file, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=_MAX_KEPT)
def _parsed(file: Path, size: int, changed: int) -> ast.Module | None:
    """The syntax of a file as it was of that size at that time; the next file imports it too."""
    try:
        return parse(text_of(file))
    except UnreadableConfig:
        return None
