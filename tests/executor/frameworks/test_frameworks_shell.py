"""Launch scripts as far as their arguments: what a shell would have passed."""

import pytest

from meshplan.executor.frameworks.megatron.launch_script import read
from meshplan.executor.frameworks.shell.launching.arguments import arguments
from meshplan.executor.frameworks.shell.launching.launches import launches
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.executor.frameworks.shell.work import shared_work
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.reading import IllegalConfig, UnreadableConfig


def _flags(text: str) -> dict[str, object]:
    words = next(iter(launches(read_script(text), lambda word: word.startswith("--"))), [])
    return {name: fact.value for name, fact in arguments(words).items()}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("run --a 1 --b", {"a": "1", "b": True}, id="a flag without a value is true"),
        pytest.param("run --a=1 --b-c=x", {"a": "1", "b_c": "x"}, id="--flag=value"),
        pytest.param("run \\\n  --a 1 \\\n  --b 2", {"a": "1", "b": "2"}, id="continued lines"),
        pytest.param("T=4\nrun --a $T --b ${T}0", {"a": "4", "b": "40"}, id="$T and ${T}"),
        pytest.param("run --a ${T:-8}", {"a": "8"}, id="${T:-8} with T unset is 8"),
        pytest.param('T=2\nrun --a ${T:-"8"}', {"a": "2"}, id="${T:-8} with T=2 is 2"),
        pytest.param("N=2 G=8\nrun --a $((N*$G + 1))", {"a": "17"}, id="2 x 8 + 1 = 17"),
        pytest.param("A=(--a 1)\nA+=(--b 2)\nrun ${A[@]}", {"a": "1", "b": "2"}, id="array grows"),
        pytest.param('A=("--a 1" \'--b 2\')\nrun ${A[@]}', {"a": "1", "b": "2"}, id="quoted pairs"),
        pytest.param("A=(\n --a 1 # --b 2\n)\nrun ${A[@]}", {"a": "1"}, id="comment in an array"),
        pytest.param("run --a 1 --a 2", {"a": "2"}, id="the last of a flag wins"),
        pytest.param("if [ 1 = 2 ]; then\nrun --a 1\nelse\nrun --a 2\nfi", {"a": "2"}, id="else"),
        pytest.param(
            "S=b\nif [ $S == a ]; then T=1\nelif [ $S == b ]; then T=2\nelse T=3\nfi\nrun --a $T",
            {"a": "2"},
            id="elif that holds",
        ),
        pytest.param(
            "for i in 1 2; do\n X=$i\ndone\nrun --a $X", {"a": "2"}, id="a loop's last value"
        ),
        pytest.param(
            "if [ -n '' ]; then\n if [ 1 = 1 ]; then run --b 1; fi\nfi\nrun --a 1",
            {"a": "1"},
            id="inside a branch not taken nothing is taken",
        ),
        pytest.param("cat <<EOF\nrun --b 1 --c 2\nEOF\nrun --a 1", {"a": "1"}, id="here-document"),
        pytest.param('C="run --a 1"\nsrun bash -c "$C"', {"a": "1"}, id="command kept in a string"),
        # NVIDIA/Megatron-LM examples/pretrain_gpt3_175B.sh: bash would write to a file `--b`
        pytest.param('O="--a <PATH TO X> --b"\nsrun sh -c "run $O"',
                     {"a": "<PATH TO X>", "b": True}, id="a placeholder is one word"),
        pytest.param("C=<Path (e.g /345m)>/x\nrun --a \"$C\"", {"a": "<Path (e.g /345m)>/x"},
                     id="a placeholder with brackets"),
        pytest.param("run --a 1 <in.txt >out.txt", {"a": "1"}, id="redirections are none"),
        pytest.param("mapfile -t n < <(scontrol show)\nrun --a 1", {"a": "1"}, id="< <(...)"),
        pytest.param("run --a 1 > >(tee log)", {"a": "1"}, id="> >(...)"),
        pytest.param("#SBATCH --nodes=16\n#SBATCH --ntasks-per-node 8\n"
                     "run --a $((SLURM_JOB_NUM_NODES * 2)) --b $SLURM_NTASKS",
                     {"a": "32", "b": "128"}, id="Slurm: 16 nodes x 2, 16 x 8 tasks"),
        pytest.param("#SBATCH -N 4\n#SBATCH --gres=gpu:a100:8\n"
                     "run --a ${SLURM_NNODES} --b ${SLURM_GPUS_ON_NODE} --c ${SLURM_NTASKS:-1}",
                     {"a": "4", "b": "8", "c": "1"}, id="Slurm: what no line says is unset"),
        pytest.param("#SBATCH --nodes=2-4\nrun --a ${SLURM_NNODES:-1}", {"a": "1"},
                     id="Slurm: a range is no number"),
    ],
)  # fmt: skip
def test_flags_by_hand(script: str, expected: dict[str, object]) -> None:
    """The flags of the command are those that the shell would pass."""
    assert _flags(script) == expected


