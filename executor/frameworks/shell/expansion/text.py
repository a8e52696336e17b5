"""Pure functions of text in the shell: `${X%.sh}` and its like, and commands that only compute.

Source: GNU Bash manual 5.2, 3.5.3 Shell Parameter Expansion; POSIX.1-2017 `expr`, `basename`.
"""

import fnmatch
import re
from collections.abc import Callable
from itertools import dropwhile, takewhile

from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic, evaluate

_FILTER = (
    r"\s*\|\s*(?:xargs|tr (?:-s )?['\"]?(?:\\n| )['\"]? ['\"] ['\"]|tr -s ' '"
    r"|sed ['\"]s/[ \\+*s]+/ /g['\"])"
)
SPACED = re.compile(rf"echo ((?:\"[^\"|]*\"|[^\"'|;&<>])+?)(?:{_FILTER})+", re.S)
"""`echo X | tr '\\n' ' ' | sed 's/  \\+/ /g'`: a text on one line."""
MAX_NUMBERS = 20_000  # of one `seq`


def computed(words: list[str]) -> str | None:
    """What echo, printf, expr, seq, basename or which prints (of `which` the program's name is
    enough); None for every other command.
    """
    if not words:
        return ""
    name, rest = words[0], words[1:]
    if name == "echo":
        return echoed(rest)
    if (name == "which" and len(rest) == 1) or (name == "command" and rest[:1] == ["-v"]):
        return rest[-1]
    if name == "basename" and len(rest) in (1, 2):
        last = rest[0].rstrip("/").rpartition("/")[2]
        return last.removesuffix(rest[1]) if rest[1:] and rest[1] != last else last
    if name == "printf" and rest and not rest[0].startswith("-"):
        return formatted(rest[0], rest[1:])
    if name == "seq" and 0 < len(rest) <= 3 and all(re.fullmatch(r"-?\d{1,6}", x) for x in rest):
        numbers = [int(x) for x in rest]
        first, step = (numbers[0] if len(rest) > 1 else 1), (numbers[1] if len(rest) > 2 else 1)
        span = range(first, numbers[-1] + (1 if step > 0 else -1), step) if step else range(0)
        return "\n".join(map(str, span)) if len(span) <= MAX_NUMBERS else None
    if name == "expr":
        try:
            decimal = re.sub(r"\b0+(?=\d)", "", " ".join(rest))  # `expr 010 + 1` is 11
            return str(evaluate(decimal, no_name, lambda _name, _value: None))
        except NotArithmetic:
            return None
    return None


_ECHO_OPTIONS = re.compile(r"-[neE]+")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def ends_open(words: list[str]) -> bool:
    """Whether these words make `echo` leave its last line without an end."""
    return any("n" in word for word in takewhile(_ECHO_OPTIONS.fullmatch, words))


def echoed(words: list[str]) -> str | None:
    """What bash prints, less the line end behind it; None for escapes that are not read."""
    options = "".join(takewhile(_ECHO_OPTIONS.fullmatch, words))
    text = " ".join(dropwhile(_ECHO_OPTIONS.fullmatch, words))
    if "e" not in options or options.rfind("E") > options.rfind("e"):
        return text
    if set(re.findall(r"\\.?", text)) - _ESCAPES.keys():
        return None
    return re.sub(r"\\.", lambda match: _ESCAPES[match[0]], text)


_FORMAT = re.compile(r"%([-+ 0]?\d{0,3}[sdi]|%)|\\([nt\\])")


def formatted(pattern: str, arguments: list[str]) -> str | None:
    """What `printf` makes of its pattern, once for as many arguments as it takes; None for other
    signs than `%s`, `%d` and `%%`, and where an argument is no number.
    """
    if "%" in _FORMAT.sub("", pattern) or "\\" in _FORMAT.sub("", pattern):
        return None
    left, text = list(arguments), ""
    takes = any(not match[0].startswith(("%%", "\\")) for match in _FORMAT.finditer(pattern))
    try:
        while True:
            text += _FORMAT.sub(lambda match: _filled(match, left), pattern)
            if not left or not takes:
                return text
    except ValueError:
        return None


def _filled(match: re.Match[str], left: list[str]) -> str:
    if match[2]:
        return {"n": "\n", "t": "\t"}.get(match[2], match[2])
    if match[1] == "%":
        return "%"
    text = left.pop(0) if left else ""
    return f"%{match[1]}" % (text if match[1].endswith("s") else int(text or "0", 0))


def no_name(name: str) -> int:
    """The value of a name where none is set."""
    raise NotArithmetic(f"{name} is not set")


def change_of(rest: str) -> Callable[[str], str] | None:
    """What `rest` of `${Xrest}` does to a text (`%.sh`, `/a/b`, `:0:2`, `^^`), None if unknown."""
    if match := re.fullmatch(r"(%%?|##?)(.*)", rest, re.S):
        sign, end = match[1], match[2]
        return lambda text: _cut(text, sign, end)
    if match := re.fullmatch(r"(//?)((?:\\.|[^/])+)(?:/(.*))?", rest, re.S):
        pattern = re.compile(_regex(re.sub(r"\\(.)", r"\1", match[2])))
        count, other = 0 if match[1] == "//" else 1, match[3] or ""
        return lambda text: pattern.sub(lambda _: other, text, count=count)
    if match := re.fullmatch(r":\s*(\d+)(?::\s*(\d+))?", rest):
        start, length = int(match[1]), match[2]
        return lambda text: text[start : start + int(length) if length else None]
    return {"^^": str.upper, ",,": str.lower}.get(rest)


def _regex(pattern: str) -> str:
    return fnmatch.translate(pattern).removeprefix("(?s:").removesuffix(")\\Z")


def _cut(text: str, sign: str, pattern: str) -> str:
    """`text` without its shortest (`%`, `#`) or longest start or end that matches `pattern`."""
    ends = range(len(text) + 1)
    if sign[0] == "%":
        order = reversed(ends) if sign == "%" else ends
        return next((text[:at] for at in order if fnmatch.fnmatchcase(text[at:], pattern)), text)
    order = ends if sign == "#" else reversed(ends)
    return next((text[at:] for at in order if fnmatch.fnmatchcase(text[:at], pattern)), text)
