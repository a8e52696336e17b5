"""A trainer's configuration inside a ConfigMap of Kubernetes, with the GPUs of the job beside it.

    kind: ConfigMap
    data:
      llama3_8B.toml: |
        [training] ...

Every entry of `data` is a file (Kubernetes' API, ConfigMap v1); the one that a reader takes is read
at the lines that it has in the document. Of a job in the same file its GPUs are read
(`shell.jobs.gpus`). Options of its command, which may replace what the file states, are named and
not taken.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import yaml

from meshplan.executor.frameworks.shell.jobs.documents import DOCUMENTS, parsed_documents
from meshplan.executor.frameworks.shell.jobs.gpus import gpus_of_job
from meshplan.planner.case.reading import Fact, Reading, Start, UnreadableConfig

_MARK = re.compile(r"^[ \t\"]*kind\"?:[ \t]*[\"']?ConfigMap\b", re.M)
_CONFIGS = (".toml", ".yaml", ".yml", ".json")
_OF_A_TRAINING = ("deepspeed", "accelerate")
"""Formats that a training's own arguments name: not a configuration without these."""
_DOTTED = re.compile(r"--[\w-]+\.[\w.-]+")
_OVERRIDE = re.compile(r"\+{0,2}\w+\.[\w.]+=")
"""`model.x=1`, as Hydra takes it."""
_NAMES_FILE = ("--job.config_file", "--job.config-file")


class Known(Protocol):
    """A format that is read."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def read(self) -> Callable[[str, str, Start | None], Reading]:
        """Its reader."""


Recognise = Callable[[str, str], Known | None]
Entry = tuple[str, yaml.ScalarNode, Known]
"""A file's name, its text, and the format that it is of."""


def claims(name: str, text: str, recognise: Recognise) -> bool:
    """Whether a document has a ConfigMap that holds a configuration."""
    if not name.endswith(DOCUMENTS) or not _MARK.search(text):
        return False
    try:
        return bool(_configs(parsed_documents(text), recognise))
    except UnreadableConfig:
        return False


def read(text: str, path: str, start: Start | None, recognise: Recognise) -> Reading:
    """The one configuration of the document; raises `UnreadableConfig` and `IllegalConfig`."""
    documents = parsed_documents(text)
    found = _configs(documents, recognise)
    if len(found) > 1:
        names = ", ".join(f"data.{name}" for name, _, _ in found)
        raise UnreadableConfig(
            f"a ConfigMap of {len(found)} configurations ({names}): save the one that is run as a "
            "file of that name", found[1][1].start_mark.line + 1,
        )  # fmt: skip
    ((name, node, known),) = found
    before = node.start_mark.line + (node.style in ("|", ">"))
    reading = known.read("\n" * before + node.value, str(Path(path).with_name(name)), start)
    gpus = gpus_of_job(documents)
    facts = {**({"gpus": gpus} if gpus and gpus.value else {}), **reading.facts}
    options = tuple(_options(documents, name))
    return replace(reading, path=path, facts=facts, unread=(*reading.unread, *options))


def _configs(documents: list[yaml.Node | None], recognise: Recognise) -> list[Entry]:
    """The files of ConfigMaps that a reader takes as a training's configuration."""
    found = []
    for name, node in _files(documents):
        known = recognise(name, node.value) if name.endswith(_CONFIGS) else None
        if known and known.name not in _OF_A_TRAINING:
            found.append((name, node, known))
    return found


def _files(documents: list[yaml.Node | None]) -> Iterator[tuple[str, yaml.ScalarNode]]:
    for document in documents:
        data = _named(document).get("data") if _is_map(document) else None
        for name, node in _named(data).items():
            if isinstance(node, yaml.ScalarNode):
                yield Path(name).name, node


def _is_map(document: yaml.Node | None) -> bool:
    kind = _named(document).get("kind")
    return isinstance(kind, yaml.ScalarNode) and kind.value == "ConfigMap"


def _named(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _options(documents: list[yaml.Node | None], name: str) -> Iterator[Fact]:
    """What a command says beside the file `name`: options behind it, and those by section."""
    why = f"an option of the job's command; save data.{name} as {name} and the command as a script"
    for line, words in _commands([each for each in documents if not _is_map(each)]):
        at = next((at for at, word in enumerate(words) if word.endswith(name)), len(words))
        for place, word in enumerate(words):
            flag = word.partition("=")[0]
            behind = place > at and word.startswith("--")
            ours = behind or _DOTTED.fullmatch(flag) or _OVERRIDE.match(word)
            if ours and flag not in _NAMES_FILE:
                yield Fact(f"{word} ({why} beside it)", line)


def _commands(documents: list[yaml.Node | None]) -> Iterator[tuple[int, list[str]]]:
    """Lists of words, and the words of each other text, by the lines that they begin at; each once,
    however often an alias stands for it.
    """
    pending: list[yaml.Node | None] = [*documents]
    seen: dict[int, yaml.Node | None] = {}
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, yaml.MappingNode):
            pending += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            texts = [each for each in node.value if isinstance(each, yaml.ScalarNode)]
            pending += [each for each in node.value if not isinstance(each, yaml.ScalarNode)]
            yield node.start_mark.line + 1, " ".join(each.value for each in texts).split()
        elif isinstance(node, yaml.ScalarNode):
            yield node.start_mark.line + 1, node.value.split()
