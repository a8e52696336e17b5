"""What sets a shell's variables: `A=1`, arrays, `declare`, `local`, `let`, `printf -v`.

Source: GNU Bash manual 5.2, 3.3 Shell Functions, 3.4 Shell Parameters, 4.2 `declare`, `local`,
`let`, `printf`, 6.7 Arrays.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshplan.executor.frameworks.shell import commands
from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic
from meshplan.executor.frameworks.shell.expansion.expand import MAX_CHARS, MAX_TOKENS, Expander
from meshplan.executor.frameworks.shell.expansion.text import formatted
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.grammar.words import Word
from meshplan.executor.frameworks.shell.variables import (
    Part,
    Text,
    is_unset,
    line_of,
    plain,
    shown_text,
)
from meshplan.planner.case.reading import UnreadableConfig

DECLARES = ("export", "local", "readonly", "declare", "typeset")
_KEYED = re.compile(r"\[([^\]]*)\]=")
_NAME = re.compile(r"[A-Za-z_]\w*")


class Assignments:
    """Sets the variables of an expander; those that a function makes its own are the caller's
    again behind it.
    """

    def __init__(self, expander: Expander) -> None:
        self.expander, self.known = expander, expander.variables
        self.scopes: list[dict[str, tuple[Any, ...]]] = []

    @contextmanager
    def function(self) -> Iterator[None]:
        """The body of a function, whose `local` names end with it."""
        self.scopes.append({})
        try:
            yield
        finally:
            for name, held in self.scopes.pop().items():
                self._put_back(name, held)

    def _put_back(self, name: str, held: tuple[Any, ...]) -> None:
        self.known.forget(name)
        *stored, is_array, is_integer = held
        tables: tuple[dict[str, Any], ...] = (self.known.values, self.known.maps,
                                              self.known.aliases)  # fmt: skip
        for table, value in zip(tables, stored, strict=True):
            if value is not None:
                table[name] = value
        self.known.arrays |= {name} if is_array else set()
        self.known.integers |= {name} if is_integer else set()

    def _make_local(self, name: str) -> None:
        known, scope = self.known, self.scopes[-1]
        if name not in scope:
            tables: tuple[dict[str, Any], ...] = (known.values, known.maps, known.aliases)
            stored = [table.get(name) for table in tables]
            scope[name] = (*stored, name in known.arrays, name in known.integers)
            known.forget(name)

    def declare(self, word: str, parts: Sequence[Word | syntax.Array]) -> None:
        """`declare -A NAME=( ... )`, `local NAME`, `export NAME=VALUE` and the like."""
        flags = "".join(part.bare[1:] for part in parts
                        if isinstance(part, Word) and part.bare.startswith("-"))  # fmt: skip
        own = bool(self.scopes) and word not in ("export", "readonly") and "g" not in flags
        for part in parts:
            if syntax.assigns(part):
                self._declared(syntax.name_of(part), flags, own=own, value=part)
            elif isinstance(part, Word) and _NAME.fullmatch(part.bare):
                self._declared(part.bare, flags, own=own, value=None)

    def _declared(
        self, name: str, flags: str, *, own: bool, value: Word | syntax.Array | None
    ) -> None:
        said = self._value(value) if isinstance(value, Word) else ()  # of the names as they were
        if own:
            self._make_local(name)
        if "n" in flags and isinstance(value, Word):
            self.known.aliases[name] = plain(said)
            return
        if "A" in flags:
            self.known.maps.setdefault(name, {})
        if "i" in flags:
            self.known.integers.add(name)
        if isinstance(value, syntax.Array):
            self.assign(value)
        elif value is not None:
            self._store(name, value, said)

    def assign(self, part: Word | syntax.Array) -> None:
        """`NAME=VALUE`, `NAME[INDEX]=VALUE`, `NAME+=VALUE`, `NAME=( ... )`."""
        if isinstance(part, syntax.Array):
            self._array(part)
        else:
            self._store(syntax.name_of(part), part, self._value(part))

    def _value(self, part: Word) -> Text:
        match = syntax.ASSIGN.match(part.raw)
        assert match is not None
        return self.expander.text(commands.after_equals(part, match.end()))

    def _array(self, part: syntax.Array) -> None:
        known, name = self.known, self.known.aliases.get(part.name, part.name)
        if name in known.maps:
            entries = known.maps[name] if part.append else {}
            known.maps[name] = entries | dict(self._keyed(part.words))
            return
        items = [text for word in part.words for text in self.expander.fields(word)]
        old = known.values.get(name, []) if part.append else []
        known.values[name] = (old + items)[:MAX_TOKENS]
        known.arrays.add(name)

    def _keyed(self, words: Sequence[Word]) -> Iterator[tuple[str, Text]]:
        """The elements `[KEY]=VALUE` of an associative array."""
        for word in words[:MAX_TOKENS]:
            text = self.expander.text(word)
            match = _KEYED.match(shown_text(text))
            if match is not None:
                rest, unset = shown_text(text)[match.end() :], is_unset(text)
                yield match[1], (Part(rest, line_of(text, word.line), unset=unset),)

    def _store(self, name: str, part: Word, value: Text) -> None:
        known, name = self.known, self.known.aliases.get(name, name)
        match = syntax.ASSIGN.match(part.raw)
        assert match is not None
        index, append = match[2], bool(match[3])
        if name in known.maps and index:
            self._store_at_key(name, index, value, append=append)
            return
        old = list(known.values.get(name, []))
        at = self._index(index, old) if index else 0
        if at is None:
            return
        at = min(at, len(old))  # a hole in an array is closed: its elements are what counts
        old += [()] * (at == len(old))
        old[at] = self._sum(name, old[at] if append else (), value)
        if sum(len(each.text) for each in old[at]) > MAX_CHARS:
            raise UnreadableConfig(f"{name} grows over {MAX_CHARS} characters", part.line)
        known.values[name] = old if index or name in known.arrays else [old[0]]

    def _store_at_key(self, name: str, index: str, value: Text, *, append: bool) -> None:
        items = self.known.maps[name]
        key = self.expander.key(index)
        if key is not None and (key in items or len(items) < MAX_TOKENS):
            items[key] = items.get(key, ()) + value if append else value

    def _sum(self, name: str, before: Text, value: Text) -> Text:
        """`before` and `value` behind each other; of whole numbers (`declare -i`) their sum."""
        if name not in self.known.integers or is_unset(before + value):
            return before + value
        try:
            terms = [self.expander.number(plain(each)) for each in (before, value)]
        except NotArithmetic:
            return before + value
        return (Part(str(sum(terms)), line_of(value, 1)),)

    def _index(self, index: str, old: list[Text]) -> int | None:
        try:
            at = self.expander.number(index)
        except NotArithmetic:
            return None
        at += len(old) if at < 0 else 0
        return at if 0 <= at < MAX_TOKENS else None

    def builtin(self, name: str, words: list[Text], line: int) -> bool:
        """Whether `printf -v NAME` sets a variable here."""
        if name != "printf" or len(words) < 3 or plain(words[0]) != "-v":
            return False
        unknown = any(map(is_unset, words[2:]))
        text = None if unknown else formatted(plain(words[2]), [plain(w) for w in words[3:]])
        shown = " ".join(map(shown_text, words[2:]))
        said = Part(f"$(printf {shown})", line, unset=True) if text is None else Part(text, line)
        self.known.values[plain(words[1])] = [(said,)]
        return True

    def let(self, words: list[Text], line: int) -> bool:
        """`let A=1 B+=2`; whether the last is not zero, or not known."""
        return [self._let(plain(word), line) for word in words][-1:] != [0]

    def _let(self, expression: str, line: int) -> int | None:
        name, equals, _ = expression.partition("=")
        try:
            return self.expander.number(expression)
        except NotArithmetic:
            if equals and _NAME.fullmatch(name.strip()):
                unknown = Part(f"$(({expression}))", line, unset=True)
                self.known.values[name.strip()] = [(unknown,)]
        return None
