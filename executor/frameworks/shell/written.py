"""The files that a script writes: of a here-document, of the words of `echo`, by `cp`, `mv` and
`sed`.

What another command makes of a file that lies beside the script is not known: it is read as it lies
there, which a note says.
"""

import re
from contextlib import suppress

from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.grammar.syntax import Redirected
from meshplan.executor.frameworks.shell.grammar.words import document
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.sourced import SEARCH_WORK, sourced_text
from meshplan.executor.frameworks.shell.substituted import Edit, edit
from meshplan.executor.frameworks.shell.variables import Text, plain, shown_text
from meshplan.planner.case.reading import UnreadableConfig

MAX_WRITTEN = 2**18  # characters of a file that `>>` goes on with
MAX_EDIT = 2_000_000  # characters that one `sed` compares
_CONFIGURATIONS = (".json", ".yaml", ".yml", ".toml")
_CHANGES = {name: re.compile(option) for name, option in {
    "sed": r"-[A-Za-z]*i|--in-place", "yq": r"-[A-Za-z]*i|--inplace", "perl": r"-\w*i",
}.items()}  # fmt: skip
"""Commands that change a file in its place, and the option by which they do."""


class Written:
    """Follows what the commands of the script at `path` write, into `script.files`."""

    def __init__(self, expander: Expander, script: Script, path: str) -> None:
        self.expander, self.script, self.path = expander, script, path

    def follow(self, words: list[Text], sent: Redirected, line: int) -> None:
        """Adds the files that a command writes; none where their text is longer than words may be,
        or quotes what no reader of a script follows.
        """
        command = plain(words[0]) if words else ""
        reads = command in (*_CHANGES, "cp", "mv")
        said = [shown_text(word) for word in words[1:]] if reads else []
        names = [word for word in said if not word.startswith("-")]
        if command in ("cp", "mv") and len(names) == 2 and names[1].endswith(_CONFIGURATIONS):
            self._put(names[1], self._text(names[0], line), command, line)
        if (option := _CHANGES.get(command)) and any(map(option.match, said)):
            self._change(command, said, line)
        target = sent.target or sent.longer
        if target is None:
            return
        name = shown_text(self.expander.text(target))
        before = self.script.files.get(name) if sent.longer else ""
        made = self._made(command, words, sent, line)
        known = before is not None and made is not None and len(before) <= MAX_WRITTEN
        self._put(name, f"{before}{made}" if known else None, command, line)

    def _made(self, command: str, words: list[Text], sent: Redirected, line: int) -> str | None:
        """What a command writes into its file; None where that is not known."""
        if command == "echo" and not any(plain(word).startswith("-") for word in words[1:]):
            return " ".join(shown_text(word) for word in words[1:]) + "\n"
        if command == "cat" and len(words) == 1 and sent.document is not None:
            with suppress(UnreadableConfig):
                return shown_text(self.expander.text(document(sent.document)))
        steps = edit([shown_text(word) for word in words[1:]]) if command == "sed" else None
        return (
            self._edited(steps, steps.names[0], line) if steps and len(steps.names) == 1 else None
        )

    def _change(self, command: str, said: list[str], line: int) -> None:
        """Changes the files that a command changes in their place."""
        steps = edit(said) if command == "sed" else None
        for name in steps.names if steps else said:
            if name in self.script.files or name.endswith(_CONFIGURATIONS):
                text = self._edited(steps, name, line) if steps else None
                self._put(name, text, command, line)

    def _edited(self, steps: Edit, name: str, line: int) -> str | None:
        text = self._text(name, line)
        if text is None or (cost := steps.cost(text)) > MAX_EDIT:
            return None
        self.expander.work.spend(cost, line)
        return steps.of(text)

    def _text(self, name: str, line: int) -> str | None:
        """The text of a file that the script wrote, or that lies beside it."""
        self.expander.work.spend(SEARCH_WORK, line)
        written = self.script.files.get(name)
        return sourced_text(name, self.path) if written is None else written

    def _put(self, name: str, text: str | None, command: str, line: int) -> None:
        """Keeps the text of a file; of one that is not known, says so where it lies there."""
        self.script.files.pop(name, None)
        if text is not None:
            self.script.files[name] = text
        elif name.endswith(_CONFIGURATIONS) and self._text(name, line) is not None:
            self.script.notes.append(f"line {line}: what {command or 'a command'} makes of {name} "
                                     "is not followed: it is read as it lies there")  # fmt: skip
