"""YAML that other files are a part of: Hydra's defaults list, and files that name their parents.

    defaults:
      - training: gpt3/5b                the file training/gpt3/5b.yaml, below `training`
      - actor@run.actor: dp              actor/dp.yaml, below `run.actor`
      - base                             base.yaml beside it, at the top
      - _self_                           where this file's own entries come; else behind the others
    defaults: ../sft.yaml                NeMo RL's and Nemotron's: one or more files beside it

Files lie below the first one's folder, and each is merged as OmegaConf does: sections entry by
entry, anything else whole, `???` never. An item that is not there is left, and said; so is what is
composed by code (a search path, `hydra.*`).

Source: facebookresearch/hydra `hydra/_internal/defaults_list.py`, `core/default_element.py`;
NVIDIA-NeMo/RL@7ea279ab nemo_rl/utils/config.py (`load_config_with_inheritance`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, UnreadableConfig
from meshplan.planner.case.yaml_text import CYAML

MAX_FILES = 50  # of one composition; verl's trainer has 21
_LISTED = re.compile(r"^defaults[ \t]*:", re.M)
_PACKAGE = re.compile(r"^#[ \t]*@package[ \t]+(\S+)", re.M)
_EMPTY = re.compile(r":[ \t]*\{[ \t]*\}")
_CHOICE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_PLAIN = re.compile(r"[\w./-]+")
_MISSING = "???"
_TOP = "/"
_SHOWN = 6
_OWN = "_override_"
"""NeMo RL's mark of a section of the top level that replaces its parent's whole."""


@dataclass(frozen=True, slots=True)
class Composed:
    """The entries of a file and of those that its defaults name, each at its line of the first.

    files  the names of the others
    left   items that are not read
    text   all that was read
    """

    found: dict[str, Fact]
    files: tuple[str, ...] = ()
    left: tuple[Fact, ...] = ()
    text: str = ""

    def notes(self) -> tuple[str, ...]:
        """A note that names the other files."""
        if not self.files:
            return ()
        named = ", ".join(dict.fromkeys(self.files[:_SHOWN]))
        more = f" and {len(self.files) - _SHOWN} more" if len(self.files) > _SHOWN else ""
        return (f"read with what its defaults name: {named}{more}",)


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of a defaults list; `name` None: nothing is chosen."""

    group: str
    package: str | None
    name: str | None
    line: int
    optional: bool = False
    replaces: bool = False


@dataclass(slots=True)
class _State:
    folder: Path
    choices: dict[str, str | None]
    files: list[str] = field(default_factory=list)
    left: list[Fact] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open: list[Path] = field(default_factory=list)


def composed(text: str, path: str, choices: Mapping[str, str | None] | None = None) -> Composed:
    """The file `text` at `path` with what its defaults name; raises `UnreadableConfig`.

    choices  what a command line chooses for groups (`training=gpt3/5b`), None to leave one out
    """
    if _LISTED.search(text) is None and not choices:
        return Composed(read_yaml(text), text=text)
    file = Path(path)
    state = _State(file.parent, dict(choices or {}), texts=[text])
    state.open.append(file.absolute())
    found = _of_text(text, "", state, None)
    found = merged({}, {name.removeprefix(_TOP): fact for name, fact in found.items()})
    return Composed(found, tuple(state.files), tuple(state.left), "\n".join(state.texts))


def merged(base: Mapping[str, Fact], more: Mapping[str, Fact]) -> dict[str, Fact]:
    """`more` over `base`: a section's entries one by one, anything else whole."""
    sections = {name[:at] for name in more for at, char in enumerate(name) if char == "."}
    marks = (name for name, fact in more.items() if fact.value is True and name.count(".") == 1)
    replaced = {name.partition(".")[0] for name in marks if name.endswith(f".{_OWN}")}
    replaced |= {name for name, fact in more.items()
                 if name not in sections and fact.value != _MISSING}  # fmt: skip
    found = {name: fact for name, fact in base.items() if not _below(name, replaced)}
    for name, fact in more.items():
        waits = fact.value == _MISSING and name in found
        if not (waits or name.endswith(f".{_OWN}")):
            found[name] = fact
    return found


def _below(name: str, sections: set[str]) -> bool:
    return any(name[:at] in sections for at, char in enumerate(name) if char == ".")


def _of_text(text: str, group: str, state: _State, line: int | None) -> dict[str, Fact]:
    """A file of the folder `group` with its own defaults, at `line` of the first file."""
    own = _without_empty(read_yaml(text), text)
    items = list(_items(text, own)) if _LISTED.search(text) else []
    own = {name: fact for name, fact in own.items() if name.partition(".")[0] != "defaults"}
    own = {name: fact if line is None else Fact(fact.value, line) for name, fact in own.items()}
    for item in items:
        if item.replaces and item.package is not None:
            why = "of one place of several: not followed"
            state.left.append(Fact(f"defaults override {item.group}@{item.package} ({why})", 1))
        elif item.replaces:
            state.choices.setdefault(item.group.lstrip("/"), item.name)
    chosen = [item for item in items if not item.replaces]
    if line is None:
        added = set(state.choices) - {item.group.lstrip("/") for item in items}
        chosen += [_Item(name, None, state.choices[name], 1) for name in sorted(added)]
    found: dict[str, Fact] = {}
    if not any(item.name == "_self_" for item in chosen):
        chosen.append(_Item("", None, "_self_", 1))
    for item in chosen:
        if item.name == "_self_" and not item.group:
            found = merged(found, own)
        else:
            found = _with(found, item, group, state, line)
    return found


