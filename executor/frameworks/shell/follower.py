"""Follows a launch script's simple commands: `script` says what for."""

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import nullcontext, suppress

from meshplan.executor.frameworks.shell import commands, sourced
from meshplan.executor.frameworks.shell.assignments import DECLARES, Assignments
from meshplan.executor.frameworks.shell.compound import Compound
from meshplan.executor.frameworks.shell.conditions import test_holds
from meshplan.executor.frameworks.shell.endings import Exits, Stops, status_of
from meshplan.executor.frameworks.shell.given import exported_names, read_here
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.grammar.words import Word
from meshplan.executor.frameworks.shell.launching.ranks import started_shell
from meshplan.executor.frameworks.shell.options import set_options
from meshplan.executor.frameworks.shell.sent import given_script, printed_by, sent_text
from meshplan.executor.frameworks.shell.variables import (
    Part,
    Text,
    Variables,
    plain,
    shown_text,
    without_line_ends,
)
from meshplan.executor.frameworks.shell.written import Written
from meshplan.planner.case.reading import UnreadableConfig

MAX_CALLS = 20  # functions, `eval` and `bash -c` inside each other
_ENDS = ("exit", "return", "break", "continue")
_PRINTS = ("echo", "printf", "cat", "log", ":", "mkdir", "cd", "rm", "ls", "pip", "git", "exec")


