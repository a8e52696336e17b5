"""Outputs pasted into the documentation, by command: so that they cannot rot.

    python -m benchmarks.readme            write them anew
    python -m benchmarks.readme --check    say which differ, exit 1 if any does

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

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/commands.md", "docs/learn.md")
PLACE = re.compile(r"<!-- output: (?P<command>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
PICTURE = re.compile(r"<!-- picture: (?P<command>[^\n]+?) -->\n!\[[^\]]*\]\((?P<file>[^)\n]+)\)\n")
WALL_TIME = re.compile(r"((?:CP-SAT solves|simulated),\s+)\d+\.\d+ s")
PLAIN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "LANG": "C.UTF-8"}


def renewed(text: str) -> str:
    """`text` with the output of every place as its command gives it now."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        return PLACE.sub(lambda place: filled(place["command"], Path(folder)), text)


def filled(command: str, folder: Path) -> str:
    """A place with the output of `command`, run in `folder`."""
    shown = "\n".join(wrapped(command))
    body = f"```console\n$ {shown}\n{output_of(command, folder)}\n```\n"
    return f"<!-- output: {command} -->\n{body}<!-- end -->"


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


def output_of(command: str, folder: Path) -> str:
    """What `command` prints on stdout; a failure of ours is an error."""
    program, *arguments = shlex.split(command)
    assert program == "meshplan", f"only meshplan is run, not {program}"
    ran = subprocess.run(
        [sys.executable, "-c", "from meshplan.planner.cli.main import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, **PLAIN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 3), f"{command}: exit {ran.returncode}\n{ran.stderr}"
    named = ran.stdout.replace("python -c", "meshplan").replace("Usage: -c", "Usage: meshplan")
    return "\n".join(line.rstrip() for line in named.strip("\n").splitlines())


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
            output_of(place["command"], Path(folder))
            drawn = (Path(folder) / Path(place["file"]).name).read_text(encoding="utf-8")
        yield (ROOT / name).parent / place["file"], drawn


def words_of(picture: str) -> list[str]:
    """The words that an SVG shows, without where they stand."""
    return sorted(re.findall(r">([^<>]*\S[^<>]*)</(?:text|tspan)>", picture))


def main() -> int:
    """The command; returns its exit code."""
    stale = 0
    for name in DOCUMENTS:
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
    sys.exit(main())
