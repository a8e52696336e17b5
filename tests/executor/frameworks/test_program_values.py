"""What a followed program computes, against Python."""

import math
from types import SimpleNamespace

import pytest

from meshplan.executor.frameworks.program.budget import Budget
from meshplan.executor.frameworks.program.flat import flat
from meshplan.executor.frameworks.program.follow import Program
from meshplan.executor.frameworks.program.modules import Repository
from meshplan.executor.frameworks.program.values import Record

BEFORE = "n = 7; r = 2.5; s = 'Qwen_3-8b'; a = [3, 1, 2]; d = {'tp': 4, 'pp': 2}"
EXPRESSIONS = (
    *(f"n {sign} 3" for sign in ("+", "-", "*", "/", "//", "%", "**", "<<")),
    *(f"n {sign} {m}" for sign in ("<", "<=", ">", ">=", "==", "!=") for m in (6, 7, 8)),
    "-n", "not n", "n and 0", "0 or n", "n if r > 2 else 0", "1 < n < 9", "1 < n > 9",
    "n in a", "3 in a", "3 not in a", "'tp' in d", "'ep' not in d", "'8b' in s", "'9b' in s",
    "s + 'x'", "a + [4]", "a * 2", "a[0]", "a[-1]", "d['pp']", "(d | {'pp': 8})['pp']",
    "int('12')", "int(r)", "float(n)", "str(n)", "bool(a)", "bool([])", "bool(0)", "len(a)",
    "len(s)", "len(d)", "min(a)", "max(a)", "min(n, r)", "max(n, r)", "abs(-n)", "sum(a)",
    "round(r + 1)", "list(range(4))", "list(range(2, 9, 3))", "tuple(a)[0]", "sorted(a)",
    "list(enumerate(a))[1][1]", "list(zip(a, 'xyz'))[2][1]", "math.ceil(r)", "math.floor(r)",
    "s.lower()", "s.upper()", "' x '.strip()", "' x '.lstrip()", "' x '.rstrip()",
    "s.startswith('Qwen')", "s.startswith('8b')", "s.endswith('8b')", "s.endswith('Qwen')",
    "s.split('-')", "s.rsplit('_', 1)", "s.removeprefix('Qwen_')", "s.removesuffix('b')",
    "'12'.isdigit()", "s.isdigit()", "s.title()", "d.get('tp')", "d.get('ep', 1)",
    "list(d.items())[1][1]", "list(d.keys())[0]", "list(d.values())[0]", "a.copy()",
    "[2 * x for x in a if x > 1]", "f'{s}-{n}'", "isinstance(n, int)", "isinstance(s, int)",
    "isinstance(r, (int, float))", "hasattr(c, 'tp')", "getattr(c, 'tp')",
)  # fmt: skip


def followed(body: str) -> dict[str, object]:
    """What `f` returns behind `body`, flat."""
    text = f"import math\ndef f():\n    {BEFORE}\n    c = Config(tp=4)\n{body}"
    record = Program(Repository(text, ""), Budget()).of("f")
    assert isinstance(record, Record)
    found, unknown = flat(record)
    assert not unknown
    return {name: fact.value for name, fact in found.items()}


def test_every_expression_is_as_in_python() -> None:
    """Operators, functions and methods, each in a field of its own."""
    fields = "".join(f"    c.x{at} = [{text}]\n" for at, text in enumerate(EXPRESSIONS))
    found = followed(f"{fields}    return c\n")
    names: dict[str, object] = {"math": math, "c": SimpleNamespace(tp=4)}
    exec(BEFORE, names)
    for at, text in enumerate(EXPRESSIONS):
        (value,) = found[f"x{at}"]
        expected = eval(text, names)
        assert (value, type(value)) == (expected, type(expected)), text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("setattr(c, 'tp', 8)", {"tp": 8}), ("a.append(5); c.tp = a", {"tp": [3, 1, 2, 5]}),
        ("a.extend((5, 6)); c.tp = a", {"tp": [3, 1, 2, 5, 6]}),
        ("a += [5]; c.tp = a", {"tp": [3, 1, 2, 5]}), ("n += 1; c.tp = n", {"tp": 8}),
        ("d.update({'pp': 8}); c.tp = d['pp']", {"tp": 8}),
        ("d |= {'pp': 8}; c.tp = d['pp']", {"tp": 8}),
        ("b = a; b.append(5); c.tp = len(a)", {"tp": 4}),
        ("b = a.copy(); b.append(5); c.tp = len(a)", {"tp": 3}),
    ],
)  # fmt: skip
def test_what_changes_a_value_is_as_in_python(body: str, expected: dict[str, object]) -> None:
    """In place, for every name that it has."""
    assert followed(f"    {body}\n    return c\n") == expected
