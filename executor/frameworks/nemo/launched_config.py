"""The configuration that a script's program is started with by Hydra, where it lies beside it.

    python examples/nlp/gpt/train_gpt_sft.py --config-path=conf --config-name=gpt_sft model.x=4

`--config-path` is below the program's folder; what the command leaves out, the program's decorator
says (`@hydra_runner(config_path="conf", config_name="gpt_sft")`). The words choose files of groups
(`training=gpt3/20b`, `~training`), and win over entries; `~model.x` takes one away.

Source: facebookresearch/hydra `hydra/_internal/utils.py`; NVIDIA/NeMo@8cfedd72
nemo/core/config/hydra_runner.py.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshplan.executor.frameworks.documents.composed import Composed, composed, merged
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.shell.sourced import file_of, sourced_text
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, UnreadableConfig

_DECORATED = re.compile(r"^@[\w.]*(?:hydra_runner|hydra\.main)\(([^)]{0,400})\)", re.M)
_TAKEN = re.compile(r"~([\w./@-]+)(?:=.*)?")


def launched_config(
    words: Iterable[Fact], given: Mapping[str, Fact], path: str
) -> tuple[Composed, Fact] | None:
    """The file with all that its defaults name, and the word that names it; None where no file
    beside the script is it. Raises `UnreadableConfig`.
    """
    listed = list(words)
    program = next((word for word in listed if str(word.value).endswith(".py")), None)
    if program is None or not any(name in given for name in ("config_name", "config_path")):
        return None
    said = {**_decorated(str(program.value), path), **_given(given)}
    name = said.get("config_name", "").removesuffix(".yaml")
    folder = said.get("config_path", "")
    if not name or folder.startswith("/"):
        return None
    above = str(program.value).rpartition("/")[0]
    place = "/".join(part for part in (above, folder, f"{name}.yaml") if part)
    file = file_of(place, path)
    if file is None:
        return None
    named = given.get("config_name") or given["config_path"]
    try:
        return composed(text_of(file), str(file), _choices(listed, file.parent)), named
    except UnreadableConfig as error:
        raise UnreadableConfig(f"{file.name}, line {error.line}: {error}", named.line) from None


def with_words(
    whole: Composed,
    stated: Mapping[str, Fact],
    words: Iterable[Fact],
    environment: Mapping[str, str],
    line: int,
) -> dict[str, Fact]:
    """The entries of a file at the `line` of its name, and those that words state over them."""
    found = {name.removeprefix("training."): Fact(fact.value, line)
             for name, fact in whole.found.items()}  # fmt: skip
    found = merged(found, stated)
    for word in words:
        if match := _TAKEN.fullmatch(str(word.value)):
            taken = match[1]
            found = {name: fact for name, fact in found.items()
                     if name != taken and not name.startswith(f"{taken}.")}  # fmt: skip
    return resolved(found, whole.text, environment)


def _given(given: Mapping[str, Fact]) -> dict[str, str]:
    return {name: str(given[name].value) for name in ("config_name", "config_path")
            if name in given}  # fmt: skip


def _decorated(program: str, path: str) -> dict[str, str]:
    """What the program's own decorator says."""
    match = _DECORATED.search(sourced_text(program, path) or "")
    if match is None:
        return {}
    return dict(re.findall(r"(config_name|config_path)\s*=\s*['\"]([^'\"]*)['\"]", match[1]))


def _choices(words: Iterable[Fact], folder: Path) -> dict[str, str | None]:
    """The groups that words choose a file of: those that have a folder of files."""
    choices: dict[str, str | None] = {}
    for word in words:
        group, equals, name = str(word.value).lstrip("+~").partition("=")
        plain = re.fullmatch(r"[\w/]+", group) is not None
        if plain and (equals or str(word.value).startswith("~")) and (folder / group).is_dir():
            choices[group] = None if str(word.value).startswith("~") else name
    return choices
