"""A misused command line: what Typer cannot read, said with the value as typed, and what it would
accept in silence (an empty value, an option given twice).
"""

import difflib
import re
import sys
from collections.abc import Container, Iterator
from itertools import pairwise
from typing import Any

MOST_TOLD = 2
"""Options that an unknown one is answered with by their help: more of them say nothing."""

_NO_INTEGER = "Input should be a valid integer"


def with_value(error: Any, args: list[str]) -> str:
    """What Typer finds wrong, and the value as typed, which it does not name."""
    param = getattr(error, "param", None)
    names = param.opts if param is not None else []
    where = f"({error.ctx.command_path} -h)" if error.ctx is not None else ""
    given = list(_stated(args, names)) if error.message else []
    name, value = given[0 if getattr(param, "multiple", False) else -1] if given else ("", "")
    if not name:
        return f"{_near_option(error)} {where}".rstrip()
    rule = error.message.removeprefix("Value error, ").removesuffix(".")
    if rule.startswith(_NO_INTEGER):
        rule = "it is a whole number, such as 8"
        rule += "; --global-batch-tokens counts tokens (4M)" if name == "--global-batch" else ""
    return f"{name} {value}: {rule} {where}".rstrip()


def _near_option(error: Any) -> str:
    """What is wrong; of an unknown option with those that have its letters, dashes not counted, or
    else those whose help has it as a word.
    """
    unknown = getattr(error, "option_name", None)
    if unknown is None or error.ctx is None:
        return str(error.format_message())
    options = [name for param in error.ctx.command.params for name in param.opts
               if name.startswith("--")]  # fmt: skip
    word = unknown.strip("-")
    inside = [name for name in options if word and word in name.strip("-").split("-")]
    close = difflib.get_close_matches(word, [name[2:] for name in options], cutoff=0.7)
    names = list(dict.fromkeys([*(f"--{name}" for name in close), *inside]))[:4]
    if names:
        return f"{error.message} (close names: {', '.join(names)})"
    told = _told_of(word, error.ctx.command.params)
    return f"{error.message} (it may be {' or '.join(told)})" if told else str(error.message)


def _told_of(word: str, params: Any) -> list[str]:
    """The options whose help has `word` as a word of its own, if they are few."""
    own = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])", re.IGNORECASE)
    found = [param for param in params if own.search(getattr(param, "help", None) or "")]
    names = [name for param in found for name in param.opts if name.startswith("--")]
    return names if len(names) <= MOST_TOLD else []


def refuse_empty(args: list[str]) -> None:
    """Raise `BadQuestion` for an argument that is empty, or an option that is."""
    for before, word in pairwise(["", *args]):
        name, given, value = word.partition("=")
        option = name if given and name.startswith("--") and not value else ""
        if word and not option:
            continue
        from meshplan.planner.answer.sizes import BadQuestion

        option = option or (before if before.startswith("-") else "an argument")
        raise BadQuestion(f"{option} is empty; give a value, or leave it out")


def note_repeated(command: Any, args: list[str]) -> None:
    """Say of an option with two values which of them counts: the last, as shells' users expect."""
    valued = [param for param in command.params if not getattr(param, "is_flag", True)]
    stated = list(_stated(args, {name for param in valued for name in param.opts}))
    for param in valued:
        values = [value for name, value in stated if name in param.opts and not param.multiple]
        if len(set(values)) > 1:
            print(f"note: {param.opts[0]} is given {len(values)} times; the last counts",
                  file=sys.stderr)  # fmt: skip


def _stated(args: list[str], names: Container[str]) -> Iterator[tuple[str, str]]:
    """The options of these names with their values: of `--slurm --nodes=3` the word behind it."""
    words = iter(args)
    for word in words:
        name, joined, value = word.partition("=")
        if name in names:
            yield name, value if joined else next(words, "")
