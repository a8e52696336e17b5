"""What we read of a script against what bash itself does with it: no command exists, so bash hands
each one with its words to a handler, which writes them down.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshplan.executor.frameworks.shell.script import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")
HANDLER = """
command_not_found_handle() {
  local words=("$@") i
  for ((i = 0; i < ${#words[@]}; i++)); do
    if [[ ${words[i]} == bash && ${words[i+1]} == -* ]]; then
      "$BASH" "${words[@]:i+1}"
      return
    fi
  done
  { printf '%s\\0' "$@"; printf '\\1\\0'; } >> "$RECORD"
}
export -f command_not_found_handle
"""


def _bash(text: str, folder: Path) -> list[list[str]]:
    """The commands that bash runs, in an empty environment and with no command on its path."""
    record, handler, script = folder / "record", folder / "handler", folder / "script"
    record.write_text("")
    handler.write_text(HANDLER)
    script.write_text(text)
    assert BASH is not None
    environment = {"PATH": "/nonexistent", "BASH_ENV": str(handler), "RECORD": str(record)}
    subprocess.run(
        [BASH, str(script)], env=environment, cwd=folder, timeout=20, check=False,
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    commands = record.read_text().split("\1\0")[:-1]
    return [command.split("\0")[:-1] for command in commands]


def _ours(text: str) -> list[list[str]]:
    """Less the `srun` that starts a shell, which is kept before the commands of that shell."""
    found = [[str(word.value) for word in command] for command in read_script(text).commands]
    return [words[1:] if words[0] == "srun" else words for words in found]


SCRIPTS = {
    # the constructs of NVIDIA/Megatron-LM@d98e8a64 examples/gpt3/train_gpt3_175b_distributed.sh
    "arrays": 'N=2\nA=(--a $N --b)\nB=(\n  --c "x y" # no\n)\nrun ${A[@]} "${B[@]}"',
    # bigscience-workshop/bigscience@9e64edec train/tr1-13B-base/tr1-13B-round1.slurm
    "a command in a string": (
        "CMD=\" \\\n  prog.py --a 1 \\\n  --b $((2 * 3)) \\\n\"\nexport L=\"run -x\"\n"
        "export CMD\nsrun bash -c '$L --rank 0 $CMD' 2>&1"
    ),
    # alibaba/Pai-Megatron-Patch@a098ca5a examples/qwen2/run_mcore_qwen.sh
    "chosen by size": (
        "S=7B\nif [ $S = 0.5B ]; then\nH=896\nelif [ $S = 7B ]; then\nH=3584\nelse\nH=1\nfi\n"
        'o=""\n[ $H -gt 1000 ] && o="--big"\nrun_cmd="run --h $H ${o}"\neval $run_cmd'
    ),
    # argonne-lcf/Megatron-DeepSpeed@ffa3456d ALCF/helpers.sh
    "functions": (
        'f() {\n  local x="${1:-3}"\n  run --x "${x}" --n $#\n}\n'
        'function g { f "$@" 9; }\nf\ng 4'
    ),
    "double brackets": (
        'a=sp_on\nif [[ $a == sp_* && ! -z "$a" ]]; then b=--sp; fi\n'
        "[[ ${#a} -eq 5 ]] && run $b\n[[ $a =~ ^x ]] || run no"
    ),
    "case": 'm=70b\ncase "$m" in\n  8b|9b) t=1 ;;\n  7?b) t=8 ;;\n  *) t=2 ;;\nesac\nrun --tp $t',
    "loops": (
        "for TP in 1 2 4; do\n  DP=$((8 / TP))\n  run --tp $TP --dp $DP\ndone\n"
        "for ((i = 0; i < 2; i++)); do run $i; done\nn=3\nwhile [ $n -gt 1 ]; do\n  run n$n\n"
        "  n=$((n - 1))\ndone\nfor x in a b c; do\n [ $x = b ] && continue\n run $x\ndone"
    ),
    "expansions": (
        'p=/x/y.json\nA=(1 2 3)\nrun ${p##*/} ${p%.json} ${q:-d e} "${q:-d e}" ${p/x/z} ${#A[@]} '
        "${A[1]} ${A[-1]} ${A[@]:1} ${q:+no} ${p:+yes} ${p:0:2} '$p' \"\\$p\""
    ),
    "arithmetic": (
        "a=7\nrun $((a / 2)) $((-a / 2)) $((a % 4)) $((a > 3 ? 1 : 0)) $((2 ** 5)) "
        "$((1 + 2 * 3))"
    ),
    "older arithmetic": (
        'a=3\nA=(1 2)\nrun $[a*2] "x$[ 2*$a ]y" $[${A[1]}+1] \'$[1]\' \\$[1] $[(a+1)*2]$[a]'
    ),
    "arguments": "set -- --a 1 --b\nwhile [ $# -gt 0 ]; do\n run $1\n shift\ndone\nrun $#",
    "what is not taken": (
        "if false; then run 1; else run 2; fi\ntrue && run 3 || run 4\n! true || run 5"
    ),
    "assigned for one command": "A=1\nA=2 run $A\nrun $A",
    "comments": "run --a 1 \\\n  --b 2 # --c 3\n# run\nrun a#b\nrun 'it''s' \"#\"",
    "redirections": "run 1 2> /dev/null\nrun 2 >/dev/null 2>&1\nrun 3 < /dev/null",
    "here-documents": "run <<EOF\nrun no\nEOF\nrun yes",
    "groups": "{ run 1; run 2; }\n(cd / ; run 3)\nif (( 3 > 2 )); then run 4; fi",
    "an array that grows": "A=()\nA+=(--a 1)\nA+=(--b)\nA[2]=z\nrun \"${A[@]}\" ${#A[*]}",
    "a string that grows": 'a="--x 1"\na+=" --y 2"\nrun $a\nrun "$a"',
    "exit": "run 1\nexit 0\nrun 2",
    "a shell of its own": "A=1\n(A=2; run $A)\nrun $A\n(exit 3)\nrun on",
    "a part of a pipeline": "A=1\necho 2 | { read A; A=3; run $A; }\nrun $A",
    "names of a function": (
        "A=1\nB=2\nf() { local A=5; declare B; B=6; C=7; run $A $B; }\nf\nrun $A $B $C"
    ),
    "a variable for all": "f() { declare -g A=3; declare B=4; }\nf\nrun $A ${B:-no}",
    "what a shell inherits": (
        "A=(1 2)\ndeclare -A M=([k]=v)\ndeclare -i N=1\nexport E=3\n"
        "bash -c 'N=1+1; run ${A[0]:-no} ${M[k]:-no} $N $E'\nN+=1\nrun ${A[1]} ${M[k]} $N"
    ),
    "a name for another": "A=1\nf() { local -n r=$1; r=8; }\nf A\nrun $A",
    "keys": (
        'declare -A T=([7b]=4 ["70b"]=8)\nT[9b]=2\nk=70b\nrun ${T[$k]} ${T[9b]} ${#T[@]}\n'
        "T[9b]+=5\nrun ${T[9b]} ${T[none]:-x}"
    ),
    "whole numbers": "declare -i A=3+4\nA+=1\nlet B=A*2\nrun $A $B",
    "what a function prints": (
        'f() { local x=$1; echo "--a $x"; echo no >&2; }\nrun $(f 3) "$(f 4)"\nB=$(f 5)\nrun $B'
    ),
    "a here-document in a variable": "N=4\nread -r -d '' B <<EOF\n--a $N\n  --b\nEOF\nrun $B",
    "lines of a here-document": "mapfile -t A <<EOF\n--a 1\n--b\nEOF\nrun ${A[@]} ${#A[@]}",
    "printf": 'printf -v A "%s-%02d" x 3\nrun $A $(printf "%d" 8) $(printf "%s " a b)',
    "clauses that go on": (
        "case ab in a*) A=1;& z) A=2;; *) A=3;; esac\nrun $A\n"
        "case ab in a*) A=4;;& *b) B=5;; *) B=6;; esac\nrun $A $B"
    ),
    "bits and bases": (
        "run $((0x20)) $((2#101)) $((10#08)) $((1 << 4)) $((~5)) $((6 & 3)) $((6 ^ 3 | 8))"
    ),
    "a shell with arguments": "A=1\nexport B=2\nbash -c 'run \"$1\" ${A:-none} $B' name 7",
    "options of a shell": (
        "bash -x -c 'run 1'\nbash -eo pipefail -c 'run \"$1\"' name 2\nbash -c -e 'run 3'\n"
        "bash --norc +x -O extglob -c 'run 4' 5 6"
    ),
    "at a shell's end": (
        "f() { trap 'run end $A' EXIT; }\nA=1\nf\n(trap 'run inner' EXIT; exit 3)\n(run b)\nA=2\n"
        "trap 'run no' INT TERM\ntrap 'exit 4; run no' EXIT\ntrap -- 'run end $A' 0\nexit 1\nrun no"
    ),
    "nothing at its end": (
        "trap 'run no' EXIT\ntrap - EXIT\nrun a\ntrap 'run no' EXIT\ntrap EXIT\nrun b"
    ),
    "what a trap prints": "A=$(trap 'echo 2' EXIT; echo 1)\nrun $A",
    "a default beside nothing": 'A=\nrun ${A:-1} ${A-2} ${B-3} x${A:+4}',
}  # fmt: skip


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_the_words_are_those_of_bash(text: str, tmp_path: Path) -> None:
    """Of a script that sets all that it uses, the commands and their words are bash's."""
    commands = _bash(text, tmp_path)
    assert commands
    assert _ours(text) == commands


NAMES = st.sampled_from("ABC")
VALUES = st.one_of(
    st.integers(0, 64).map(str),
    st.sampled_from(['"x y"', "'z $A'", '"$A-$B"', "${A:-7}", "$((B + 1))", "${#A}", "a$A"]),
)
TESTS = st.sampled_from(
    ["[ $A -gt 3 ]", '[ "$A" = "$B" ]', "[[ $A != 1 && -n $C ]]", "[ -z $C ]", "(( B > 2 ))"]
)


def _statements(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=3).map("\n".join)
    return st.one_of(
        st.tuples(TESTS, body, body).map(lambda t: f"if {t[0]}; then\n{t[1]}\nelse\n{t[2]}\nfi"),
        st.tuples(NAMES, body).map(lambda t: f"for {t[0]} in 1 2 $B; do\n{t[1]}\ndone"),
        st.tuples(TESTS, inner).map(lambda t: f"{t[0]} && {t[1]}"),
        st.tuples(NAMES, body).map(lambda t: f"case ${t[0]} in [0-9]) {t[1]};; *) {t[1]};; esac"),
    )


LEAVES = st.one_of(
    st.tuples(NAMES, VALUES).map("=".join),
    st.tuples(NAMES, VALUES).map("+=".join),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda words: "run --flag " + " ".join(words)),
    NAMES.map(lambda name: f'X=(1 "${name} b")\nrun "${{X[@]}}" ${{X[1]}}'),
)
PROGRAMS = st.lists(st.recursive(LEAVES, _statements, max_leaves=6), min_size=1, max_size=5)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(PROGRAMS)
def test_any_script_is_followed_as_bash_does(tmp_path: Path, statements: list[str]) -> None:
    """Scripts put together at random of assignments, tests, loops and commands run alike."""
    text = "A=1\nB=2\nC=3\nX=(q r)\n" + "\n".join(statements) + "\nrun end $A"
    ours = _ours(text)
    assume(not any("$((" in word for command in ours for word in command))  # bash stops there
    assert ours == _bash(text, tmp_path)
