"""Outputs pasted into the documentation, by command: so that they cannot rot.

    python -m benchmarks.commands.readme            write them anew
    python -m benchmarks.commands.readme --check    say which differ, exit 1 if any does
    python -m benchmarks.commands.readme docs/guide/ci-gate.md ...    only these pages

A place looks like this; the commands of a file run in order, in one folder that has `examples/`:

    <!-- output: meshplan models tiny-llama -->
    ```console
    $ meshplan models tiny-llama
    ...
    ```
    <!-- end -->

Wall times differ from run to run and do not count as a difference. A picture is a file beside its
page, drawn by the command above it; where the words in it are the same, it is the same picture:

    <!-- picture: meshplan sweep ... --plot sweep.svg -->
    ![text](sweep.svg)
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pages import ROOT
from benchmarks.usage import check_usage

DOCUMENTS = ("README.md", "docs/commands.md", "docs/learn.md")
GUIDE = tuple(
    f"docs/guide/{path.name}"
    for path in sorted((ROOT / "docs" / "guide").glob("*.md"))
    if path.name != "README.md"
)
"""Pages whose outputs take a minute together: `just nightly` compares them."""
PLACE = re.compile(r"<!-- output: (?P<command>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
PICTURE = re.compile(r"<!-- picture: (?P<command>[^\n]+?) -->\n!\[[^\]]*\]\((?P<file>[^)\n]+)\)\n")
SLOW = re.compile(r"meshplan sweep (?!--help)")
"""Commands that plan many times: their outputs are compared nightly."""
WALL_TIME = re.compile(r"(layouts? in\s+)\d+\.\d+ s")
PLAIN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "LANG": "C.UTF-8"}


def renewed(text: str, *, slow: bool = True) -> str:
    """`text` with the output of every place, or of all but the `SLOW`, as it is now."""
    places = {place["command"]: place[0] for place in PLACE.finditer(text)}
    commands = [command for command in places if slow or not SLOW.match(command)]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        outputs = outputs_of(commands, Path(folder))
    places |= {each: filled(each, out) for each, out in zip(commands, outputs, strict=True)}
    return PLACE.sub(lambda place: places[place["command"]], text)


def filled(command: str, output: str) -> str:
    """A place with the `output` of `command`."""
    shown = "\n".join(wrapped(command))
    return f"<!-- output: {command} -->\n```console\n$ {shown}\n{output}\n```\n<!-- end -->"


def wrapped(command: str) -> Iterator[str]:
    """The command in lines that a shell takes as one."""
    line = ""
    for word in re.split(r" (?=-)", command):
        if line and len(line) + len(word) > 88:
            yield line + " \\"
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    yield line


RUN = """
import contextlib, io, json, sys
from meshplan.planner.cli.main import main

def run(arguments):
    sys.argv, printed = arguments, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            main()
        except SystemExit as end:
            return end.code or 0, printed.getvalue()
    return 0, printed.getvalue()

print(json.dumps([run(arguments) for arguments in json.load(sys.stdin)]))
"""
"""The commands of a page one after the other in one interpreter, which imports once."""


def outputs_of(commands: list[str], folder: Path) -> list[str]:
    """What each of `commands` prints on stdout in `folder`; a failure of ours is an error."""
    lines = [shlex.split(command) for command in commands]
    assert {program for program, *_ in lines} == {"meshplan"}, "only meshplan is run"
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env={**os.environ, **PLAIN},
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    for command, (code, _) in zip(commands, answers, strict=True):
        found = (0, 1) if command.startswith("meshplan check") else (0, 3)
        assert code in found, f"{command}: exit {code}\n{ran.stderr}"
    return [_trimmed(printed) for _, printed in answers]


def _trimmed(printed: str) -> str:
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())


def differences(before: str, after: str) -> list[str]:
    """The commands whose outputs differ by more than their wall times."""
    pairs = zip(PLACE.finditer(before), PLACE.finditer(after), strict=True)
    return [new["command"] for old, new in pairs if timeless(old[0]) != timeless(new[0])]


def timeless(text: str) -> str:
    """`text` without wall times."""
    return WALL_TIME.sub(r"\1", text)


def pictures(name: str) -> Iterator[tuple[Path, str]]:
    """The pictures of the page `name`, each as a file and what its command draws now."""
    for place in PICTURE.finditer((ROOT / name).read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory() as folder:
            outputs_of([place["command"]], Path(folder))
            drawn = (Path(folder) / Path(place["file"]).name).read_text(encoding="utf-8")
        yield (ROOT / name).parent / place["file"], drawn


def words_of(picture: str) -> list[str]:
    """The words that an SVG shows, without where they stand."""
    return sorted(re.findall(r">([^<>]*\S[^<>]*)</(?:text|tspan)>", picture))


def main() -> int:
    """The command; returns its exit code."""
    stale = 0
    named = [argument for argument in sys.argv[1:] if argument != "--check"]
    for name in named or (*DOCUMENTS, *GUIDE):
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = renewed(before)
        changed = differences(before, after)
        stale += len(changed)
        for command in changed:
            print(f"{name}: {command}")
        if "--check" not in sys.argv:
            path.write_text(after, encoding="utf-8")
        for picture, drawn in pictures(name):
            known = picture.read_text(encoding="utf-8") if picture.exists() else ""
            if words_of(known) != words_of(drawn):
                stale += 1
                print(f"{name}: {picture.name}")
                if "--check" not in sys.argv:
                    picture.write_text(drawn, encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    sys.exit(main())