class Follower(Compound):
    """Follows a script's tree; `script` is what it found."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.sourced, self.exported = path, 0, set[str]()
        self.started_by: list[Text] = []  # of `srun -n 8 bash -c`, whose commands these are
        self.expander.called, self.expander.printed = self._called, self._printed
        self.assignments = Assignments(self.expander)
        self.written = Written(self.expander, self.script, path)
        self.own: Set[str] = frozenset()
        self.calls = 0
        self.answered = 0  # the status of the last `$( )`

    def _simple(self, node: syntax.Simple) -> bool:
        count = next((at for at, part in enumerate(node.parts) if not syntax.assigns(part)), None)
        if count is None:
            return self._assigned(node.parts)
        first = node.parts[count]
        if isinstance(first, Word) and first.bare in DECLARES:
            self.assignments.declare(first.bare, node.parts[count + 1 :])
            self.exported |= exported_names(first.bare, node.parts[count + 1 :])
            return True
        stated = (part for part in node.parts[count:] if isinstance(part, Word))
        words = [text for part in stated for text in self.expander.fields(part)]
        before: dict[str, list[Text] | None] = {}
        for part in node.parts[:count]:
            before.setdefault(name := syntax.name_of(part), self.variables.values.get(name))
            self.assignments.assign(part)
        self.own = before.keys()
        try:
            name, sent = plain(words[0]) if words else "", node.sent
            if name in ("read", "mapfile", "readarray"):
                given = sent_text(self.expander, sent)
                return read_here(self.variables, name, words[1:], given)
            self.written.follow(words, sent, node.line)
            if self.printing is not None and name in _PRINTS:
                self.printing += printed_by(self.expander, words, sent)
            if (inner := given_script(self.expander, self.script.files, words, sent)) is not None:
                return self._in_shell(*inner, node.line, here=name != "ssh")
            return self._command(words, node.line)
        finally:
            self.variables.restore(before if words else {})  # they hold for that command only

    def _assigned(self, parts: Iterable[Word | syntax.Array]) -> bool:
        """Nothing but assignments, whose status is that of the last `$( )` in them."""
        self.answered = 0
        for part in parts:
            self.assignments.assign(part)
            if "allexport" in self.variables.options:
                self.exported.add(syntax.name_of(part))
        self.ended = self.answered
        return not self.ended

    def _called(self, words: list[Text], line: int) -> Text | None:
        """What a function prints, where the words call one that only prints text."""
        if not words or (name := plain(words[0])) not in self.functions:
            return None
        return self._captured(lambda: self._call(name, words[1:], line))

    def _printed(self, command: str, line: int) -> Text | None:
        """What the commands of `$( )` print, where they only print text."""
        inner = commands.printing(command, line)
        return self._captured(lambda: self._inside(inner, line)) if inner else None

    def _captured(self, followed: Callable[[], bool]) -> Text | None:
        """What is printed while `followed` runs; None where a program is started, or prints."""
        outer, recorded = self.printing, len(self.script.commands)
        self.printing = said = list[Text | None]()
        self.answered = 0
        try:
            holds = self._until(_ENDS, followed, self._own_shell(without="errexit"))
        except UnreadableConfig:  # more than a launch script does: as a program's
            said.append(None)
        self.printing = outer
        if self.script.forget(recorded) or any(each is None for each in said):
            return None
        self.answered = self.expander.status = 0 if holds else self.ended or 1
        return without_line_ends([part for each in said if each for part in each])

    def _command(self, words: list[Text], line: int) -> bool:
        if not words or not (name := shown_text(words[0])):
            return True
        if name in ("[", "test"):
            inner = words[1:-1] if name == "[" else words[1:]
            return test_holds(self.expander, inner, line)
        if name in self.functions:
            return self._call(name, words[1:], line)
        if name == "exec" and words[1:] and not (started := shown_text(words[1])).startswith("{"):
            self._builtin(started, words[1:], line)
            if not self.place.conditional:
                self.traps.taken()  # of a shell that is another program now
            name = "exit"  # nothing behind it is reached
        return self._builtin(name, words, line)

    def _call(self, name: str, arguments: list[Text], line: int) -> bool:
        self._deeper(line)
        try:
            with self.assignments.function():
                return self._until_return(arguments, lambda: self.run(self.functions[name]))
        finally:
            self.calls -= 1

    def _until_return(self, arguments: list[Text] | None, followed: Callable[[], bool]) -> bool:
        """Follow a function or a file, which `return` ends, with arguments of its own; None: with
        those around it, which it may change.
        """
        outer = self.variables.arguments
        if arguments is not None:
            self.variables.arguments = arguments
        try:
            return self._until(("return",), followed, nullcontext())
        finally:
            if arguments is not None:
                self.variables.arguments = outer

    def _deeper(self, line: int) -> None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise UnreadableConfig(f"calls over {MAX_CALLS} deep", line)

    def _builtin(self, name: str, words: list[Text], line: int) -> bool:
        """A command that is no function: one of bash's, a script in a shell, or a program."""
        if name in _ENDS:
            return self._end(name, words[1:], line)
        if name in _FOLLOWED:
            return _FOLLOWED[name](self, words[1:], line)
        if self.assignments.builtin(name, words[1:], line):
            return True
        if (inner := commands.inline(words)) is not None:
            before, self.started_by = self.started_by, started_shell(words) or self.started_by
            try:
                return self._in_shell(*inner, line, here=name not in commands.OTHER_MACHINES)
            finally:
                self.started_by = before
        if name not in _PRINTS:
            inherited = self.variables.shown(self.exported | self.own)
            self.script.record(self.started_by + words, self.variables.values, inherited, line)
        return True

    def _end(self, name: str, words: list[Text], line: int) -> bool:
        """Leave what `name` ends; an `exit` that a condition may pass over is noted alone."""
        status = status_of(words, self.expander.status)
        if name == "exit" and self.place.conditional and self.printing is None:
            self.place.left += not status
            self.place.note_end(line, f"with status {status}", status)
            return True
        raise (Exits if name == "exit" else Stops)(name, status)

    def _shift(self, words: list[Text], _: int) -> bool:
        return self.variables.shift(int(plain(words[0])) if commands.is_count(words) else 1)

    def _set(self, words: list[Text], _: int) -> bool:
        set_options(self.variables, words)
        return True

    def _unset(self, words: list[Text], _: int) -> bool:
        for word in words:
            self.variables.forget(plain(word))
        return True

    def _trap(self, words: list[Text], line: int) -> bool:
        self.traps.set(words, line)
        return True

    def _let(self, words: list[Text], line: int) -> bool:
        return self.assignments.let(words, line)

    def _source(self, words: list[Text], line: int) -> bool:
        """Follow a file that lies beside the script, as if it stood there."""
        what = shown_text(words[0]) if words else "a file"
        self.expander.work.spend(sourced.SEARCH_WORK, line)
        text = sourced.sourced_text(what, self.path)
        self.sourced += len(text or "")
        if self.sourced > sourced.MAX_SOURCED:
            raise UnreadableConfig(f"sources over {sourced.MAX_SOURCED} characters", line)
        inner = None
        with suppress(UnreadableConfig):  # a file in another shell's words
            inner = commands.parsed([(Part(text, line),)], line) if text is not None else None
        moved = f", as {sourced.file_of(what, self.path)}" if what.startswith(("/", "$")) else ""
        said = "what it sets is not read" if inner is None else f"read too{moved}"
        self.script.notes.append(f"line {line}: {what} is sourced: {said}")
        if inner is None:
            self.script.missed.append(what)
            return True
        return self._until_return(words[1:] or None, lambda: self._inside(inner, line))

    def _in_shell(self, text: Text, arguments: list[Text], line: int, *, here: bool) -> bool:
        """Follow a script in a shell of its own that knows what is exported, where it is `here`."""
        known, names = self.variables, self.exported | self.own if here else set()
        values = {name: known.values[name] for name in names & known.values.keys()}
        given = Variables(values, arguments=arguments, guesses=known.guesses)

        def followed() -> bool:
            self.variables.become(given)
            return self._nested([text], line)

        return self._until(("exit", "return"), followed, self._own_shell())

    def _nested(self, texts: list[Text], line: int) -> bool:
        """Follow text as a script of its own: `eval`, `bash -c`."""
        return self._inside(commands.parsed(texts, line), line)

    def _inside(self, inner: syntax.Block, line: int) -> bool:
        self._deeper(line)
        try:
            return self.run(inner)
        finally:
            self.calls -= 1


_FOLLOWED: Mapping[str, Callable[[Follower, list[Text], int], bool]] = {
    "true": lambda *_: True,
    "false": lambda *_: False,
    "eval": Follower._nested,
    "source": Follower._source,
    ".": Follower._source,
    "shift": Follower._shift,
    "set": Follower._set,
    "unset": Follower._unset,
    "trap": Follower._trap,
    "let": Follower._let,
}
"""Bash's own commands by name: what each does with its words at a line, and whether it succeeds."""
