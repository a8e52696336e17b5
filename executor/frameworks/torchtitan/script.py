"""Reads scripts that launch torchtitan with a TOML file (0.2) or a configuration function (0.3).

    torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file llama3_8b.toml \\
        --parallelism.tensor_parallel_degree 4 --compile.enable
    torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b

An option wins over the file (pytorch/torchtitan@v0.2.0 torchtitan/config/manager.py); one without a
value is true, `--compile.no-enable` false (tyro). All facts stand at the line of the launch.
Leaves out: files that lie elsewhere.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from meshplan.executor.frameworks.documents.parse import read_toml
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.shell.launching.arguments import arguments, launcher_arguments
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    left_open,
    said_elsewhere,
    started_with,
)
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.executor.frameworks.shell.sourced import file_of, sourced_text
from meshplan.executor.frameworks.torchtitan.named_function import of_function
from meshplan.executor.frameworks.torchtitan.read import read_sections
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Start, UnreadableConfig

_FILE = re.compile(r"--job\.config[_-]file\b")
_FUNCTION = re.compile(r"-m[ \t\\\n]+torchtitan\.train\b[^#]*--config\b")
_PROGRAM = re.compile(r"torchtitan\.train|(?:.*/)?train\.py")
_ALL_ARGUMENTS = re.compile(r"\$\{?[@*]\}?")
_PRICED = re.compile(r"(?:parallelism|training|model|activation_checkpoint|optimizer)\.(?!dataset)")


def claims(name: str, text: str) -> bool:
    """Whether a script names torchtitan's configuration, a file or a function."""
    named = _FILE.search(text) or _FUNCTION.search(text)
    return name.endswith(SCRIPTS) and named is not None


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The script's launches, each a case; raises `UnreadableConfig` and `IllegalConfig`."""
    script = read_script(text, start.environment if start else None, path)
    found = {
        tuple(str(word.value) for word in words): words
        for words in script.commands
        if any(_FILE.match(str(word.value)) for word in words) or _names_function(words)
    }
    if not found:
        raise NothingToRead("no command of this script takes --job.config_file or --config")
    commands, more = first_of(list(found.values()))
    first, *others = (_case(words, script, path, text) for words in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def _case(words: list[Fact], script: Script, path: str, text: str) -> Reading:
    at = next((at for at, word in enumerate(words) if _PROGRAM.fullmatch(str(word.value))), None)
    if at is None:
        raise NothingToRead("the program is not torchtitan.train: not read", words[0].line)
    options = arguments(
        [word for word in words[at + 1 :] if not _ALL_ARGUMENTS.fullmatch(str(word.value))]
    )
    python = "job.config_file" not in options
    named = options.pop("config" if python else "job.config_file")
    line = named.line
    module = options.pop("module", Fact("", line)) if python else named
    of_file = (
        of_function(named, module, script, path, script.inherited_by(words))
        if python
        else _of_file(named, script, path)
    )
    stated = {**of_file, **_by_key(options, script)}
    reading = read_sections(
        {key: Fact(fact.value, line) for key, fact in stated.items()}, path, python=python
    )
    facts = dict(reading.facts)
    facts |= launched(Values(launcher_arguments(words[:at], script.inherited_by(words))), text)
    said = f"line {line}: the configuration {shown(named.value)}, with the options of the command"
    notes = (*script.notes, *left_open([words]), said, *reading.notes)
    unread = (*said_elsewhere(words, script.missed), *_groups(words[at + 1 :]), *reading.unread)
    return replace(reading, facts=facts, notes=notes, unread=unread)


def _names_function(words: list[Fact]) -> bool:
    """Whether a command starts torchtitan with `--config`."""
    texts = [str(word.value) for word in words]
    return "torchtitan.train" in texts and any(
        text.partition("=")[0] == "--config" for text in texts
    )


def _groups(words: list[Fact]) -> Iterator[Fact]:
    """Words that choose a section's class (tyro: `activation_checkpoint:full-ac.config`), and
    modules that change the model.
    """
    for word in words:
        text = str(word.value)
        if re.fullmatch(r"[a-z_-]+:[\w.:-]+", text):
            yield Fact(f"{text[:60]} (a section's class, chosen by a word)", word.line)
        elif text.startswith("--override."):
            yield Fact(f"{text[:60]} (it may change the model)", word.line)


def _of_file(named: Fact, script: Script, path: str) -> dict[str, Fact]:
    """The facts of the TOML file beside the script; raises `NothingToRead` where none is there."""
    name = str(named.value)
    text = sourced_text(name, path)
    if text is None:
        how = f"; {started_with(name, script.waits)}" if "$" in name else ""
        raise NothingToRead(
            f"a launch script of torchtitan whose configuration {shown(name)} is not below it or a "
            f"folder above it: check that file{how}", named.line
        )  # fmt: skip
    try:
        return read_toml(text)
    except UnreadableConfig as error:
        found = file_of(name, path)
        raise NothingToRead(f"{found}, line {error.line}: {error}", named.line) from None


def _by_key(options: dict[str, Fact], script: Script) -> dict[str, Fact]:
    """The options as a TOML file would state them; raises `UnreadableConfig` on one that is priced
    and that the script leaves open.
    """
    found: dict[str, Fact] = {}
    for name, fact in options.items():
        section, _, key = name.rpartition(".")
        off = key.startswith("no_") and fact.value is True
        key = f"{section}.{key.removeprefix('no_') if off else key}"
        if "$" in str(fact.value) and _PRICED.match(key):
            raise UnreadableConfig(
                f"--{name} is {shown(fact.value)}, which the script does not set; "
                f"{started_with(str(fact.value), script.waits)}", fact.line
            )  # fmt: skip
        found[key] = Fact(False if off else _value(fact.value), fact.line)
    return found


def _value(stated: object) -> object:
    """A word of the command line as TOML would have it."""
    text = str(stated)
    if stated is True or text.lower() in ("true", "false"):
        return stated is True or text.lower() == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:e-?[0-9]{1,3})?", text):
        return float(text)
    return text
