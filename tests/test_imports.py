"""Imports run one way: between the four packages, and between the rooms of each."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("hardware_profiles", "costmodels", "planner", "executor")
"""Each may import those before it."""
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


@cache
def imports_of(path: Path) -> tuple[list[ast.AST], list[ast.AST]]:
    """The statements of a file that import anything: at its top level, and all."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top, every = (
        [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        for nodes in (tree.body, statements(tree))
    )
    return top, every


def statements(within: ast.AST) -> Iterator[ast.AST]:
    """All statements, at any depth: no expression holds one."""
    for block in BLOCKS:
        for node in getattr(within, block, ()):
            yield node
            yield from statements(node)


def imports(path: Path, *, at_start: bool) -> list[str]:
    """Modules of the project that a file imports; `at_start`: when it is itself imported."""
    found = []
    for node in imports_of(path)[not at_start]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshplan"):
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("meshplan.")]
    return [module.removeprefix("meshplan.") for module in found]


def room(module: str, within: str) -> str:
    """The sub-package of `within` that a module is in, or the module beside the sub-packages."""
    return ".".join(module.split(".")[: within.count(".") + 2])


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    """hardware_profiles <- costmodels <- planner <- executor; commands import later ones inside."""
    later = PACKAGES[PACKAGES.index(package) + 1 :]
    for path in (ROOT / package).rglob("*.py"):
        wrong = [name for name in imports(path, at_start=True) if name.split(".")[0] in later]
        assert wrong == [], path


@pytest.mark.parametrize(
    "package",
    [
        "costmodels",
        "planner",
        "planner.search",
        "executor.frameworks",
        "executor.engine",
        "executor.profile",
    ],
)
def test_rooms_import_one_way(package: str) -> None:
    """No room of a package needs, through any others, a room that needs it."""
    needs: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
        own = room(".".join(path.relative_to(ROOT).with_suffix("").parts), package)
        inside = (name for name in imports(path, at_start=False) if name.startswith(f"{package}."))
        needs[own] |= {room(name, package) for name in inside} - {own}
    assert len(needs) > 5
    TopologicalSorter(needs).prepare()  # raises if some are in a circle


def test_no_module_needs_one_that_needs_it() -> None:
    """Of all four packages, imports inside functions and for types included."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    needs = {
        own: {
            needed
            for name in imports(path, at_start=False)
            for needed in (name, name.rpartition(".")[0])  # `from module import name`
            if needed in modules
        }
        for own, path in modules.items()
    }
    assert sum(map(len, needs.values())) > 1000
    TopologicalSorter(needs).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_rooms(package: str) -> None:
    """Who opens a package reads what each of its rooms is for."""
    said = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert [name for name in sorted(rooms) if not re.search(rf"(?m)^    {name} +\S", said)] == []


def test_an_install_has_one_name() -> None:
    """src/meshplan leads to the four packages and holds nothing else but the command."""
    inside = sorted(path.name for path in (ROOT / "src" / "meshplan").iterdir())
    assert [name for name in inside if name != "__pycache__"] == [
        "__init__.py", "__main__.py", *sorted((*PACKAGES, "py.typed")),
    ]  # fmt: skip
    assert all((ROOT / "src" / "meshplan" / name).resolve() == ROOT / name for name in PACKAGES)
