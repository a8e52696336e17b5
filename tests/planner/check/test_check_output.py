"""The five output formats: the same findings, each valid in its own standard."""

import json
from dataclasses import replace
from typing import Any, get_args
from xml.etree import ElementTree

import jsonschema
import pytest
from sarif_schema import VALIDATOR, valid_log

from meshplan.planner.check.output import (
    MACHINE,
    RULES,
    as_github,
    as_json,
    as_junit,
    as_sarif,
    as_table,
)
from meshplan.planner.check.verdicts import PASSED, Finding, Verdict

FITS = Finding(
    path="a/fits.yaml", verdict="fits", text="20.0 GiB free", label="dp8 zero1 mbs1",
    margin_bytes=20 * 2.0**30, peak_bytes=60 * 2.0**30, capacity_bytes=80 * 2.0**30,
    step_time_s=1.5, mfu=0.4, framework="plan", notes=("the profile changed",),
)  # fmt: skip
BIG = Finding(
    path="a/big, odd: name.sh", verdict="does not fit", text="rank 0 needs 100% more", line=7,
    fix="micro_batch_size 1", framework="megatron", label="dp8 zero1 mbs8", stage=0,
    category="activations", margin_bytes=-1.0, peak_bytes=2.0, capacity_bytes=1.0,
)  # fmt: skip
BAD = Finding(path="b/bad.json", verdict="unreadable", text="not JSON: Expecting value", line=3)
SKIPPED = Finding(path="b/x.png", verdict="skipped", text="not a suffix that configs have")
ALL = [FITS, BIG, BAD, SKIPPED]


def test_github_annotates_the_right_line() -> None:
    """`::error file=,line=` per finding, properties and data escaped as the runner unescapes
    them.
    """
    lines = as_github(ALL).splitlines()
    assert lines[1] == (
        "::error file=a/big%2C odd%3A name.sh,line=7,title=meshplan%3A does not fit::"
        "rank 0 needs 100%25 more. Smallest fix: micro_batch_size 1"
    )
    assert lines[2].startswith("::error file=b/bad.json,line=3,title=meshplan%3A unreadable::")
    assert lines[0].startswith("::notice file=a/fits.yaml,line=1,")
    assert lines[-1] == "3 configs checked: 1 fits, 1 does not fit, 1 unreadable (1 file skipped)"


def test_what_fits_under_an_assumption_is_counted_apart() -> None:
    """In the last line as in the table."""
    assumed = replace(FITS, assumed="no recomputation, which its program chooses")
    last = "3 configs checked: 1 fits, 2 fits (assumed)"
    assert as_table([FITS, assumed, assumed], width=200).endswith(last)
    assert as_github([FITS, assumed, assumed]).endswith(last)


def test_a_note_stands_at_its_own_line() -> None:
    """A note that names a line is annotated there, and not at the finding's."""
    finding = replace(BIG, notes=("line 12: x is priced as y", "no line"))
    lines = as_github([finding]).splitlines()
    assert ",line=12,title=meshplan%3A does not fit::x is priced as y" in lines[1]
    assert ",line=7," in lines[2]
    assert "name.sh:12: note: x is priced as y" in as_table([finding], width=120)


def test_json_holds_every_field() -> None:
    """One document with the findings as they are and the exit code."""
    document = json.loads(as_json(ALL))
    assert document["exit_code"] == 2
    assert document["findings"][1]["margin_bytes"] == -1.0
    assert document["findings"][1]["fix"] == "micro_batch_size 1"
    assert [each["verdict"] for each in document["findings"]] == [each.verdict for each in ALL]


def test_junit_counts_add_up() -> None:
    """tests = cases, failures and errors are those of the verdicts, and each case says why."""
    suite = ElementTree.fromstring(as_junit(ALL))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    assert suite.get("skipped") == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "does not fit"
    assert ":7:" in str(failure.text)
    (passed_over,) = suite.findall("testcase/skipped")
    assert passed_over.get("message") in {each.text for each in ALL if each.verdict == "skipped"}


