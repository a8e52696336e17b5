"""What a script leaves to the machine: answers of commands and files, which notes name; and what
several commands of `$( )` print, against bash.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from meshplan.executor.frameworks.shell.script import read_script

BASH = shutil.which("bash")


def _read(text: str) -> tuple[str, list[str]]:
    """What `$X` is behind `text`, and the notes."""
    script = read_script(f'{text}\ntrain --x "$X"')
    return str(script.commands[-1][-1].value), list(script.notes)


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    "command",
    [
        "echo -e '4'", "echo -n 4", "echo -ne 'a\\tb'", "echo -eE 'a\\tb'", "echo -n 4 | wc -l",
        "A=4; echo $A", "cd /tmp; echo 4", "echo 2; echo 4", "if true; then echo 4; fi",
         " (echo 4)",
        "echo 4 && true", "false || echo 4", "{ echo 4; }", "echo 4 2>&1", "echo 2 >&2; echo 4",
        "for i in 1 2; do echo $i; done", "echo 2 | { echo 4; }", "cat <<< 4", ": ; true",
        "case a in a) echo 4;; (b) echo 2;; esac", "echo case; echo esac",
        "if true; then case a in\na) case b in b) echo ')4';; esac;; esac; fi",
    ],
)  # fmt: skip
def test_what_commands_print_is_what_bash_prints(command: str) -> None:
    """Commands one after the other, and what of them goes elsewhere or to the next."""
    assert BASH is not None
    text = f'g() {{ echo 4; }}\nX="$({command})"'
    ran = [BASH, "-c", f'{text}\nprintf "%s" "$X"']
    printed = subprocess.run(ran, capture_output=True, text=True, timeout=20, check=True).stdout
    assert _read(text)[0] == printed


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    "text",
    [
        "X=$(g) || X=4", "X=$(echo 2) || X=4", "X=$(g; echo 3) || X=4", "X=$(false); X=$?",
        "if X=$(echo 2; exit 7); then X=4; else X=$?; fi", "h() { local v=$(g); X=$?; }; h",
        "g | true; X=${PIPESTATUS[0]}", "true | g; X=$?", "(exit 7) | true | g; X=${PIPESTATUS[*]}",
        "true | g; true; X=$PIPESTATUS", "(exit 4); X=${PIPESTATUS[0]}", "X=$(g)$?",
        "for i in 1 2; do g; done; X=$?", "while g; [ $? = 0 ]; do :; done; X=$?",
        "for i in 1; do g; break; done; X=$?", "for i in 1; do g; continue; done; X=$?",
        "X=$(case 9 in 7) echo 1;; *) exit 1;; esac) || X=4", "true && (exit 3); X=$?",
        "bash -c 'exit 4'; X=$?", "bash <<< 'exit 4'; X=$?", "let X=0 || X=4", "time g; X=$?",
        "set -o pipefail; g | true; X=$?", "(set -o pipefail); g | true; X=$?",
        "set -eo pipefail; X=2; g | g | true || X=4", "set -x a b; X=$#$2", "set -e -- a; X=$#$1",
        "X=$(set -e; false; echo 2)", "set -e; X=$(false; echo 4)", "set -e; ! true; X=4",
        "X=$(set -eo pipefail; false | true; echo 2)",
        "set -e; if X=$(set -e; false; echo 4); then :; fi", "set a; set -; X=$#",
        "set -e; { g; true; } | true; X=${PIPESTATUS[*]}",
        "X=`case b in a) echo 2;; *) echo 4;; esac`",
        'set -- a b; shift 3; X="$?$#"', 'set -- a b; shift 2; X="$?$#"',
        "set -- a b; X=1; while shift; do X=$((X+1)); done", "set a; shift; shift || X=4",
    ],
)  # fmt: skip
def test_the_status_of_what_is_followed_is_bashs(text: str) -> None:
    """An assignment ends as the last `$( )` in it, a pipeline as its last part."""
    assert BASH is not None
    text = f"g() {{ return 3; }}\n{text}"
    ran = [BASH, "-c", f'{text}\nprintf "%s" "$X"']
    assert _read(text)[0] == subprocess.run(
        ran, capture_output=True, text=True, timeout=20, check=True
    ).stdout  # fmt: skip


def test_a_program_is_taken_to_succeed_in_an_assignment_too() -> None:
    """What it prints is not known, and the other value is not taken for it."""
    assert _read("X=$(nproc) || X=4")[0] == "$(nproc)"


@pytest.mark.parametrize(
    "command",
    [
        "date; echo 4", "nproc", "< a.txt", "cat a.txt; echo 4", "pip show x", "git log; echo 4",
        "echo -e '\\x34'", "while true; do grep -q x y || break; done; echo 4",
    ],
)  # fmt: skip
def test_what_a_program_prints_stays_unknown(command: str) -> None:
    """It is named where the value is needed."""
    assert _read(f"X=$({command})")[0] == f"$({command})"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "X=$(( $(ssh a nvidia-smi -L | wc -l) - 2 ))",
            "$(( $(ssh a nvidia-smi -L | wc -l) - 2 ))",
        ),
        ("B=8; X=$(( B * $(nproc) / N ))", "$(( 8 * $(nproc) / $N ))"),
        ("B=8; X=$(( B * `nproc` / N ))", "$(( 8 * `nproc` / $N ))"),
    ],
)
def test_words_of_a_command_in_arithmetic_are_no_variables(text: str, shown: str) -> None:
    """So that nobody is asked for the variable `ssh`."""
    assert _read(text)[0] == shown


def test_arithmetic_that_waits_is_false_and_said() -> None:
    """A counted loop over what a command prints has no round."""
    loop = "for ((i = 0; i < N - 1; i++)); do X=4; done"
    said = "line 3: ((i = 0; i < N - 1; i++)) waits for what is not known: taken as false"
    assert _read(f"X=2\nN=$(nproc)\n{loop}") == ("2", [said])


@pytest.mark.parametrize(
    ("text", "value", "note"),
    [
        ("if ! command -v nvcc; then X=4; else X=2; fi", "2",
         "line 1: `command -v nvcc` decides what is set here; taken to succeed, not run"),
        ("X=2\ngrep -q H100 gpus.txt && X=4", "4",
         "line 2: `grep -q H100 gpus.txt` decides what is set here; taken to succeed, not run"),
        ("X=2\n[ -f big.flag ] && X=4", "2", "line 2: `[ -f big.flag ]` decides what is set here; "
         "no file is looked at: taken not to be there"),
        ("X=2; lscpu\nif [ $? -ne 0 ]; then X=4; fi", "2",
         "line 2: `[ $? -ne 0 ]` decides what is set here; taken to succeed, not run"),
        ("X=$([[ -e a ]] && echo 2 || echo 4)", "4", "line 1: `[[ -e a ]]` decides what is set "
         "here; no file is looked at: taken not to be there"),
    ],
)  # fmt: skip
def test_an_answer_of_the_machine_is_noted(text: str, value: str, note: str) -> None:
    """Where it decides what a variable is; once, however often it is asked."""
    assert _read(text) == (value, [note])


@pytest.mark.parametrize(
    "text",
    [
        "X=4; [ -d out ] || mkdir out", "X=4; if nvidia-smi; then echo here; fi",
        "X=4; f() { true; }; f && X=4", "X=2; [ 1 -eq 1 -a 2 -eq 2 ] && X=4", "true && X=4",
    ],
)  # fmt: skip
def test_what_sets_nothing_or_follows_needs_no_note(text: str) -> None:
    """The value is the script's own."""
    assert _read(text) == ("4", [])


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    "text",
    [
        "f; X=$?", "if f; then X=1; else X=2; fi", "f || X=5", "f && X=5; X=$X-", "g; X=$?",
        "(exit 7); X=$?", "(f; exit 0) && X=1", "f; g2() { :; }; g2; X=$?", "h 256; X=$?",
        "while f; do X=5; done; X=$X-", "f; [ 1 = 2 ]; X=$?", "! f && X=6", "f; [[ a = b ]]; X=$?",
        "h() { (return 2); X=$?; }; h", 'f; if [ $? -eq 3 ]; then X=4; fi', "h -1; X=$?",
    ],
)  # fmt: skip
def test_how_a_function_or_a_shell_ends_is_its_status(text: str) -> None:
    """`return N` and `exit N` end with N, or with the status of the last command."""
    assert BASH is not None
    text = f"X=0\nf() {{ return 3; }}\ng() {{ false; return; }}\nh() {{ return $1; }}\n{text}"
    ran = [BASH, "-c", f'{text}\nprintf "%s" "$X"']
    printed = subprocess.run(ran, capture_output=True, text=True, timeout=20, check=True).stdout
    assert _read(text)[0] == printed


