"""Scripts that leave the launch to another script beside them: `bash train_common.sh --x`,
`sbatch inner.sh`, `source args.sh`.

What is called is read as it is started: with the variables that are exported to it and with its
arguments. Source: GNU Bash manual 5.2, 3.7.3 Command Execution Environment, 4.1 `.`;
SchedMD/slurm, man page of sbatch (`--export`, options before the script). `find` says how many
levels of scripts that only call are followed; more are left out.

    sbatch --nodes=8 inner.sh     its options win over the `#SBATCH` lines of inner.sh
    mpirun -np 32 bash inner.sh   32 GPUs, where inner.sh starts no more processes
    bash inner.sh                 those of the `#SBATCH` lines of the script that calls
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.shell.launching.arguments import launcher_arguments
from meshplan.executor.frameworks.shell.launching.gpus import gpus_of, is_job, without_header
from meshplan.executor.frameworks.shell.launching.launches import MAX_CASES
from meshplan.executor.frameworks.shell.launching.ranks import started, starts_more
from meshplan.executor.frameworks.shell.launching.starters import open_count
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.executor.frameworks.shell.sourced import file_of, sourced_text
from meshplan.executor.frameworks.shell.work import shared_work
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.reading import (
    Fact,
    IllegalConfig,
    NothingToRead,
    Reading,
    Start,
    UnreadableConfig,
)

Read = Callable[[str, str, Start | None], Reading]
Find = Callable[[str, str], Read | None]
"""The reader of the format that claims a path with a text, None where none does."""

_NAMED = re.compile(
    r"(?:(?<=[)\"'}])/)?(?:\$\{\w+:?[-=])?(/?[^\s\"'`|;&()<>=/][^\s\"'`|;&()<>=]*\.(?:sh|slurm|sbatch|bash))\b"
)
"""A script's name, less the `/` behind `$(dirname "$0")` or `"$HERE"`, and the variable whose
default it is (`${INNER:-train.sh}`)."""
_SOURCES = re.compile(r"[ \t]*(?:source|\.)[ \t]")
_EXPORTS = re.compile(r"--export=(\S+)")
_MOST = 16  # files looked at of one script, and calls followed
MOST_INNER = 4  # the same of a script that another one calls


@dataclass(frozen=True, slots=True)
class _Call:
    """A script that another one calls.

    given   variables of its environment by name, its arguments by number
    header  `#SBATCH` lines that win over its own: the options of sbatch
    words   those that start it, and its name; none of sbatch, which starts a job of its own
    """

    line: int
    inner: Path
    given: Mapping[str, str]
    header: str = ""
    words: tuple[Fact, ...] = ()


def calls(text: str, path: str, find: Find, most: int = _MOST) -> bool:
    """Whether a script names another one beside it that is of a format that is read, among the
    first `most`.
    """
    return path.endswith(SCRIPTS) and any(_named(text, path, find, most))


def _named(text: str, path: str, find: Find, most: int = _MOST) -> Iterator[tuple[str, Read]]:
    """The lines that name such a script, each with the reader that claims it."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    named = ((line, name) for line in lines for name in _NAMED.findall(line))
    for line, name in islice(named, most):
        found = file_of(name, path)
        inner = sourced_text(name, path) if found else None
        if inner is not None and (reader := find(str(found), inner)):
            yield line, reader


def read_calls(text: str, path: str, start: Start | None, find: Find, most: int = _MOST) -> Reading:
    """The launches of the scripts that this one sources or calls, each a case, of the first `most`
    calls; all that are followed spend of the same work.
    """
    with shared_work():
        return _read_calls(text, path, start, find, most)


def _read_calls(text: str, path: str, start: Start | None, find: Find, most: int) -> Reading:
    for line, reader in _named(text, path, find):
        if _SOURCES.match(line):
            with _as_nothing(""):
                return reader(text, path, start)
    start = start or Start()
    script = read_script(text, start.environment, path)
    calls_of = {
        _identity(call): call
        for words, inherited in zip(script.commands, script.exported, strict=True)
        for call in _called(words, path, inherited)
    }
    cases, missed = _all_cases([*calls_of.values()][:most], start, text, find)
    left = [error for error in missed if isinstance(error, _NotRead)]
    if not cases:
        why = NothingToRead("no command of this script calls another one that is read")
        raise next(iter((*left, *missed, why)))
    notes = [f"calls that are not read: {len(left)}; the first: {left[0]}"] if left else []
    if len(calls_of) > most:
        notes.append(f"{len(calls_of)} calls: the first {most} are judged")
    if len(cases) > MAX_CASES:
        notes.append(f"over {MAX_CASES} launches: the first {MAX_CASES} are judged")
    others = tuple(cases[1:MAX_CASES])
    return replace(cases[0], others=others, notes=(*notes, *cases[0].notes))