def test_sarif_is_valid_and_complete() -> None:
    """The standard's schema accepts it: a result, a rule and a line for every finding."""
    run = valid_log(as_sarif(ALL))["runs"][0]
    assert len(run["results"]) == 2
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == 7
    assert place["artifactLocation"]["uri"] == "a/big%2C%20odd%3A%20name.sh"


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_sarif_of_every_verdict(verdict: Verdict) -> None:
    """Whatever is said of a file, with every number or with none, is a valid log."""
    full = replace(BIG, verdict=verdict, step_time_s=1.5, mfu=0.4, notes=("a note",))
    bare = Finding(path="x.yaml", verdict=verdict, text="")
    results = valid_log(as_sarif([full, bare]))["runs"][0]["results"]
    assert len(results) == (0 if verdict in PASSED else 2)
    if results:
        assert results[0]["properties"]["margin_bytes"] == -1.0
        assert results[1]["properties"] == {}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"message": {}}, id="no message"),
        pytest.param({"level": "fatal"}, id="an unknown level"),
        pytest.param({"rule": "x"}, id="an unknown property"),
        pytest.param({"ruleIndex": -2}, id="an index below -1"),
        pytest.param(
            {"locations": [{"physicalLocation": {"region": {"startLine": 0}}}]}, id="line 0"
        ),
    ],
)
def test_the_schema_is_strict(change: dict[str, Any]) -> None:
    """The schema refuses what the standard refuses, so accepting says something."""
    log = valid_log(as_sarif([BIG]))
    log["runs"][0]["results"][0] |= change
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(log)


def test_every_verdict_has_its_rule() -> None:
    """A verdict that is a finding is described in SARIF, and one that is none is not."""
    assert {*RULES, *PASSED} == set(get_args(Verdict))
    assert not set(RULES) & set(PASSED)


def test_the_table_is_for_people() -> None:
    """Each config has a row; findings follow with place, reason and fix; no escape codes."""
    text = as_table(ALL, width=120)
    assert "fits.yaml" in text
    assert "a/big, odd: name.sh:7: does not fit: rank 0 needs 100% more" in text
    assert "smallest fix: micro_batch_size 1" in text
    assert "a/fits.yaml:1: note: the profile changed" in text
    assert "\x1b" not in text
    assert "x.png" not in text


def test_the_table_has_the_range_of_the_step_time() -> None:
    """Beside the step what 8 of 10 runs take; a finding without a prediction has none."""
    ranged = replace(FITS, step_time_low_s=1.25, step_time_high_s=1.8)
    text = as_table([ranged, BAD], width=140)
    assert "in 8 of 10 runs" in text
    assert "1.25 s to 1.80 s" in text
    (row, _) = json.loads(as_json([ranged, BAD]))["findings"]
    assert (row["step_time_low_s"], row["step_time_high_s"]) == (1.25, 1.8)


@pytest.mark.parametrize("name", MACHINE)
def test_odd_paths_do_not_break_a_format(name: str) -> None:
    """Control characters, lone surrogates and markup in a path leave every document whole."""
    finding = Finding(path="a\x00\x1b[31m\ud800<&>\"'\n.yaml", verdict="illegal", text="x")
    text = MACHINE[name]([finding])  # type: ignore[index]
    text.encode("utf-8")
    if name == "junit":
        ElementTree.fromstring(text)
    if name == "json":
        json.loads(text)
    if name == "sarif":
        valid_log(text)


@pytest.mark.parametrize("name", MACHINE)
def test_nothing_to_check_is_a_valid_document(name: str) -> None:
    """No findings at all is still one document."""
    text = MACHINE[name]([])  # type: ignore[index]
    assert valid_log(text) if name == "sarif" else text


def test_colours_as_the_environment_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, but for NO_COLOR (https://no-color.org)."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    green = "\x1b[32m"
    assert green in as_table([FITS], width=200, color=True)
    assert green not in as_table([FITS], width=200)
    monkeypatch.setenv("NO_COLOR", "1")
    assert green not in as_table([FITS], width=200, color=True)