def test_a_loop_that_changes_nothing_waits_for_the_machine() -> None:
    """One round of it is followed; one that counts has its rounds."""
    ready = "f() { [ -f ready ] && return 0; return 1; }\nX=4\n"
    assert _read(f"{ready}until f; do :; done")[0] == "4"
    assert _read("X=4; while [ ! -f ready ]; do sleep 5; done")[0] == "4"
    assert _read(f"{ready}until f || [ $X -gt 8 ]; do X=$((X+1)); done")[0] == "9"


def test_what_bash_stops_at_is_noted() -> None:
    """`${TP:?}` of a variable that is not given; not in a shell of its own, which ends alone."""
    said = "line 1: bash stops here where TP is not set; --env TP=VALUE sets it"
    assert _read(": ${TP:?}\nX=4") == ("4", [said])
    for text in ("(: ${TP:?})\nX=4", "TP=2; : ${TP:?}\nX=4", "true || : ${TP:?}\nX=4"):
        assert _read(text) == ("4", [])


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("set -e\nTP=16\n[ $TP -le 8 ]", 3, "by `set -e`: this command's status is 1"),
        ("#!/bin/bash -e\ni=0\n((i++))", 3, "by `set -e`: this command's status is 1"),
        ("f() { [ $1 = b ] && A=1; }\nset -euo pipefail\nf a", 3,
         "by `set -e`: this command's status is 1"),
        ("set -eo pipefail\ntrue\nfalse | true", 3, "by `set -e`: this command's status is 1"),
        ("set -eo pipefail\n(exit 4) | true | true", 2, "by `set -e`: this command's status is 4"),
        ("TP=3\nif [ $((32 % TP)) -ne 0 ]; then exit 5; fi", 2, "with status 5"),
        ("trap 'rm -r x' EXIT\nset -e\nfalse", 3, "by `set -e`: this command's status is 1"),
        ("M=eval; case $M in eval) exit;; esac", 1, "with status 0"),
    ],
)  # fmt: skip
def test_where_bash_stops_is_noted(text: str, line: int, why: str) -> None:
    """What is behind it is read all the same; a script that ends there needs no note."""
    said = f"line {line}: bash stops here {why}; what is behind it is read too"
    assert _read(f"{text}\nX=4") == ("4", [said])
    assert said not in read_script(f"train\n{text}").notes


