"""What a followed program may have changed is not known, and what it does change is read."""

from pathlib import Path
from typing import Any

import pytest

from meshplan.executor.frameworks.nemo.recipe_functions import runs_of_functions
from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.flat import flat
from meshplan.executor.frameworks.program.follow import Program
from meshplan.executor.frameworks.program.modules import Repository
from meshplan.executor.frameworks.program.values import Record, Unknown
from meshplan.executor.frameworks.torchtitan.function_facts import UNCLEAR
from meshplan.executor.frameworks.torchtitan.functions import read_python


def _tp(text: str) -> Any:
    """The `tp` of what `f` returns; None where that is not known."""
    try:
        record = Program(Repository(text, ""), Budget()).of("f")
    except Unfollowed:
        return None
    if isinstance(record, Unknown):
        return None
    assert isinstance(record, Record)
    found, unknown = flat(record)
    return None if {"tp", "*"} & unknown.keys() or "tp" not in found else found["tp"].value


NOT_KNOWN = {
    "a method in a branch": "c = C(tp=2)\n    if go():\n        c.set(4)",
    "a list in a branch": "p = [2]\n    if go():\n        p.append(4)\n    c = C(tp=len(p))",
    "deleted in a branch": "c = C(tp=2)\n    if go():\n        del c.tp",
    "an entry in a branch": "c = C(tp=2)\n    cs = [c]\n    if go():\n        tune(cs[0])",
    "another name in a branch": "c = C(tp=2)\n    if go():\n        d = c\n        tune(d)",
    "a function there": "c = C(tp=2)\n    def t():\n        c.tp = 4\n    if go():\n        t()",
    "a mapping in a branch": "d = {'tp': 2}\n    if go():\n        d['tp'] = 4\n    c = C(**d)",
    "a list that is handed on": "p = [2]\n    tune(p)\n    c = C(tp=p[0])",
    "a list's length": "p = []\n    tune(p)\n    c = C(tp=1 if p else 2)",
    "a mapping that is handed on": "d = {'x': 2}\n    tune(d)\n    c = C(tp=d.get('tp', 1))",
    "a record that an object has": "c = C(tp=2)\n    t = T(c)\n    t.apply()",
    "a function that is handed on": "c = C(tp=2)\n    def t():\n        c.tp = 4\n    run(t)",
    "a function that is not followed":
        "c = C(tp=2)\n    def t():\n        match go():\n            case _:\n"
        "                c.tp = 4\n    t()",
    "`and`": "c = C(tp=2)\n    go() and setattr(c, 'tp', 4)",
    "a choice": "c = C(tp=2)\n    setattr(c, 'tp', 4) if go() else None",
    "a comprehension": "c = C(tp=2)\n    [setattr(c, k, v) for k, v in go()]",
    "two loops in one": "c = C(tp=2)\n    [setattr(c, k, v) for k in ['tp'] for v in [4]]",
    "a lambda": "c = C(tp=2)\n    u = lambda: setattr(c, 'tp', 4)\n    u()",
    "a default that a mapping may replace": "c = base(**go())",
    "a default that a star may replace": "c = base(*go())",
    "what stands behind a star": "c = base(*go(), 4)",
    "fields of a class that it may replace": "c = Mine(**go())",
    "what a handler stores":
        "c = C(tp=2)\n    try:\n        import te\n    except ImportError:\n        c.tp = 1",
    "a name of a handler alone":
        "n = 2\n    try:\n        import t\n    except E:\n        n = 1\n    c = C(tp=n)",
    "its dictionary": "c = C(tp=2)\n    c.__dict__.update(tp=4)",
    "code": "c = C(tp=2)\n    exec('c.tp = 4')",
    "a launcher's variable": "c = C(tp=int(os.environ.get('WORLD_SIZE', '1')))",
    "a generator": "def g():\n        yield 4\n    c = C(tp=g())",
    "what another package gives": "c = C(train=T(tp=pick()))\n    c = C(tp=c.train.tp)",
}  # fmt: skip
_BEFORE = """
import os
def base(tp=1, pp=1):
    return C(tp=pp, pp=pp)
class Mine:
    tp: int = 4
def f():
    """


def test_a_name_that_a_try_stores_is_what_it_stores_where_nothing_is_raised() -> None:
    """Handlers of missing packages store the same name."""
    body = "try:\n        n = 2\n    except ImportError:\n        n = None\n    c = C(tp=n)"
    assert _tp(f"{_BEFORE}{body}\n    return c\n") == 2


@pytest.mark.parametrize("body", NOT_KNOWN.values(), ids=NOT_KNOWN.keys())
def test_what_may_have_changed_is_not_known(body: str) -> None:
    assert _tp(f"{_BEFORE}{body}\n    return c\n") is None


