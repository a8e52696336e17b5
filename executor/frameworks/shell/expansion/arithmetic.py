"""Whole-number arithmetic of the shell: `$((...))`, `((...))` and `-eq`.

Operators by how tightly they bind, as in C; division goes towards zero; a name is its variable.
Source: GNU Bash manual 5.2, 6.5 Shell Arithmetic. Leaves out: bases above 36.
"""

import operator
import re
from collections.abc import Callable

MOST = 2**63
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:#\w+)?)|([A-Za-z_]\w*)"
    r"|(\*\*|\+\+|--|(?:<<|>>|[-+*/%&|^])=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!()?:=,&|^~]))"
)
_BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": lambda a, b: a << _shift(b), ">>": lambda a, b: a >> _shift(b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: _divided(a, b), "%": lambda a, b: a - b * _divided(a, b)},
)
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
_MOST_NESTED = 50


class NotArithmetic(ValueError):
    """Text that is no whole-number expression of known variables."""


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise NotArithmetic("division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift(by: int) -> int:
    if not 0 <= by < 64:
        raise NotArithmetic(f"a shift by {by}")
    return by


def evaluate(text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None]) -> int:
    """The value of `text`; raises `NotArithmetic`, and what `value_of` raises."""
    return _Evaluator(text, value_of, assign).whole()


class _Evaluator:
    def __init__(
        self, text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None]
    ) -> None:
        self.tokens, at = [], 0
        text = text.strip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or len(match[1] or "") > len(str(MOST)):
                raise NotArithmetic(text[:60])
            self.tokens.append(match[0].strip())
            at = match.end()
        self.at, self.depth, self.value_of, self.assign = 0, 0, value_of, assign

    def whole(self) -> int:
        value = self._list() if self.tokens else 0
        if self.at < len(self.tokens):
            raise NotArithmetic(f"`{self.tokens[self.at]}` is out of place")
        return value

    def _next(self, *texts: str) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if token and (not texts or token in texts):
            self.at += 1
            return token
        return ""

    def _list(self) -> int:
        value = self._assignment()
        while self._next(","):
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        ahead = self.tokens[self.at : self.at + 2]
        if len(ahead) == 2 and ahead[1] in _ASSIGNS:
            self.at += 2
            name, value = ahead[0], self._assignment()
            if (sign := ahead[1][:-1]) != "":
                level = next(level for level in _BINARY if sign in level)
                value = _bounded(level[sign](self.value_of(name), value))
            self.assign(name, value)
            return value
        return self._choice()

    def _choice(self) -> int:
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise NotArithmetic("it nests too deep")
        condition = self._binary(0)
        if self._next("?"):
            yes = self._choice()
            if not self._next(":"):
                raise NotArithmetic("`?` has no `:`")
            no = self._choice()
            condition = yes if condition else no
        self.depth -= 1
        return condition

    def _binary(self, level: int) -> int:
        if level == len(_BINARY):
            return self._power()
        value = self._binary(level + 1)
        while token := self._next(*_BINARY[level]):
            value = _bounded(_BINARY[level][token](value, self._binary(level + 1)))
        return value

    def _power(self) -> int:
        base = self._unary()
        if not self._next("**"):
            return base
        exponent = self._power()
        if not 0 <= exponent < 64:
            raise NotArithmetic(f"the exponent {exponent}")
        return _bounded(base**exponent)

    def _unary(self) -> int:
        signs = []
        while sign := self._next("-", "+", "!", "~"):
            signs.append(sign)
        if step := self._next("++", "--"):
            value = self._stepped(self._next(), step)
        else:
            value = self._atom()
        for sign in reversed(signs):
            value = {"-": -value, "+": value, "!": int(not value), "~": ~value}[sign]
        return value

    def _stepped(self, name: str, step: str) -> int:
        value = self.value_of(name) + (1 if step == "++" else -1)
        self.assign(name, value)
        return value

    def _atom(self) -> int:
        token = self._next()
        if token == "(":
            value = self._list()
            if not self._next(")"):
                raise NotArithmetic("`(` is never closed")
            return value
        if token[:1].isdecimal():
            return _bounded(_number(token))
        if not token.isidentifier():
            raise NotArithmetic(f"`{token}` is out of place")
        value = self.value_of(token)
        if step := self._next("++", "--"):
            self._stepped(token, step)
        return value


def _number(token: str) -> int:
    """`0x20`, `040` and `2#100000` are 32 as `32` is; `09` is no number."""
    base, mark, digits = token.partition("#")
    try:
        if mark:
            return int(digits, int(base))
        if token[:2].lower() == "0x":
            return int(token, 16)
        return int(token, 8 if token.startswith("0") else 10)
    except ValueError:
        raise NotArithmetic(token[:60]) from None


def _bounded(value: int) -> int:
    if not -MOST <= value < MOST:
        raise NotArithmetic("over 64 bit")
    return value
