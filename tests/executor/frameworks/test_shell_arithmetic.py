"""The shell's whole-number arithmetic, against bash."""

import shutil
import subprocess

import pytest

from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic, evaluate

BASH = shutil.which("bash")
BEFORE = {"x": 13, "y": 3, "z": 0}
SIGNS = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")
EXPRESSIONS = (
    *(f"x {sign} y" for sign in (*SIGNS, "**", "<", ">", "<=", ">=", "==", "!=", "&&", "||")),
    *(f"y {sign} y" for sign in ("<", ">", "<=", ">=", "==", "!=")),
    *(f"x {sign} z" for sign in ("&&", "||")), "z || z", "z && x",
    *(f"x {sign}= y" for sign in ("", *SIGNS)), "x += y *= 2", "z = x, z - 1",
    "-x / y", "x / -y", "-x % y", "x % -y", "-x / -y", "!x", "!z", "~x", "- - x", "!!y",
    "x++ + x", "x-- - x", "++x * 2", "--x * 2", "x > y ? y : x", "z ? 1 : y ? 2 : 4",
    "2 ** 3 ** 2", "-2 ** 2", "1 + 2 * 3 ** 2", "(1 + 2) * 3", "7 - 4 - 2", "64 / 4 / 2",
    "1 | 6 ^ 3 & 2", "1 << 2 + 1", "8 >> 1 < 5", "1 == 1 < 2", "0x1F", "017", "2#101", "16#ff",
    "36#z", "1 << 62", "x >> 63", "2 ** 62", "((((y))))",
)  # fmt: skip


def said(text: str) -> list[int]:
    """The value, and what the variables are then."""
    names = dict(BEFORE)
    return [evaluate(text, names.__getitem__, names.__setitem__), *names.values()]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_every_operator_is_as_in_bash() -> None:
    """One process for all: each in a shell of its own."""
    assert BASH is not None
    set_all = "; ".join(f"{name}={value}" for name, value in BEFORE.items())
    script = "\n".join(f"({set_all}; echo $(({text})) $x $y $z)" for text in EXPRESSIONS)
    ran = subprocess.run([BASH, "-c", script], capture_output=True, text=True, check=True)
    printed = [[int(word) for word in line.split()] for line in ran.stdout.splitlines()]
    assert dict(zip(EXPRESSIONS, map(said, EXPRESSIONS), strict=True)) == dict(
        zip(EXPRESSIONS, printed, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1 / 0", "division by 0"), ("1 % (2 - 2)", "division by 0"), ("1 << 64", "a shift by 64"),
        ("1 >> -1", "a shift by -1"), ("2 ** -1", "the exponent -1"), ("2 ** 63", "over 64 bit"),
        ("2 ** 62 + 2 ** 62", "over 64 bit"), ("1 2", "`2` is out of place"),
        ("(1", "`(` is never closed"), ("1 ? 2", "`?` has no `:`"), ("*", "`*` is out of place"),
        ("09", "09"), ("2#3", "2#3"), ("(" * 60 + "1", "it nests too deep"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_said(text: str, named: str) -> None:
    """By the rule that it breaks."""
    with pytest.raises(NotArithmetic) as found:
        said(text)
    assert named in str(found.value)