def _without_empty(own: dict[str, Fact], text: str) -> dict[str, Fact]:
    """The entries less empty mappings (`a: {}`), which replace nothing, as null does."""
    lines = text.splitlines()
    return {name: fact for name, fact in own.items()
            if fact.value is not None or not _EMPTY.search(lines[fact.line - 1])}  # fmt: skip


def _with(
    found: dict[str, Fact], item: _Item, group: str, state: _State, line: int | None
) -> dict[str, Fact]:
    """`found` with the file that an item chooses."""
    below = _folder(item, group)
    name = state.choices.get(below, item.name) if item.group else item.name
    at = item.line if line is None else line
    if name is None or below.startswith("hydra"):
        return found
    name = _CHOICE.sub(lambda match: str(state.choices.get(match[1], match[0])), name)
    file = _file(name, below, state)
    if file is None:
        if not item.optional:
            said = f"{item.group}: {name}" if item.group else name
            why = "a file of defaults that is not there; what it says is not known"
            state.left.append(Fact(f"defaults {said[:60]!r} ({why})", at))
        return found
    if item.group:
        state.choices.setdefault(below, name)
    if file.absolute() in state.open:
        raise UnreadableConfig(f"defaults that name each other: {file.name}", at)
    if len(state.files) >= MAX_FILES:
        raise UnreadableConfig(f"defaults of more than {MAX_FILES} files; no config has", at)
    return _read(found, item, file, below, state, at)


def _read(
    found: dict[str, Fact], item: _Item, file: Path, below: str, state: _State, line: int
) -> dict[str, Fact]:
    """`found` with the file that is chosen, below its package."""
    text, folder = text_of(file), state.folder
    state.files.append(file.name)
    state.texts.append(text)
    state.open.append(file.absolute())
    state.folder = file.parent if _is_parent(item) else folder
    try:
        inner = _of_text(text, "" if _is_parent(item) else below, state, line)
    except UnreadableConfig as error:
        at = f", line {error.line}" if not str(error).startswith("defaults") else ""
        raise UnreadableConfig(f"{file.name}{at}: {error}", line) from None
    finally:
        state.open.pop()
        state.folder = folder
    package = _package(item, text)
    placed = {name if name.startswith(_TOP) else f"{package}{name}": fact
              for name, fact in inner.items()}  # fmt: skip
    return merged(found, placed)


def _folder(item: _Item, group: str) -> str:
    """The folder of an item's file, from the first file's: below that of the file that names it."""
    if item.group.startswith("/") or (not item.group and str(item.name).startswith("/")):
        return item.group.lstrip("/")
    return "/".join(part for part in (group, item.group) if part)


def _package(item: _Item, text: str) -> str:
    """Where a file's entries go, with a dot behind it: below those of the file that names it, or
    from the top, which `_TOP` marks.
    """
    group = item.group.strip("/").replace("/", ".")
    stated = _PACKAGE.search(text)
    package = item.package if item.package is not None else stated[1] if stated else group
    if package in ("_group_", "_here_"):
        package = group if package == "_group_" else ""
    top = package == "_global_" or package.startswith("_global_.")
    absolute = top or (item.package is None and stated is not None and stated[1] != "_group_")
    package = package.removeprefix("_global_").removeprefix(".")
    return (_TOP if absolute else "") + (f"{package}." if package else "")


def _is_parent(item: _Item) -> bool:
    """Whether an item is a file's path, as NeMo RL and Nemotron have it."""
    return not item.group and str(item.name).endswith((".yaml", ".yml"))


def _file(name: str, below: str, state: _State) -> Path | None:
    """The file of a choice: in the group's folder, or of a path beside the file that names it."""
    if not _PLAIN.fullmatch(name) or (name.startswith("/") and below):
        return None
    plain = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    file = state.folder / below / plain.lstrip("/")
    try:
        return file if file.is_file() else None
    except OSError:
        return None


def _items(text: str, own: Mapping[str, Fact]) -> Iterator[_Item]:
    """The items of a file's defaults list, which may be one word."""
    node = yaml.compose(text, Loader=CYAML)
    assert isinstance(node, yaml.MappingNode), "read_yaml has read it"
    for key, value in node.value:
        if key.value != "defaults":
            continue
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            yield from _item(each)


def _item(node: yaml.Node) -> Iterator[_Item]:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        yield _Item("", None, str(node.value), line)
        return
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        words = str(key.value).split()
        group, _, package = words[-1].partition("@")
        listed = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for each in listed:
            plain = str(each.value) if isinstance(each, yaml.ScalarNode) else ""
            name = None if plain.lower() in ("null", "~", "") else plain
            yield _Item(group, package or None, name, line,
                        "optional" in words[:-1], "override" in words[:-1])  # fmt: skip