def test_what_a_function_makes_in_a_section_is_not_known() -> None:
    record = Program(Repository("def f():\n    return C(m=M(tp=pick(), x=X(1)))\n", ""), Budget())
    found, unknown = flat(record.of("f"))
    assert (unknown["m.tp"].value, found["m.x"].value) == ("pick()", None)


OF_A_MODULE = {
    "a method of a list": "S = [8, 4]\nS.reverse()\ndef f():\n    return C(tp=S[0])",
    "deleted": "D = C(tp=8)\ndel D.tp\ndef f():\n    return D",
    "a function": "def b():\n    return C(tp=1)\nif go():\n    def b():\n        return C(tp=2)\n"
    "def f():\n    return b()",
    "an import": "TP = 2\nif go():\n    from q import TP\ndef f():\n    return C(tp=TP)",
    "a match": "D = C(tp=2)\nmatch go():\n    case 1:\n        D.tp = 4\ndef f():\n    return D",
    "matched": "TP = 2\nmatch go():\n    case TP:\n        pass\ndef f():\n    return C(tp=TP)",
    "by a function": "TP = 2\ndef t():\n    global TP\n    TP = 4\ndef f():\n    t()\n"
    "    return C(tp=TP)",
}


@pytest.mark.parametrize("text", OF_A_MODULE.values(), ids=OF_A_MODULE.keys())
def test_what_a_modules_own_level_may_change_is_not_known(text: str) -> None:
    got = _tp(f"{text}\n")
    assert got is None or not isinstance(got, int)


READ = {
    "a name that is stored behind the function": "tp = 2\n    def g():\n        return C(tp=tp)\n"
    "    tp = 4\n    c = g()",
    "a list that two names have": "a = b = [1, 2, 3]\n    b += [4]\n    c = C(tp=len(a))",
    "a mapping that two names have": "a = b = {'tp': 1}\n    b |= {'tp': 4}\n    c = C(**a)",
    "a copy's sections are the same": "c = C(m=M(tp=2))\n    d = copy.copy(c)\n    d.m.tp = 4\n"
    "    c = C(tp=c.m.tp)",
    "a default of where it is made": "c = late()",
    "one default of all calls": "grow()\n    grow()\n    grow()\n    c = C(tp=len(grow()))",
    "a set": "c = C(tp=len({1, 2, 3, 4, 4}))",
    "a variable that it sets": "os.environ['TP'] = '4'\n    c = C(tp=int(os.environ['TP']))",
    "a test that reads": "c = C(tp=4)\n    if go():\n        print(c, hasattr(c, 'x'))",
}
_MORE = """
import copy, os
TP = 4
def late(tp=TP):
    return C(tp=tp)
TP = 2
def grow(x=[]):
    x.append(1)
    return x
def f():
    """


@pytest.mark.parametrize("body", READ.values(), ids=READ.keys())
def test_what_python_does_is_read(body: str) -> None:
    assert _tp(f"{_MORE}{body}\n    return c\n") == 4


def test_a_file_that_is_never_done_is_not_read(tmp_path: Path) -> None:
    """A link to a file of the system that says it is empty, and is as long as the memory."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "sizes.py").symlink_to("/proc/self/pagemap")
    text = "from sizes import TP\ndef f():\n    return C(tp=TP)\n"
    record = Program(Repository(text, str(tmp_path / "a.py")), Budget()).of("f")
    assert flat(record)[0]["tp"].value == "sizes.TP"


def test_a_policy_that_is_handed_on_is_named() -> None:
    """A function of another package may change what recomputes."""
    text = """
from torchtitan.trainer import Trainer
def f() -> Trainer.Config:
    policy = FullAC.Config()
    tune(policy)
    return Trainer.Config(activation_checkpoint=policy)
"""
    unclear = read_python(text, "a.py")["f"][UNCLEAR].value
    assert [fact.value for fact in unclear] == ["tune(policy) (it may change it)"]


def test_a_decorator_may_change_what_a_function_returns() -> None:
    """One that only registers it does not."""
    text = "@{}('x')\ndef b():\n    return C(tp=2)\ndef f():\n    return b()\n"
    assert _tp(text.format("widened")) is None
    assert _tp(text.format("register")) == 2


def test_a_list_with_what_is_not_known_is_not_known() -> None:
    record = Program(
        Repository("def f():\n    return C(m=M(a=[go], b=[1, x + 1]))\n", ""), Budget()
    )
    _, unknown = flat(record.of("f"))
    assert {name: fact.value for name, fact in unknown.items()} == {"m.b": "x + 1"}


def test_sections_that_a_mapping_gives_a_recipe_are_named() -> None:
    """Whatever `**` stands for may say the layout."""
    text = "def f() -> ConfigContainer:\n    return ConfigContainer(**common(), train=T())\n"
    (run,) = runs_of_functions(text, "r.py")
    assert [fact.value for fact in run.unread] == ["**common()"]