def _all_cases(
    called: list[_Call], start: Start, text: str, find: Find
) -> tuple[list[Reading], list[NothingToRead]]:
    """What the scripts launch that `text` calls, up to more than are judged of one script, and why
    the others have nothing to read.
    """
    cases: list[Reading] = []
    missed: list[NothingToRead] = []
    for call in called:
        if len(cases) > MAX_CASES:
            break
        try:
            found = [*_cases(call, start, text, find)]
        except NothingToRead as error:
            missed.append(error)
        else:
            cases += [_placed(case, call.line, call.inner.name) for case in found]
    return cases, missed


class _NotRead(NothingToRead):
    """Of a script that launches what its text does not say."""


@contextmanager
def _as_nothing(name: str) -> Iterator[None]:
    """What another script's text cannot say is said of that one where a folder is judged: this one
    is skipped then, and unreadable where it is named. Lines are those of the script `name`.
    """
    try:
        yield
    except (UnreadableConfig, IllegalConfig) as error:
        trains_nothing = isinstance(error, NothingToRead) and not isinstance(error, _NotRead)
        unread = NothingToRead if trains_nothing else _NotRead
        kind = unread if isinstance(error, UnreadableConfig) else IllegalConfig
        said = f"{name}, line {error.line}: {error}" if name else str(error)
        raise kind(said, 1 if name else error.line) from None


def _called(words: list[Fact], path: str, inherited: Mapping[str, str]) -> Iterator[_Call]:
    """The script that a command calls, with its arguments by number and what sbatch is told."""
    texts = [str(word.value) for word in words]
    for at, name in enumerate(texts):
        if not name.startswith("-") and name.endswith(SCRIPTS) and (found := file_of(name, path)):
            numbered = {str(number): text for number, text in enumerate(texts[at + 1 :], start=1)}
            given = {**inherited, **numbered}
            if texts[0] == "sbatch":
                header, exported = _of_sbatch(texts[1:at])
                ours = {key: text for key, text in given.items() if not key.startswith("SLURM_")}
                yield _Call(words[0].line, found, ours | exported, header)
            else:
                yield _Call(words[0].line, found, given, words=tuple(words[: at + 1]))
            return


def _identity(call: _Call) -> tuple[object, ...]:
    """What two calls of one script must share to be the same launch."""
    ranks = started(call.words).get("ranks")
    return call.inner, call.header, ranks and ranks.value, *sorted(call.given.items())


def _of_sbatch(options: list[str]) -> tuple[str, dict[str, str]]:
    """The options of sbatch as `#SBATCH` lines, and the variables of its `--export`."""
    line = " ".join(" ".join(options).split())  # a header's lines end where an option does
    exported = _EXPORTS.search(line)
    pairs = (pair.partition("=") for pair in exported[1].split(",")) if exported else ()
    header = "".join(f"#SBATCH {option}\n" for option in re.split(r" (?=-)", line) if option)
    return header, {name: value for name, sign, value in pairs if sign}


def _placed(case: Reading, line: int, name: str) -> Reading:
    """The case with its facts at the line that calls: those of the script `name` are not of the
    file that is judged.
    """

    def at(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
        return tuple(Fact(fact.value, line) for fact in facts)

    return replace(
        case,
        facts={key: Fact(fact.value, line) for key, fact in case.facts.items()},
        placement=replace(case.placement, line=line),
        unread=at(case.unread),
        unread_if_accumulated=at(case.unread_if_accumulated),
        notes=(f"line {line}: as {name} is called; lines are those of {name}", *case.notes),
    )


def _cases(call: _Call, start: Start, text: str, find: Find) -> Iterator[Reading]:
    inner = call.inner
    own = sourced_text(inner.name, str(inner.parent / "-")) or ""
    starter = launcher_arguments([*call.words])
    if call.words and (is_job(text) or starter.keys() & {"ranks", "nodes"}):
        own = without_header(own)  # no sbatch reads it
    if reader := find(str(inner), own):
        wins = f"\n#!/bin/bash\n{call.header}" if call.header else ""  # a header of its own, last
        with _as_nothing(inner.name):
            reading = reader(own + wins, str(inner), replace(start, environment=call.given))
        gpus, left = _gpus_of(starter, text, own) if call.words else (None, None)
        for case in (replace(reading, others=()), *reading.others):
            facts = {"gpus": gpus, **case.facts} if gpus else case.facts
            if left and "gpus_open" in facts:
                facts = {**facts, "gpus_open": left}
            yield replace(case, facts=facts)


def _gpus_of(starter: Mapping[str, Fact], text: str, own: str) -> tuple[Fact | None, Fact | None]:
    """GPUs by what starts the called script, or by the header of the job that calls it, whose text
    is `text`; the commands of both may leave the nodes to sbatch. Else why `srun` or `mpirun`
    leaves open how many processes there are.
    """
    commands = (line for line in own.splitlines() if not line.startswith("#"))
    launcher = Values({} if starts_more(own) else starter)
    gpus = gpus_of(launcher, "\n".join((text, *commands)))
    return gpus, None if gpus or "ranks" not in launcher.found else open_count(launcher)
