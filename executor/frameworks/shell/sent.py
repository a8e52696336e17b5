"""What a command is sent by its redirections, what it prints, and the script that it is given.

Source: GNU Bash manual 5.2, 3.6 Redirections; SchedMD/slurm, man page of sbatch (a script is read
from standard input where none is named).
"""

from collections.abc import Mapping
from itertools import dropwhile

from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.expansion.text import echoed, ends_open, formatted
from meshplan.executor.frameworks.shell.grammar.syntax import Redirected
from meshplan.executor.frameworks.shell.grammar.words import document
from meshplan.executor.frameworks.shell.variables import (
    Part,
    Text,
    is_unset,
    line_of,
    plain,
    shown_text,
)

_STARTS = ("bash", "sh", "zsh", "sbatch", "ssh")
"""Commands that run a script which they are sent."""


def sent_text(expander: Expander, sent: Redirected) -> Text | None:
    """The text of a here-string or a here-document that a command is sent."""
    if sent.given is not None:
        return expander.text(sent.given)
    return None if sent.document is None else expander.text(document(sent.document))


def printed_by(expander: Expander, words: list[Text], sent: Redirected) -> list[Text | None]:
    """What a command prints: nothing where it goes elsewhere, None where that is not known."""
    if sent.target or sent.longer or (sent.elsewhere and sent.elsewhere.raw == "2"):
        return []
    name, rest = plain(words[0]), words[1:]
    if name == "echo" and rest and plain(rest[0]).startswith("-"):
        known = None if any(map(is_unset, rest)) else [plain(word) for word in rest]
        text = None if known is None else echoed(known)
        end_of = "" if known is not None and ends_open(known) else "\n"
        return [None if text is None else (Part(text + end_of, 1),)]
    if name in ("echo", "log"):
        blank, end = Part(" ", 1), Part("\n", 1)
        parts = [part for word in rest for part in (*word, blank)]
        return [(*parts[:-1], end)]
    if name == "printf" and rest and not any(map(is_unset, rest)):
        text = formatted(plain(rest[0]), [plain(word) for word in rest[1:]])
        return [None if text is None else (Part(text, 1),)]
    if name == "cat" and not rest:
        return [sent_text(expander, sent)]
    return [None] if name in ("cat", "ls", "git", "pip", "printf", "exec") else []


def given_script(
    expander: Expander, files: Mapping[str, str], words: list[Text], sent: Redirected
) -> tuple[Text, list[Text]] | None:
    """The script that `bash` or `sbatch` is sent, or that this one wrote before, as `files` has it,
    and its arguments; None where a command runs none.
    """
    name, names = plain(words[0]) if words else "", [shown_text(word) for word in words]
    if name not in _STARTS and not (name.startswith("./") and name[2:] in files):
        return None
    names = [each.removeprefix("./") for each in names]
    at = next((at for at, each in enumerate(names) if each in files), None)
    if at is not None:
        return (Part(files[names[at]], line_of(words[0], 1)),), words[at + 1 :]
    arguments = list(dropwhile(lambda word: plain(word).startswith("-"), words[1:]))
    reads = name == "ssh" or not arguments or "-s" in names[: len(names) - len(arguments)]
    if name != "ssh" and arguments and plain(arguments[0]) == "/dev/stdin":
        reads, arguments = True, arguments[1:]
    text = sent_text(expander, sent) if reads else None
    return None if text is None else (text, [] if name == "ssh" else arguments)