@pytest.mark.parametrize(
    "text",
    [
        "set -e; [ a = b ] && A=1", "set -e; false || true", "set -e; if false; then :; fi",
        "set -e; set +e; false", "set -e; false | true", "set -e; [ -f a ]",
        "set -o pipefail; false | true", "set -eo pipefail; false | true || X=4",
        "set -eo pipefail; [ -f a ] | true", "set -eo pipefail; if false | true; then :; fi",
        "false",
        "set -e; f() { if [ -f a ]; then return 0; fi; return 3; }; f", "set -e; [ -n $TP ]",
        "[ $# -gt 0 ] || exit 1", "if (( $# < 1 )); then exit 1; fi", "[ -f a ] || exit 1",
        'if [ -z "$1" ]; then exit 1; fi', "if [[ -z $1 ]]; then exit 1; fi", "cd a || exit 1",
        "if [ -f a ]; then :; else set -e; false; fi", "lscpu; if [ $? = 0 ]; then exit 0; fi",
        "if ! [ -v TP ]; then exit 1; fi",
    ],
)  # fmt: skip
def test_what_the_machine_or_the_start_decides_ends_nothing(text: str) -> None:
    """Nor does what `set -e` passes over."""
    assert not any("stops" in note for note in _read(f"{text}\nX=4")[1])


