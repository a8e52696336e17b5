"""Python that is followed and never run: over files, with classes, and where it is not known."""

import ast
from pathlib import Path

import pytest

from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.calls import Rules
from meshplan.executor.frameworks.program.flat import flat
from meshplan.executor.frameworks.program.follow import Program
from meshplan.executor.frameworks.program.modules import Repository
from meshplan.executor.frameworks.program.values import Record
from meshplan.planner.case.reading import UnreadableConfig


def _said(text: str, path: str = "") -> dict[str, object]:
    """What `f` returns, flat; what is not known by its words in brackets."""
    record = Program(Repository(text, path), Budget()).of("f")
    assert isinstance(record, Record)
    found, unknown = flat(record)
    return {name: fact.value for name, fact in found.items()} | {
        name: f"<{fact.value}>" for name, fact in unknown.items()
    }


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_functions_and_constants_of_other_files_are_followed(tmp_path: Path) -> None:
    """A package's `__init__`, a name that it hands on, a relative import, a default argument."""
    (tmp_path / ".git").mkdir()
    _file(tmp_path, "src/pack/__init__.py", "from pack.base import base as begin\n")
    _file(tmp_path, "src/pack/base.py", "from .sizes import TP\ndef base(tp=TP, pp=1):\n"
          "    return Config(tp=tp, pp=pp, inner=Inner())\n")  # fmt: skip
    _file(tmp_path, "src/pack/sizes.py", "TP = 2 * 4\n")
    body = "    c = begin(pp=2)\n    c.inner.x = c.tp\n    return c\n"
    text = f"from pack import begin\ndef f():\n{body}"
    own = _file(tmp_path, "scripts/run.py", text)
    said = _said(text, str(own))
    assert said == {"tp": 8, "pp": 2, "inner": None, "inner.x": 8}


def test_a_class_states_its_fields_defaults() -> None:
    """Those of the class that it is made of too, each record with its own."""
    text = """
from dataclasses import dataclass, field, replace
@dataclass
class Base:
    tp: int = 1
    sizes: list = field(default_factory=list)
@dataclass
class Mine(Base):
    pp: int = 2
def f():
    c = Mine(4)
    other = replace(c, tp=8)
    other.sizes.append(3)
    return Config(a=c, b=other, c=Mine())
"""
    said = _said(text)
    assert (said["a.tp"], said["a.pp"], said["b.tp"], said["c.sizes"]) == (4, 2, 8, [])
    assert said["a.sizes"] == [3]  # one list, which `replace` hands on


UNKNOWN = {
    "a branch": ("if unknown():\n        c.x = 2", "x", "what unknown() decides"),
    "a branch in a branch": ("if c.x == 1:\n        if go():\n            c.x = 2", "x", "go()"),
    "a hand": ("change(c)", "*", "change(c) (it may change it)"),
    "a number": ("c.x = len(unknown())", "x", "len(unknown())"),
    "a loop": ("for n in unknown():\n        c.x = n", "x", "unknown()"),
    "what a try decides": (
        "try:\n        c.x = [1][2]\n    except E:\n        c.x = 3",
        "x",
        "try",
    ),
    "the environment": ("c.x = int(os.environ['N'])", "x", "os.environ"),
}


