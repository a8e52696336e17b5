"""Findings as a table for people, JSON, GitHub annotations, JUnit XML and SARIF 2.1.0.

Every format holds the same findings; the machine formats are one document on standard output.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from meshplan.costmodels.units import GIB, format_bytes, format_seconds
from meshplan.planner.case.settings import one_line
from meshplan.planner.check.check import exit_code
from meshplan.planner.check.verdicts import PASSED, USAGE, Finding, Verdict

Format = Literal["table", "json", "github", "junit", "sarif"]
RULES: dict[Verdict, str] = {
    "does not fit": "A pipeline rank needs more memory than the accelerator has.",
    "illegal": "The layout breaks a rule of the mathematics, of the engine or of the GPU.",
    "drifted": "The prediction moved since the plan was written.",
    "beaten": "Another layout is predicted to be faster by more than the slack.",
    "unreadable": "The file cannot be read as a plan or a config.",
    "incomplete": "The file leaves out a fact, or states one that is not understood.",
    "empty": "No file below the folders is a plan or a config of a format that is read.",
}
_LINE = re.compile(r"line (\d+): ")
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HOME = "https://github.com/meshplan/meshplan"


def noted(finding: Finding) -> list[tuple[int, str]]:
    """What the verdict assumes and the notes, with the line that each is about: its own where it
    names one.
    """
    assumed = (f"assumed: {finding.assumed}",) if finding.assumed else ()
    plain = [one_line(ValueError(note)) for note in (*assumed, *finding.notes)]
    found = [(_LINE.match(note), note) for note in plain]
    return [
        (int(match[1]), note[match.end() :]) if match else (finding.line, note)
        for match, note in found
    ]


def full_text(finding: Finding) -> str:
    """The text with what it assumes and its fix, as one line."""
    text = finding.text + (f"; assumed: {finding.assumed}" if finding.assumed else "")
    text += f". Smallest fix: {finding.fix}" if finding.fix else ""
    return one_line(ValueError(text))


def verdict_words(finding: Finding) -> str:
    """The verdict, and that it holds under something that no file says."""
    return finding.verdict + " (assumed)" * bool(finding.assumed)


def summary(findings: list[Finding]) -> str:
    """`3 configs: 2 fit, 1 does not fit` and so on; what was skipped apart."""
    counts = Counter(verdict_words(finding) for finding in findings)
    skipped, _ = counts.pop("skipped", 0), counts.pop("empty", 0)
    total = sum(counts.values())
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    text = f"{total} config{'s' * (total != 1)} checked" + (f": {parts}" if parts else "")
    files = f"{skipped} file{'s' * (skipped != 1)}"
    return text + (f" ({files} skipped)" if skipped else "")


def as_json(findings: list[Finding]) -> str:
    """`{"findings": [...], "exit_code": n}`, every field with its unit in its name.

    findings   one for each config, and for each file that is none
    exit_code  of the command
    """
    document = {
        "findings": [asdict(finding) for finding in findings],
        "exit_code": exit_code(findings),
    }
    return json.dumps(document, indent=2, allow_nan=False)


def as_github(findings: list[Finding]) -> str:
    """Workflow commands that annotate the right line; a summary line at the end."""
    lines = []
    for finding in findings:
        if finding.verdict not in PASSED:
            lines.append(_command("error", finding, full_text(finding)))
        lines += [
            _command("notice", replace(finding, line=line), text) for line, text in noted(finding)
        ]
    return "\n".join([*lines, summary(findings)])


def _command(level: str, finding: Finding, text: str) -> str:
    where = f"file={_property(one_line_path(finding))},line={finding.line}"
    title = _property(f"meshplan: {finding.verdict}")
    return f"::{level} {where},title={title}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_junit(findings: list[Finding]) -> str:
    """One test case per file: a finding is a failure, an unreadable file an error."""
    counts = {
        "tests": len(findings),
        "failures": sum(f.verdict not in (*PASSED, *USAGE) for f in findings),
        "errors": sum(f.verdict in USAGE for f in findings),
        "skipped": sum(f.verdict == "skipped" for f in findings),
    }
    suite = ElementTree.Element(
        "testsuite", {"name": "meshplan check", **{k: str(v) for k, v in counts.items()}}
    )
    for finding in findings:
        _add_case(suite, finding)
    ElementTree.indent(suite)
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    return head + ElementTree.tostring(suite, encoding="unicode")


def _add_case(suite: ElementTree.Element, finding: Finding) -> None:
    path, of = one_line_path(finding), f"meshplan.{finding.framework or 'file'}"
    facts = {"classname": of, "name": path, "time": "0"}
    case = ElementTree.SubElement(suite, "testcase", facts)
    if finding.verdict == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": finding.text})
    elif finding.verdict not in PASSED:
        kind, text = "error" if finding.verdict in USAGE else "failure", full_text(finding)
        attributes = {"type": finding.verdict, "message": text}
        ElementTree.SubElement(case, kind, attributes).text = f"{path}:{finding.line}: {text}"


def one_line_path(finding: Finding) -> str:
    """The path without characters that a line of text or XML cannot hold."""
    return one_line(ValueError(finding.path)).encode("utf-8", "replace").decode()


def as_sarif(findings: list[Finding]) -> str:
    """A SARIF 2.1.0 log with one run: the rules, and a result for each finding."""
    names = list(RULES)
    results = [_result(finding, names) for finding in findings if finding.verdict not in PASSED]
    driver = {
        "name": "meshplan",
        "informationUri": _HOME,
        "version": version("meshplan"),
        "rules": [
            {
                "id": _rule_id(verdict),
                "name": "".join(word.title() for word in verdict.split()),
                "shortDescription": {"text": text},
                "defaultConfiguration": {"level": "error"},
            }
            for verdict, text in RULES.items()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "exitCode": exit_code(findings)}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule_id(verdict: str) -> str:
    return f"meshplan/{verdict.replace(' ', '-')}"


def _result(finding: Finding, names: list[Verdict]) -> dict[str, Any]:
    region = {"startLine": finding.line}
    uri = quote(one_line_path(finding).replace("\\", "/"))
    kept = ("label", "margin_bytes", "peak_bytes", "capacity_bytes", "step_time_s", "mfu")
    properties = {name: getattr(finding, name) for name in kept}
    return {
        "ruleId": _rule_id(finding.verdict),
        "ruleIndex": names.index(finding.verdict),
        "level": "error",
        "message": {"text": full_text(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}],
        "properties": {name: value for name, value in properties.items() if value is not None},
    }


def as_table(findings: list[Finding], *, width: int | None = None, color: bool = False) -> str:
    """For people: a row per file, then the reason and the fix of each finding, then a summary.

    `color`: as standard output and the environment (NO_COLOR, TERM) have it.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    plain: dict[str, Any] = {} if color else {"no_color": True, "force_terminal": False}
    console = Console(width=width, highlight=False, markup=False, emoji=False, **plain)
    table = Table(box=None, pad_edge=False)
    shown = [finding for finding in findings if finding.verdict not in ("skipped", "empty")]
    longest = max((len(one_line_path(finding)) for finding in shown), default=0)
    for name, justify in (("config", "left"), ("verdict", "left"), ("layout", "left"),
                          ("peak", "right"), ("margin", "right"), ("step", "right"),
                          ("in 8 of 10 runs", "right")):  # fmt: skip
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    # a path is copied from here: one that leaves room for the rest is not folded
    table.columns[0].no_wrap = longest <= console.width // 4
    for finding in shown:
        style = "green" if finding.verdict in PASSED else "red"
        verdict = Text(verdict_words(finding), style=style)
        table.add_row(Text(one_line_path(finding)), verdict, *_numbers(finding))
    with console.capture() as captured:
        if table.row_count:
            console.print(table)
        for finding in findings:
            _print_details(finding, lambda line: console.print(line, soft_wrap=True))
        console.print(summary(findings))
    return captured.get().rstrip("\n")


def _print_details(finding: Finding, show: Callable[[str], object]) -> None:
    place = f"{one_line_path(finding)}:{finding.line}"
    if finding.verdict not in PASSED:
        show(f"{place}: {finding.verdict}: {one_line(ValueError(finding.text))}")
        if finding.fix:
            show(f"    smallest fix: {finding.fix}")
    for line, text in noted(finding):
        show(f"{one_line_path(finding)}:{line}: note: {text}")


def _numbers(finding: Finding) -> list[str]:
    peak, margin, step = finding.peak_bytes, finding.margin_bytes, finding.step_time_s
    low, high = finding.step_time_low_s, finding.step_time_high_s
    whole = finding.gpu_memory_bytes
    return [
        finding.label or "n/a",
        "n/a" if peak is None or whole is None else f"{peak / GIB:.1f} of {format_bytes(whole)}",
        "n/a" if margin is None else format_bytes(margin),
        "n/a" if step is None else format_seconds(step),
        "n/a"
        if low is None or high is None
        else f"{format_seconds(low)} to {format_seconds(high)}",
    ]


MACHINE: dict[Format, Callable[[list[Finding]], str]] = {
    "json": as_json,
    "github": as_github,
    "junit": as_junit,
    "sarif": as_sarif,
}