def test_a_loop_until_it_worked_has_one_round() -> None:
    """It ends by `exit 0`, as by `break`."""
    for end in ("exit 0", "break"):
        script = read_script(f"while true; do train --tp 2 && {end}; sleep 5; done")
        assert [str(fact.value) for fact in script.commands[0]] == ["train", "--tp", "2"]
        assert len(script.commands) <= 2


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    "text",
    [
        "X=4; {} <<'EOF'\n{}\nEOF", "X=4; export X; {} <<'EOF'\n{}\nEOF",
        "declare -x X=4; {} <<'EOF'\n{}\nEOF", "set -a; X=4; set +a; {} <<'EOF'\n{}\nEOF",
        "X=4; export -n X; {} <<'EOF'\n{}\nEOF", "{} -s 4 <<'EOF'\nX=$1; {}\nEOF",
        "echo 'X=$1; {1}' > a.sh; {0} ./a.sh 4", "X=4; {} <<EOF\n{}\nEOF",
        "X=4 {} <<'EOF'\n{}\nEOF",
        "cat > a.sh <<'EOF'\nX=$2; {1}\nEOF\n{0} a.sh 2 4", "set -- 2; {} <<< 'X=$1; {}'",
    ],
)  # fmt: skip
def test_a_script_that_is_sent_knows_what_is_exported(tmp_path: Path, text: str) -> None:
    """And the arguments that it is given; not the variables of the one that sends it."""
    assert BASH is not None
    script = read_script(text.format("bash", 'train --x "$X"'))
    said = str(script.commands[-1][-1].value)
    ran = [BASH, "-c", text.format(BASH, 'printf "%s" "$X"')]
    printed = subprocess.run(
        ran, capture_output=True, text=True, timeout=20, check=True, cwd=tmp_path
    ).stdout
    assert (script.commands[-1][0].value, "" if said.startswith("$") else said) == (
        "train", printed
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("ssh -p 22 -tt n1 'cd a; train --x 4'", "4"), ("ssh n1 'train --x $X'", "$X"),
        ('ssh n1 "train --x $X"', "2"), ("pdsh -w n[0-3] -R ssh 'cd a && train --x 4'", "4"),
        ("ssh n1 'if ($x) { train --x 4'; train --x 2", "2"), ("ssh n1 train --x $X", "2"),
        ("ssh -i 'my key' n1 train --x 4", "4"),
    ],
)  # fmt: skip
def test_what_runs_on_other_machines_is_followed(words: str, value: str) -> None:
    """Nothing is exported to them."""
    command = read_script(f"export X=2; {words}").commands[-1]
    assert str(command[-1].value) == value
    assert "train" in [str(fact.value) for fact in command]


def test_a_loop_over_no_arguments_has_no_round() -> None:
    """A script that is started without any."""
    for words in ('"$@"', "$*", '"${@}"'):
        assert _read(f"X=4; for i in {words}; do X=2; done")[0] == "4"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("f() { [ 1 = 2 ]\ntrain; }\nset -e\nf | tee log", 1),
        ("set -e\n{ false; train; } | cat | cat", 2),
        ("set -e\necho a | (false; train) | cat", 2),
        ("set -e\nif { false; train; } | cat; then true; fi", 0),
        ("set -e\n{ false || true; train; } | cat", 0),
        ("set -e\n{ train; false; } | cat", 0),
        ("{ false; train; } | cat", 0),
    ],
)
def test_where_a_part_of_a_pipeline_ends_is_noted(text: str, line: int) -> None:
    """`set -e` ends that part alone (none where the pipeline's status is asked for); 0: no note."""
    why = "by `set -e`: this command's status is 1; what is behind it is read too"
    said = f"line {line}: bash ends this part of the pipeline here {why}"
    assert _read(f"{text}\nX=4") == ("4", [said] if line else [])


def test_a_part_that_ends_fails_its_pipeline() -> None:
    """With `pipefail` the script ends there too, though the part's last command would hold."""
    ends = "by `set -e`: this command's status is 1; what is behind it is read too"
    said = [f"line 2: bash stops here {ends}"]
    assert _read("set -eo pipefail\n{ false; true; } | cat\nX=4") == ("4", said)


def test_a_trap_that_no_shell_reads_is_noted() -> None:
    """What stands before it is read."""
    said = "line 1: what `trap` does at the end is not read"
    assert _read("trap 'echo \"a' EXIT\nX=4") == ("4", [said])


def test_a_shell_that_another_program_replaces_traps_nothing() -> None:
    """`exec` of a program, where no condition decides it."""
    script = read_script("trap 'run no' EXIT\nexec run a")
    assert [[str(word.value) for word in words] for words in script.commands] == [["run", "a"]]


@pytest.mark.parametrize(
    ("start", "ran"),
    [
        ("bash", ["train", "--x", "$1"]), ("bash -x", ["train", "--x", "$1"]),
        ("bash -s 4", ["train", "--x", "4"]), ("bash -e -s -- 4", ["train", "--x", "4"]),
        ("bash /dev/stdin 4", ["train", "--x", "4"]), ("bash other.sh", ["bash", "other.sh"]),
        ("bash other.sh -s", ["bash", "other.sh", "-s"]),
    ],
)  # fmt: skip
def test_a_shell_reads_what_it_is_sent_unless_it_has_a_file(start: str, ran: list[str]) -> None:
    """`-s` says so before its arguments; behind a file it is one of the file's."""
    script = read_script(f"{start} <<'EOF'\ntrain --x \"$1\"\nEOF\n")
    assert [str(word.value) for word in script.commands[-1]] == ran