@pytest.mark.parametrize(("body", "name", "said"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_an_unknown_value_decides_is_not_known(body: str, name: str, said: str) -> None:
    text = f"import os\ndef f():\n    c = Config(x=1)\n    {body}\n    return c\n"
    assert said in str(_said(text)[name])


UNFOLLOWED = {
    "a return that it decides": "if unknown():\n        return c",
    "an index that is not there": "c.x = [1][3]",
    "a raise": "raise ValueError('no')",
    "a list that may change": "parts = [1]\n    parts.sort()",
    "a store into what is not known": "d = unknown() + 1\n    d.x = 2",
    "deleted": "del c.x",
    "a name of the module": "global n\n    n = 3",
    "a mapping's name": "{}['a']",
}


@pytest.mark.parametrize("body", UNFOLLOWED.values(), ids=UNFOLLOWED.keys())
def test_what_is_not_followed_says_its_line(body: str) -> None:
    with pytest.raises(Unfollowed) as found:
        _said(f"def f():\n    c = Config(x=1)\n    {body}\n    return c\n")
    assert found.value.line in (3, 4)


def test_the_environment_is_what_the_file_is_started_with() -> None:
    """A number that stands for a variable not given is noted; a path is not."""
    text = "import os\ndef f():\n    return Config(x=int(os.environ.get('TP', '2')))\n"
    for environment, x in (({}, 2), ({"TP": "8"}, 8)):
        program = Program(Repository(text, ""), Budget(), Rules(environment=environment))
        assert program.of("f").get("x") == x
        assert [*program.assumed] == ([] if environment else ["TP"])
    path = Program(Repository(text.replace("'2'", "'/data'"), ""), Budget())
    assert path.of("f") is not None
    assert not path.assumed


@pytest.mark.parametrize(
    ("decorator", "known"), [("dataclass", True), ("register('a')", True), ("patched", False)]
)
def test_a_decorator_may_change_what_a_class_makes(decorator: str, known: bool) -> None:
    """`@dataclass` and what registers leave the fields as they are."""
    text = f"@{decorator}\nclass C:\n    x: int = 1\ndef f():\n    return C()\n"
    record = Program(Repository(text, ""), Budget()).of("f")
    assert isinstance(record, Record)
    assert (record.changed is None) == known


HOSTILE = {
    "without end": "def f():\n    n = [1] * 9999\n    for a in n:\n        for b in n:\n"
    "            x = a\n",
    "itself": "def f(n=0):\n    return f(n)\n",
    "doubled": "def f():\n    x = [1]\n" + "    x = x + x\n" * 40 + "    return Config(x=x)\n",
    "a text": "def f():\n    x = 'a'\n" + "    x = x + x\n" * 40 + "    return Config(x=x)\n",
    "a power": "def f():\n    return Config(x=9 ** 9 ** 9, y=1 << 10 ** 9, z=[0] * 10 ** 12)\n",
    "a chain": "import copy\ndef f():\n    c = Config()\n    for i in range(9999):\n"
    "        c = Config(c=c)\n    return copy.deepcopy(c)\n",
    "pairs": "def f():\n    x = (1,)\n" + "    x = (x, x)\n" * 40
    + "    return Config(y=x == x, z={x: 1})\n",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_program_ends_with_one_line(text: str) -> None:
    """Counted, not timed: loops, recursion, doubling, powers, chains; nothing of them is run."""
    said, why = None, ""
    try:
        said = Program(Repository(text, ""), Budget()).of("f")
    except (UnreadableConfig, Unfollowed) as error:
        why = str(error)
    assert "\n" not in why
    assert not isinstance(said, Record) or len(str(flat(said))) < 300_000


def test_nothing_is_imported_or_run(tmp_path: Path) -> None:
    """Not even of files that the program imports."""
    (tmp_path / ".git").mkdir()
    mark = tmp_path / "mark"
    run = f"open({str(mark)!r}, 'w').close()\n__import__('os').system('touch {mark}')\n"
    _file(tmp_path, "evil.py", run + "def g():\n    return Config(x=1)\n")
    text = f"from evil import g\n{run}def f():\n    compile('1')\n    return g()\n"
    assert _said(text, str(tmp_path / "a.py"))["x"] == 1
    assert not mark.exists()


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    _file(tmp_path, "a.py", "from b import x\nfrom b import y as z\n")
    _file(tmp_path, "b.py", "from a import x\nfrom a import z as y\n")
    text = "from a import x, z\ndef f():\n    return Config(x=x, z=z)\n"
    assert set(_said(text, str(tmp_path / "c.py"))) == {"x", "z"}


def test_the_words_of_syntax_are_short() -> None:
    """A call of a thousand arguments is said by its name."""
    from meshplan.executor.frameworks.program.values import words

    node = ast.parse(f"make({', '.join('x' * 1000)})").body[0]
    assert isinstance(node, ast.Expr)
    assert words(node.value) == "make(...)"
