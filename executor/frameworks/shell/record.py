"""What following a launch script found, and the same of all tasks of a job array."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshplan.executor.frameworks.shell.expansion.expand import MAX_TOKENS
from meshplan.executor.frameworks.shell.variables import Text, line_of, shown_text
from meshplan.planner.case.reading import Fact

_OPTION = re.compile(r"--\w")
OF_LAUNCHERS = ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES")


@dataclass(slots=True)
class Script:
    """What a script assigned, the words of the commands it would run, and what it left unsaid.

    beside what `OF_LAUNCHERS` hold for each of the commands
    exported  what each of the commands inherits, by name
    files  what it writes by `cat <<EOF > FILE`, `echo ... > FILE` and `sed`, by the file's name
    written  those that are there when each of the commands starts
    missed  the files that it sources and that are not read
    notes  one line each: a file that is sourced, a condition that something unknown decided
    waits  what is unknown and decided a condition, as the script writes it
    """

    variables: dict[str, list[Fact]] = field(default_factory=dict)
    commands: list[list[Fact]] = field(default_factory=list)
    beside: list[dict[str, Fact]] = field(default_factory=list)
    exported: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    written: list[dict[str, str]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits: tuple[str, ...] = ()

    def record(
        self, words: Sequence[Text], known: Mapping[str, list[Text]], exported: dict[str, str],
        line: int,
    ) -> None:  # fmt: skip
        """Add a command, with the variables that are `known` and those that it inherits."""
        facts = [Fact(shown_text(word), line_of(word, line)) for word in words[:MAX_TOKENS]]
        self._note_cut_off(facts[:1])
        self.commands.append(facts)
        held = ((name, known.get(name)) for name in OF_LAUNCHERS)
        self.beside.append({name: Fact(shown_text(v[0]), line) for name, v in held if v})
        self.exported.append(exported)
        same = self.written[-1:] == [self.files]
        self.written.append(self.written[-1] if same else dict(self.files))

    def files_of(self, words: list[Fact]) -> Mapping[str, str]:
        """The files that one of the commands finds written; of other words, all there are."""
        pairs = zip(self.commands, self.written, strict=True)
        return next((files for command, files in pairs if command is words), self.files)

    def held_by(self, words: list[Fact]) -> Mapping[str, Fact]:
        """What `OF_LAUNCHERS` hold for one of the commands."""
        pairs = zip(self.commands, self.beside, strict=True)
        return next((held for command, held in pairs if command is words), {})

    def _note_cut_off(self, first: list[Fact]) -> None:
        """Say where arguments are a command of their own: bash finds none of that name."""
        begins = [str(each[0].value) for each in (first, *self.commands[-1:]) if each]
        if len(begins) == 2 and _OPTION.match(begins[0]) and not _OPTION.match(begins[1]):
            why = "bash takes it for a command, as no backslash ends the line before"
            note = f"line {first[0].line}: {begins[0][:60]} is no argument: {why}"
            self.notes += [note] * (note not in self.notes)

    def inherited_by(self, words: list[Fact]) -> dict[str, str]:
        """The variables that a command is started with."""
        pairs = zip(self.commands, self.exported, strict=True)
        return next((given for each, given in pairs if each is words), {})

    def forget(self, count: int) -> bool:
        """Drop all commands but the first `count`; whether there were more."""
        more = len(self.commands) > count
        for each in (self.commands, self.beside, self.exported, self.written):
            del each[count:]
        return more


def joined(scripts: Sequence[Script], notes: Sequence[str] = ()) -> Script:
    """The tasks of one job array as one script: the commands of all, with the files of each, and
    the variables of the first.
    """
    first, *others = scripts
    for other in others:
        first.commands += other.commands
        first.beside += other.beside
        first.exported += other.exported
        first.written += other.written
        notes = (*notes, *(note for note in other.notes if note not in first.notes))
    first.missed = list(dict.fromkeys(what for script in scripts for what in script.missed))
    first.waits = tuple(dict.fromkeys(what for script in scripts for what in script.waits))
    first.notes += [note for note in dict.fromkeys(notes)]
    return first
