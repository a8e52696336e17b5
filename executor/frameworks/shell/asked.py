"""Conditions whose answer the machine gives: a command that is not run, a file not looked at.

A command is taken to succeed, a file not to be there. Where that decides what a variable is, a note
says so.
"""

from collections.abc import Container, Iterator, Sequence
from itertools import dropwhile, islice

from meshplan.executor.frameworks.shell.assignments import DECLARES
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.grammar.words import Word

_TESTS = ("[", "test")
_OF_FILES = {*(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"), "-nt", "-ot", "-ef"}
_OF_STRINGS = ("-a", "-o")  # between two tests
_KNOWN = {
    "true", "false", ":", "let", "read", "shift", "set", "eval", "exit", "return", "break",
    "continue", "unset", "source", ".", "echo", "printf", *DECLARES,
}  # fmt: skip
_PRINTERS = ("echo", "printf", "cat")
_SHOWN = 60  # characters of a condition in a note


def notes_of(
    condition: syntax.Node | None,
    bodies: Sequence[syntax.Node],
    functions: Container[str],
    *,
    prints: bool,
) -> list[str]:
    """What to say of `condition`, where one of `bodies` sets a variable by its answer; `prints`:
    or prints what one is set to.
    """
    found = next(_asked(condition, functions), None) if condition is not None else None
    if found is None or not any(_sets(body, prints=prints) for body in bodies):
        return []
    words, line, of_file = found
    shown = " ".join("".join(c if c.isprintable() else " " for c in " ".join(words)).split())
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    taken = "taken to succeed, not run"
    if of_file:
        taken = "no file is looked at: taken not to be there"
    return [f"line {line}: `{shown}` decides what is set here; {taken}"]


def of_machine(node: syntax.Simple | syntax.Test, functions: Container[str]) -> bool:
    """Whether a command, a file, or how many arguments the script is started with decides it."""
    words = node.words if isinstance(node, syntax.Test) else node.parts
    raw = [word.raw for word in words if isinstance(word, Word)]
    raw += [node.arithmetic or ""] if isinstance(node, syntax.Test) else []
    return any("$#" in each for each in raw) or next(_asked(node, functions), None) is not None


def asks(condition: syntax.Node, functions: Container[str]) -> bool:
    """Whether a command, a file or a function decides `condition`."""
    asked = next(_asked(condition, functions), None)
    return asked is not None or any(name in functions for name in _names(condition))


def _names(node: syntax.Node) -> Iterator[str]:
    """The first words of the commands of a condition."""
    if isinstance(node, syntax.Block):
        for _, inner in node.items:
            yield from _names(inner)
    elif isinstance(node, syntax.Not):
        yield from _names(node.inner)
    elif isinstance(node, syntax.Simple):
        words = (part for part in node.parts if isinstance(part, Word))
        yield from (word.raw for word in islice(dropwhile(syntax.assigns, words), 1))


def _asked(node: syntax.Node, functions: Container[str]) -> Iterator[tuple[list[str], int, bool]]:
    """Commands and tests of files in a condition: their words, line, and which of the two."""
    if isinstance(node, syntax.Block):
        for _, inner in node.items:
            yield from _asked(inner, functions)
    elif isinstance(node, syntax.Not):
        yield from _asked(node.inner, functions)
    elif isinstance(node, syntax.Test):
        if node.arithmetic is None and _of_file(list(node.words)):
            yield ["[[", *(word.raw for word in node.words), "]]"], node.line, True
    elif isinstance(node, syntax.Simple):
        words = [part for part in node.parts if isinstance(part, Word)]
        words = list(dropwhile(syntax.assigns, words))
        name, raw = words[0].raw if words else ":", [word.raw for word in words]
        if name in _TESTS and _of_file(words[1:]):
            yield raw, node.line, True
        elif "$?" in raw or (name not in (*_TESTS, *_KNOWN) and name not in functions):
            yield raw, node.line, False


def _of_file(words: list[Word]) -> bool:
    """Whether a test asks for a file; `-a` and `-o` behind the first word join tests."""
    signs = (word.bare for at, word in enumerate(words) if at == 0 or word.bare not in _OF_STRINGS)
    return not _OF_FILES.isdisjoint(signs)


def _sets(node: syntax.Node, *, prints: bool) -> bool:
    """Whether anything in it sets a variable, or prints."""
    if isinstance(node, syntax.Block):
        return any(_sets(inner, prints=prints) for _, inner in node.items)
    if isinstance(node, syntax.If | syntax.Case):
        return any(_sets(clause[1], prints=prints) for clause in node.clauses)
    if isinstance(node, syntax.For | syntax.While):
        return _sets(node.body, prints=prints)
    if isinstance(node, syntax.Simple) and node.parts:
        first = node.parts[0]
        name = first.bare if isinstance(first, Word) else ""
        named = name in DECLARES or (prints and name in _PRINTERS)
        return named or all(map(syntax.assigns, node.parts))
    return False
