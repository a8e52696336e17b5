"""Whether a test of a shell script holds (`[ ... ]`, `test`, `[[ ... ]]`, `(( ... ))`), and
which bodies of a `case` are followed.

Files do not exist, as no file is looked at. Source: POSIX.1-2017, `test`; GNU Bash manual 5.2,
6.4 Bash Conditional Expressions.
"""

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator

from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic
from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.grammar.words import Word
from meshplan.executor.frameworks.shell.variables import Text, is_unset, plain, shown_text
from meshplan.planner.case.reading import UnreadableConfig

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
MAX_WORDS = 200  # of one test
MAX_NESTED = 40
_UNARY = ("-z", "-n", "-v", *(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"))


def bodies_of(expander: Expander, node: syntax.Case) -> Iterator[syntax.Block]:
    """The bodies of a `case` that are followed, one behind the other."""
    subject = expander.text(node.subject)
    if is_unset(subject):
        expander.variables.guesses[node.line] = shown_text(subject)
    entered = False
    for patterns, body, end in node.clauses:
        texts = (plain(expander.text(each)) for each in patterns)
        if entered or any(fnmatch.fnmatchcase(plain(subject), text) for text in texts):
            yield body
            if end == ";;":
                return
            entered = end == ";&"


def arithmetic_holds(expander: Expander, text: str, line: int) -> bool:
    """`(( text ))`; false when it depends on what is not set."""
    try:
        return expander.number(text) != 0
    except NotArithmetic:
        if "$" in text or re.search(r"[A-Za-z_]", text):
            expander.variables.guesses[line] = f"(({text}))"
        return False


def test_holds(expander: Expander, words: list[Text], line: int) -> bool:
    """`[ words ]`, by the number of its words; a malformed one is false, as its status is 2."""
    texts = [plain(word) for word in words if not all(part.unset for part in word)]
    if len(texts) > 4 or (len(texts) == 3 and texts[1] in ("-a", "-o")):
        return _joined(expander, words, line)
    result = _posix(expander, texts)
    compares = any(text in ("=", "==", "!=", *_NUMBERS) for text in texts)
    if compares and (unknown := next((word for word in words if is_unset(word)), None)):
        expander.variables.guesses[line] = shown_text(unknown)
    elif any(map(is_unset, words)):
        expander.variables.guesses.made += 1
    return result


def _joined(expander: Expander, words: list[Text], line: int) -> bool:
    if len(words) > MAX_WORDS:
        raise UnreadableConfig(f"a test of over {MAX_WORDS} words", line)
    for joint in ("-o", "-a"):
        for at, word in enumerate(words):
            if 0 < at < len(words) - 1 and plain(word) == joint:
                first = test_holds(expander, words[:at], line)
                second = test_holds(expander, words[at + 1 :], line)
                return (first or second) if joint == "-o" else (first and second)
    return False


def _posix(expander: Expander, texts: list[str]) -> bool:
    if len(texts) <= 1:
        return bool(texts and texts[0])
    if texts[0] == "!" and not (len(texts) == 3 and texts[1] in ("=", "==", "!=")):
        return not _posix(expander, texts[1:])
    if len(texts) == 2:
        return _unary(expander, *texts)
    return len(texts) == 3 and _binary(texts[0], texts[1], texts[2])


def _unary(expander: Expander, sign: str, text: str) -> bool:
    if sign == "-v":
        expander.variables.guesses.made += expander.items(text) is None
        return expander.items(text) is not None
    return {"-n": bool(text), "-z": not text}.get(sign, False)


def _binary(left: str, sign: str, right: str) -> bool:
    if sign in _NUMBERS:
        numbers = [re.fullmatch(r"\s*([-+]?\d{1,18})\s*", text) for text in (left, right)]
        if numbers[0] is None or numbers[1] is None:
            return False
        return _NUMBERS[sign](int(numbers[0][1]), int(numbers[1][1]))
    simple = {"=": left == right, "==": left == right, "!=": left != right}
    return simple.get(sign, {"<": left < right, ">": left > right}.get(sign, False))


def double_holds(expander: Expander, words: tuple[Word, ...], line: int) -> bool:
    """`[[ words ]]`: no splitting, patterns on the right of `==`, and `&&`, `||`, `!`, `( )`."""
    return _Double(expander, [word for word in words if word.raw != "\n"], line).either()


class _Double:
    def __init__(self, expander: Expander, words: list[Word], line: int) -> None:
        self.expander, self.words, self.line = expander, words, line
        self.at = self.depth = 0

    def _next(self, *texts: str) -> bool:
        word = self.words[self.at] if self.at < len(self.words) else None
        found = word is not None and (word.raw if word.operator else word.bare) in texts
        self.at += found
        return found

    def either(self) -> bool:
        """Alternatives joined by `||`."""
        value = self._both()
        while self._next("||"):
            value = self._both() or value
        return value

    def _both(self) -> bool:
        value = self._one()
        while self._next("&&"):
            value = self._one() and value
        return value

    def _one(self) -> bool:
        negated = False
        while self._next("!"):
            negated = not negated
        return self._plain() != negated

    def _plain(self) -> bool:
        if self._next("("):
            self.depth += 1
            if self.depth > MAX_NESTED:
                raise UnreadableConfig(f"a test nests over {MAX_NESTED} deep", self.line)
            value = self.either()
            self.depth -= 1
            self._next(")")
            return value
        if self.at >= len(self.words):
            return False
        first = self._take()
        if first.bare in _UNARY and self.at < len(self.words) and not self._ends():
            return _unary(self.expander, first.bare, plain(self._text(self._take())))
        left = self._text(first)
        if self.at >= len(self.words) or self._ends():
            return bool(plain(left))
        sign = self._take().raw
        if self.at >= len(self.words):
            return False
        return self._compared(left, sign, self._take())

    def _text(self, word: Word) -> Text:
        text = self.expander.text(word)
        self.expander.variables.guesses.made += is_unset(text)
        return text

    def _ends(self) -> bool:
        word = self.words[self.at]
        return word.operator and word.raw in ("&&", "||", ")")

    def _take(self) -> Word:
        self.at += 1
        return self.words[self.at - 1]

    def _compared(self, left: Text, sign: str, word: Word) -> bool:
        if sign == "=~":  # the words up to && or || are one regular expression
            while self.at < len(self.words) and self.words[self.at].raw not in ("&&", "||"):
                word = Word((*word.pieces, *self._take().pieces), word.line)
        right = self.expander.text(word)
        if is_unset(left) or is_unset(right):
            unknown = left if is_unset(left) else right
            self.expander.variables.guesses[self.line] = shown_text(unknown)
        text, pattern = plain(left), plain(right)
        if sign == "=~":
            return _searched(pattern, text)
        if sign in _NUMBERS:
            return self._numbers(text, sign, pattern)
        if sign in ("=", "==", "!=") and word.bare:
            return fnmatch.fnmatchcase(text, pattern) != (sign == "!=")
        return _binary(text, sign, pattern)

    def _numbers(self, left: str, sign: str, right: str) -> bool:
        try:
            return _NUMBERS[sign](self.expander.number(left), self.expander.number(right))
        except NotArithmetic:
            return False


def _searched(pattern: str, text: str) -> bool:
    """A short regular expression on a short text; anything else does not match."""
    if len(pattern) > 100 or len(text) > 200 or re.search(r"[*+]\)[*+]", pattern):
        return False
    try:
        return re.search(pattern.replace("[[:space:]]", r"\s"), text) is not None
    except re.error:
        return False