def test_what_a_script_is_started_with_wins_over_its_sbatch_lines() -> None:
    """`sbatch --nodes=8 run.sh` is said by --env."""
    text = "#SBATCH --nodes=16\nrun --a $SLURM_NNODES"
    script = read_script(text, {"SLURM_NNODES": "8"})
    assert [word.value for word in script.commands[0]] == ["run", "--a", "8"]


def test_a_flag_knows_its_line() -> None:
    """A fact points to the line where its flag is written, not to where the array is used."""
    reading = read("A=(\n  --tensor-model-parallel-size 2\n)\n\ntorchrun x.py ${A[@]}\n", "x.sh")
    assert reading.facts["tensor_parallel"].line == 2


def test_an_unset_variable_is_named() -> None:
    """A degree that the script leaves to the environment is refused with the variable's name."""
    with pytest.raises(UnreadableConfig, match=r"TP.*does not set") as caught:
        read("X=1\ntorchrun x.py --tensor-model-parallel-size $TP\n", "x.sh")
    assert caught.value.line == 2


def test_a_misspelt_flag_is_noted() -> None:
    """A flag that looks like a known one is named with the one that may be meant."""
    reading = read("run --tensor-model-parallel-sizes 8 --num-layers 2", "x.sh")
    assert any("tensor_model_parallel_size" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        pytest.param(
            "--tensor-model-parallel-size eight", UnreadableConfig, id="a word, no number"
        ),
        pytest.param("--tensor-model-parallel-size 0", IllegalConfig, id="degree 0"),
        pytest.param("--tensor-model-parallel-size 99999999999", IllegalConfig, id="over 1e9"),
        pytest.param(
            "--num-layers 2 --recompute-granularity half", MissingFacts, id="wrong vocabulary"
        ),
        pytest.param(
            "--num-layers 2 --pipeline-model-parallel-layout Etx|L", IllegalConfig, id="x"
        ),
        pytest.param("--num-layers 'two", UnreadableConfig, id="a quote that never closes"),
    ],
)
def test_wrong_values_are_refused(flag: str, error: type[Exception]) -> None:
    """A wrong type is unreadable, a value that Megatron refuses is illegal; both name the line."""
    with pytest.raises(error) as caught:
        read(f"torchrun x.py {flag}", "x.sh")
    assert caught.value.line == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("layout", "pp", "counts"),
    [
        pytest.param("Et*3|t*4|t*4|t*3L", 2, (3, 4, 4, 3), id="pp 2 x vpp 2: 3 4 4 3"),
        pytest.param("E|(tt|)*2,(t|)*4,mL", 4, (0, 2, 2, 1, 1, 1, 1, 0), id="ends alone, MTP last"),
        pytest.param("Ettt|(tt|)*29,m|L", 8, (3, *(2,) * 29, 0, 0), id="3 + 29 x 2 = 61 layers"),
    ],
)
def test_pipeline_layouts_by_hand(layout: str, pp: int, counts: tuple[int, ...]) -> None:
    """A layout string lists the layers of each virtual stage in model order."""
    text = (
        f"torchrun x.py --pipeline-model-parallel-size {pp} --num-layers {sum(counts)} "
        f'--pipeline-model-parallel-layout "{layout}"'
    )
    reading = read(text, "x.sh")
    assert reading.placement.layers == counts
    assert reading.facts["virtual_stages"].value == len(counts) // pp


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("if true; then\n" * 3000, id="if in if"),
        pytest.param("[[ " + "( " * 3000 + "a ]]", id="brackets in a test"),
        pytest.param("[ a " + "-a b " * 3000 + "]", id="a test of many"),
        pytest.param("f() " * 3000 + "{ :; }", id="functions of functions"),
        pytest.param("f() { f; }\nf", id="a function that calls itself"),
        pytest.param("while true; do x=1; done", id="a loop without an end"),
        pytest.param("a=xxxxxxxx\n" + "a=$a$a\n" * 60, id="a text that doubles"),
        pytest.param("A=(1 2)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60, id="an array that doubles"),
    ],
)
def test_a_script_without_end_is_one_line(text: str) -> None:
    """Nesting and growth have limits, and each is told in one line."""
    with pytest.raises(UnreadableConfig) as refused:
        read_script(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["! " * 5000 + "true", "[[ " + "! " * 5000 + "a ]]"])
