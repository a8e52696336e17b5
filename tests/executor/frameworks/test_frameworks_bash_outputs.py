"""What we read of `$( )` against what bash and the programs of the host print."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meshplan.executor.frameworks.shell.script import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


def _printed(text: str, folder: Path | None = None) -> str:
    assert BASH is not None
    command = [BASH, "-c", f'{text}\nprintf "%s" "$X"']
    return subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True, cwd=folder
    ).stdout


def _read(text: str, path: str = "") -> str:
    return str(read_script(f'{text}\ntrain --x "$X"', path=path).commands[-1][-1].value)


@pytest.mark.parametrize(
    "command",
    [
        "printf 0,1,2 | tr , '\\n' | wc -l", "echo 0,1,2 | tr , '\\n' | wc -l", "echo | wc -l",
        "printf 'a,b\\nc,d' | cut -d, -f2 | wc -l", "seq 0 2 | tr '\\n' ,", "seq 0 7 | tail -n 2",
        "echo a,b | awk -F, '{print $0}'", "echo 'a  b' | awk -F ' ' '{print $2}'",
        "printf 'a\\n\\n' | tail -n 1", "printf 'a b\\nc' | head -n 1", "echo '7 / 2 - 4' | bc",
        "seq 3", "expr 010 + 1", "printf %d 0x10", "echo a_b | tr _ - | sed 's/-/./'",
    ],
)  # fmt: skip
def test_what_is_computed_is_what_is_printed(command: str) -> None:
    """Line ends count: `printf` writes none of itself, every other command ends its last line."""
    if all(shutil.which(each) for each in re.findall(r"\b(?:awk|bc|expr|seq)\b", command)):
        text = f"X=$({command})"
        assert _read(text) == _printed(text)


@pytest.mark.parametrize(
    "text",
    ["X=a`# of the next flag`b", "X=a$(# one\n# two\n)b", "X=$( )b", "set -- 1 `# x` 2\nX=$#"],
)
def test_a_comment_prints_nothing(text: str) -> None:
    """shibing624/MedicalGPT scripts/run_grpo.sh has comments between flags; held against bash."""
    assert _read(text) == _printed(text)


@pytest.mark.parametrize(
    "command", ["echo '2^3' | bc", "echo 010*2 | bc", "echo ab | awk -F '' '{print $1}'"]
)
def test_what_a_shell_computes_otherwise_stays_unknown(command: str) -> None:
    """Of `bc` `^` is a power and `010` is ten."""
    assert _read(f"X=$({command})") == f"$({command})"


@pytest.mark.parametrize("sent", ["", "2>/dev/null", "2>&1", "1>&2", ">/dev/null", "2> /dev/null"])
def test_a_function_prints_what_goes_to_standard_output(sent: str) -> None:
    """Its errors may go elsewhere."""
    text = f"f() {{ echo 5 {sent}; }}\nX=$(f)"
    assert _read(text) == _printed(text)


def test_a_file_of_errors_holds_no_words() -> None:
    """`2>` is not what `echo` writes."""
    files = read_script("echo a > a.txt\necho b 2> b.txt\necho c 1>> a.txt").files
    assert files == {"a.txt": "a\nc\n"}


@pytest.mark.parametrize(("given", "said"), [("", "set -- c d\nshift"), (" z", "shift")])
def test_a_sourced_file_changes_the_arguments_that_it_shares(
    given: str, said: str, tmp_path: Path
) -> None:
    """It shares the script's where it is given none of its own."""
    (tmp_path / "args.sh").write_text(said)
    text = f"set -- a b\nsource ./args.sh{given}\nX=$1"
    assert _read(text, f"{tmp_path}/run.sh") == _printed(text, tmp_path)
