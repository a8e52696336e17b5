"""Scripts that a YAML or JSON document holds: the command of a job (Kubernetes, SkyPilot, Azure).

A string is a script of its own. A list of strings is one command, as `args` of a container are,
unless one of its strings holds the flags itself (`["bash", "-c", "torchrun ... --num-layers 32"]`).
Its variables (`variables`) and its GPUs (`gpus`) are read; what else it says is not. In a
container's words `$(NAME)` is what its own `env` says, where it says a value (Kubernetes' API,
Container v1: `args`); else it stays.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from meshplan.executor.frameworks.shell.jobs.gpus import gpus_of_job
from meshplan.executor.frameworks.shell.jobs.variables import container_variables, variables_of
from meshplan.planner.case.reading import Fact, NothingToRead, UnreadableConfig
from meshplan.planner.case.yaml_text import CYAML, check_yaml

DOCUMENTS = (".yaml", ".yml", ".json")


_NAMED = re.compile(r"\$(\$?)\(([A-Za-z_][\w.-]*)\)")


@dataclass(frozen=True, slots=True)
class Job:
    """The script of a job, the variables that its document sets, and the GPUs that it asks for, 0
    where their number is not known.
    """

    script: str
    variables: dict[str, str]
    gpus: Fact | None


def job_of(text: str, mark: str) -> Job:
    """The scripts of a document that hold the flag `mark`, each at the line it has there.

    Raises `NothingToRead` where none does, `UnreadableConfig` on what is no YAML.
    """
    lines: list[str] = []
    for line, script in sorted(_scripts(text, mark)):
        lines += [""] * (line - 1 - len(lines))
        lines += script.splitlines()
    if not lines:
        raise NothingToRead(f"no command in this document takes {mark}")
    documents = parsed_documents(text)
    return Job("\n".join(lines) + "\n", variables_of(documents), gpus_of_job(documents))


def _scripts(text: str, mark: str) -> Iterator[tuple[int, str]]:
    pending = parsed_documents(text)
    seen: dict[int, yaml.Node] = {}  # by identity, and kept so that none is used twice
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue  # an alias stands for what was looked at already
        seen[id(node)] = node
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            pending += _entries(node)
        elif isinstance(node, yaml.SequenceNode) and not _is_command(node, mark):
            pending += node.value
        elif isinstance(node, yaml.SequenceNode):
            yield line, shlex.join(word.value for word in node.value)
        elif isinstance(node, yaml.ScalarNode) and _holds(node.value, mark):
            yield line + (node.style in ("|", ">")), node.value


def parsed_documents(text: str) -> list[yaml.Node | None]:
    """The documents of a text in YAML; raises `UnreadableConfig`."""
    try:
        check_yaml(text)
        return list(yaml.compose_all(text, Loader=CYAML))
    except yaml.YAMLError as error:
        place, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = place.line + 1 if place else 1
        raise UnreadableConfig(f"not YAML: {what or 'no text'}", line) from None


def _entries(node: yaml.MappingNode) -> list[yaml.Node]:
    """The values of a mapping; the words of a container's `command` and `args` are one list."""
    named = {str(key.value): value for key, value in node.value}
    known = container_variables(named.get("env"))
    for name in {"command", "args"} & named.keys() if known else ():
        named[name] = _expanded(named[name], known)
    first, rest = named.get("command"), named.get("args")
    if isinstance(first, yaml.SequenceNode) and isinstance(rest, yaml.SequenceNode):
        words = [*first.value, *rest.value]
        del named["command"]
        named["args"] = yaml.SequenceNode(rest.tag, words, rest.start_mark, rest.end_mark)
    return list(named.values())


def _expanded(node: yaml.Node, known: dict[str, str]) -> yaml.Node:
    """A container's word or words with `$(NAME)` as its variables say; `$$(NAME)` is `$(NAME)`."""

    def said(match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else known.get(match[2], match[0])

    if isinstance(node, yaml.SequenceNode):
        words = [_expanded(each, known) for each in node.value]
        return yaml.SequenceNode(node.tag, words, node.start_mark, node.end_mark)
    if not isinstance(node, yaml.ScalarNode):
        return node
    value = _NAMED.sub(said, node.value)
    return yaml.ScalarNode(node.tag, value, node.start_mark, node.end_mark, node.style)


def _is_command(node: yaml.SequenceNode, mark: str) -> bool:
    """Whether a list's strings are the words of one command: none holds the flag among others."""
    words = [each.value for each in node.value if isinstance(each, yaml.ScalarNode)]
    if len(words) < len(node.value) or not any(_holds(word, mark) for word in words):
        return False
    return not any(_holds(word, mark) and len(word.split()) > 1 for word in words)


def _holds(text: str, mark: str) -> bool:
    return any(word.partition("=")[0] == mark for word in text.split())