def test_many_negations_are_followed(text: str) -> None:
    """Negation does not nest."""
    assert read_script(text).commands == []


@pytest.mark.parametrize(
    "opener", ["$(echo } ", "$(echo ')' "], ids=["a brace that closes nothing", "a quoted end"]
)
def test_substitutions_inside_each_other_are_one_line(opener: str) -> None:
    """2,000 commands whose text holds an end that is none."""
    word = opener * 2000 + ")" * 2000
    with pytest.raises(UnreadableConfig, match="expansions inside each other"):
        _flags(f'A="{word}"\nrun --a $A')


@pytest.mark.parametrize(
    ("written", "rounds"),
    [
        ("{1..4}", ["1", "2", "3", "4"]),
        ("{8..2..3}", ["8", "5", "2"]),
        ("{1,2,8}", ["1", "2", "8"]),
        ("x {a,b}", ["x", "a", "b"]),
        ('"{1..4}"', ["{1..4}"]),
        ("{1}", ["{1}"]),
    ],
)
def test_braces_of_a_loop_are_words(written: str, rounds: list[str]) -> None:
    """As bash expands them: `for i in {8..2..3}; do echo $i; done` says 8, 5, 2."""
    script = read_script(f"for i in {written}; do run $i; done")
    assert [str(command[1].value) for command in script.commands] == rounds


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ["${X//a/b}", "${X%b*}", "${X^^}"])
def test_work_on_long_texts_is_counted(change: str) -> None:
    """900 changes of a text of 163,840 characters took minutes."""
    doubled = "X=aaaaaaaaaa\n" + 'X="$X$X"\n' * 14
    with pytest.raises(UnreadableConfig, match="steps; no launch script"):
        read_script(f"{doubled}for i in $(seq 1 900); do Y={change}; done\n")
    read_script(f"X=train_8b.sh\nfor i in $(seq 1 900); do Y={change}; done\n")


def test_scripts_that_are_called_spend_of_one_work() -> None:
    """Each alone is followed; together they are too many, which costs no more than one of them."""
    text = 'for i in $(seq 1 900); do A=$i; B=$A; C=$B; D="$C"; done\n' * 3
    read_script(text)
    with shared_work():
        assert [not read_script(text).commands for _ in range(2)] == [True] * 2
        with pytest.raises(UnreadableConfig, match="steps; no launch script"):
            read_script(text)
    read_script(text)
