"""YAML, JSON and TOML: values with their lines, and one clear line for what is none of them."""

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshplan.executor.frameworks.documents.parse import number, read_json, read_toml, read_yaml
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.planner.case.reading import Fact, UnreadableConfig


def test_yaml_lines() -> None:
    """A nested key is a dotted name with the line of its key."""
    found = read_yaml("# comment\na:\n  b: 1\n  c: [1, x]\nd: 'yes'\ne: 1e9\n")
    assert found["a.b"] == Fact(1, 3)
    assert found["a.c"] == Fact([1, "x"], 4)
    assert found["d"] == Fact("yes", 5)
    assert found["e"] == Fact(1e9, 6)


MERGES = (
    "base: &b {x: 1, n: {a: 1, b: 2}}\nother: &o {x: 5, y: 6}\n"
    "after:\n  n: {c: 3}\n  <<: *b\nlist:\n  <<: [*o, *b]\n  y: 7\n"
    "twice: &t\n  <<: *o\n  z: 8\nchain:\n  <<: *t\nquoted: {'<<': 4}\n"
)


def test_merged_keys_are_those_of_pyyaml() -> None:
    """`<<` brings keys in, a mapping's own win (whole), an earlier of several merged ones too."""
    found = {name: fact.value for name, fact in read_yaml(MERGES).items()}
    assert found == _flat(yaml.safe_load(MERGES), "")
    assert read_yaml(MERGES)["after.x"] == Fact(1, 1)  # the line that states it


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 9)), max_size=3),
       st.permutations(["*a", "*b", "*c"]), st.integers(0, 3))  # fmt: skip
def test_any_merge_is_pyyamls(own: list[tuple[str, int]], order: list[str], merged: int) -> None:
    """Mappings merged in any order beside any keys, against PyYAML's own loader."""
    keys = "".join(f"  {key}: {value}\n" for key, value in dict(own).items())
    text = (
        "a: &a {x: 10, y: 11}\nb: &b {y: 12, z: 13}\nc: &c {<<: *a, z: 14}\n"
        f"d:\n  k: 1\n{keys}  <<: [{', '.join(order[:merged])}]\n"
    )
    found = {name: fact.value for name, fact in read_yaml(text).items()}
    assert found == _flat(yaml.safe_load(text), "")


def _flat(data: dict[str, object], prefix: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        nested = isinstance(value, dict)
        found[prefix + key] = None if nested else value
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
    return found


def test_json_lines() -> None:
    """A key's line is where it is written, also when a string holds braces and colons."""
    found = read_json('{\n "x": "{a: \\" }",\n "z": {\n  "s": [{"s": 1}],\n  "stage": 3}\n}')
    assert found["z.stage"] == Fact(3, 5)
    assert found["x"].line == 2


def test_toml_lines() -> None:
    """A key's line counts from the top of the file, tables included."""
    found = read_toml('[a]\nb = 1 # c = 2\n\n[a.d]\ne = ["x"]\n')
    assert found["a.b"] == Fact(1, 2)
    assert found["a.d.e"] == Fact(["x"], 5)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        pytest.param(read_yaml, "a: [1", id="truncated YAML"),
        pytest.param(read_yaml, "- 1\n- 2", id="a list, no mapping"),
        pytest.param(read_yaml, "[" * 50_000, id="YAML 50,000 deep"),
        pytest.param(read_yaml, "a: &x\n  b: *x", id="an alias of itself"),
        pytest.param(read_yaml, "a: &x\n  <<: *x", id="a merge of itself"),
        pytest.param(read_yaml, "a: 1\n<<: [1]", id="a merge of a number"),
        pytest.param(
            read_yaml,
            "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 99)),
            id="a merge 99 deep",
        ),
        pytest.param(
            read_yaml,
            "a0: &a0 {x: 1, y: 2}\n"
            + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40)),
            id="2^40 entries by aliases",
        ),
        pytest.param(read_json, '{"a": ', id="truncated JSON"),
        pytest.param(read_json, "[" * 100_000, id="JSON 100,000 deep"),
        pytest.param(read_json, '{"a": ' + "9" * 5000 + "}", id="a number of 5000 digits"),
        pytest.param(read_json, "[1]", id="a JSON list"),
        pytest.param(read_toml, "a = ", id="truncated TOML"),
        pytest.param(read_toml, "a = " + "[" * 20_000, id="TOML 20,000 deep"),
    ],
)
def test_broken_documents(read: object, text: str) -> None:
    """A document that cannot be used is refused in one line."""
    with pytest.raises(UnreadableConfig) as caught:
        read(text)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    assert caught.value.line >= 1


@pytest.mark.parametrize("text", ["a: 2001-99-99", "a: !!int x", "a: !!bool x", "? [b]\n: 1"])
def test_yaml_that_breaks_other_loaders(text: str) -> None:
    """Scalars whose tag does not fit are text, and keys of any kind have a name."""
    assert read_yaml(text)


@pytest.mark.parametrize(
    "text", ["9" * 120_000 + "x", "1_" * 60_000 + "x", "." + "9" * 120_000 + "x"]
)
def test_a_long_number_costs_its_length(text: str) -> None:
    """Digits that end in none of a number's letters are looked at once: no square of them."""
    start = time.process_time()
    assert number(text) == text
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("written", "environment", "value"),
    [
        ("${oc.env:TP}", {"TP": "4"}, 4),
        ("${oc.env:TP, 2}", {"TP": "4"}, 4),
        ("${oc.env:TP,2}", {}, 2),
        ("${oc.env:TP}", {}, "${oc.env:TP}"),
        ("${oc.env:NAME,'llama'}", {}, "llama"),
        ("${multiply:${oc.env:TP,4},16}", {}, 64),
        ("a-${oc.env:TP}", {"TP": "4"}, "a-4"),
        ("${oc.env:TP}", {"TP": "${b}"}, 7),
    ],
)
def test_what_names_the_environment(
    written: str, environment: dict[str, str], value: object
) -> None:
    text = f"a: {written!r}\nb: 7\n" if '"' not in written else ""
    found = {"a": Fact(written, 1), "b": Fact(7, 2)}
    assert resolved(found, text, environment)["a"] == Fact(value, 1)
