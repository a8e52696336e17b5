"""Scripts whose launch is in another script beside them; each fact was worked out as bash would."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.executor.frameworks.shell.sourced import MAX_SOURCED
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

SHAPE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16 "
    "--max-position-embeddings 4096 --vocab-size 32000 --swiglu --global-batch-size 64"
)
COMMON = (
    "TP=${TP:-1}\nMBS=$1\nshift\n"
    "torchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-1} pretrain_gpt.py "
    f'--tensor-model-parallel-size $TP --micro-batch-size $MBS {SHAPE} "$@"\n'
)


def cases(folder: Path, script: str, **files: str) -> list[Reading]:
    for name, text in {"common.sh": COMMON, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    path = folder / "run.sh"
    path.write_text(script)
    reading = read_config(script, str(path))
    return [reading, *reading.others]


def said(reading: Reading, *names: str) -> list[object]:
    facts = [reading.facts.get(name) for name in names]
    return [fact and (int(fact.value) if str(fact.value).isdecimal() else fact.value)
            for fact in facts]  # fmt: skip


DEGREES = ("tensor_parallel", "micro_batch_size", "gpus", "sequence_parallel")


def test_a_script_is_read_as_it_is_called_with_its_arguments_and_exports(tmp_path: Path) -> None:
    found = cases(
        tmp_path,
        "#!/bin/bash\n#SBATCH --nodes=2\nexport TP=4\nMBS=16\n"
        "bash common.sh 2 --sequence-parallel\nTP=8 srun bash ./common.sh 1\n",
    )
    assert [said(each, *DEGREES) for each in found] == [[4, 2, 16, True], [8, 1, 16, None]]
    assert "as common.sh is called" in found[0].notes[0]


def test_a_variable_that_is_not_exported_does_not_reach_the_script(tmp_path: Path) -> None:
    (found,) = cases(tmp_path, "TP=4\nbash common.sh 2\n")
    assert said(found, "tensor_parallel") == [1]


def test_sbatch_passes_on_what_its_options_say(tmp_path: Path) -> None:
    script = "for tp in 1 2; do sbatch --nodes=4 --export=ALL,TP=$tp common.sh 4; done\n"
    found = cases(tmp_path, script)
    assert [said(each, *DEGREES[:3]) for each in found] == [[1, 4, 32], [2, 4, 32]]


ARGUMENTS = f"ARGS=(--tensor-model-parallel-size 2 --micro-batch-size 1 {SHAPE})\n"


PLAIN = f"python pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 {SHAPE}\n"
JOB = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n"
TWO = JOB.replace("nodes=4", "nodes=2")


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        pytest.param("sbatch --nodes=8 inner.sh\n", [64], id="options win over the header"),
        pytest.param("sbatch -N 2 --gpus-per-node=4 inner.sh\n", [8], id="each option that it has"),
        pytest.param("sbatch --comment='a\nexit' -N 2 inner.sh\n", [16], id="one of two lines"),
        pytest.param(f"{JOB}sbatch -N 8 inner.sh\n", [64], id="not of the job that submits it"),
        pytest.param(f"{JOB}srun bash plain.sh\n", [32], id="those of the job that calls"),
        pytest.param(f"{JOB}srun ./plain.sh\n", [32], id="without a shell"),
        pytest.param(f"{JOB}mpirun -np 16 bash plain.sh\n", [16], id="processes of the starter"),
        pytest.param("for n in 8 16; do mpirun -np $n bash plain.sh; done\n", [8, 16], id="each"),
        pytest.param(f"{TWO}bash inner.sh\n", [16], id="bash reads no header"),
        pytest.param(f"{JOB}srun -N 2 --ntasks-per-node 8 plain.sh\n", [16], id="part of a job"),
        pytest.param(f"{JOB}export N=8\nsbatch -N 2 open.sh\n", [16], id="nor its variables"),
        pytest.param("mpirun -np 16 bash inner.sh\n", [16], id="nor where processes are stated"),
        pytest.param("srun -n 4 bash open.sh\n", [None], id="a launcher of its own starts more"),
        pytest.param("#SBATCH --gpus-per-node=4\nsrun open.sh\n", [None], id="nodes by sbatch"),
    ],
)
def test_the_gpus_of_a_call_are_those_of_its_start(
    tmp_path: Path, script: str, gpus: list[int | None]
) -> None:
    """llm-jp/scripts v3-8x1.8b-exp2-sakura/sbatch.sh: 4 x 8 of the caller's header were not seen;
    what `sbatch` is told was read less than the header that it wins over.
    """
    more = PLAIN.replace("python", "torchrun --nproc_per_node $N --nnodes $SLURM_NNODES")
    files = {"inner.sh": f"{JOB}srun {PLAIN}", "plain.sh": PLAIN, "open.sh": more}
    found = cases(tmp_path, script, **files)
    assert [said(each, "gpus") for each in found] == [[each] for each in gpus]


def test_slurm_says_the_tasks_of_each_node() -> None:
    """SchedMD/slurm, man page of sbatch: `SLURM_TASKS_PER_NODE`, here of 4 nodes alike."""
    script = f"{JOB}N=$(echo $SLURM_TASKS_PER_NODE | cut -d '(' -f 1)\nALL=$SLURM_TASKS_PER_NODE\n"
    known = read_script(script).variables
    assert [known[name][0].value for name in ("N", "ALL")] == ["8", "8(x4)"]
    alone = read_script(script.replace("nodes=4", "nodes=1")).variables
    assert alone["ALL"][0].value == "8"


@pytest.mark.parametrize(
    "name",
    ["conf/args.sh", "./conf/args.sh", '"$(dirname "$0")/conf/args.sh"', "$HERE/conf/args.sh",
     '"${BASH_SOURCE[0]%/*}/conf/args.sh"'],
)  # fmt: skip
def test_a_file_that_is_sourced_is_followed(tmp_path: Path, name: str) -> None:
    script = f'source {name}\ntorchrun --nproc_per_node 8 pretrain_gpt.py "${{ARGS[@]}}"\n'
    (found,) = cases(tmp_path, script, **{"conf/args.sh": ARGUMENTS + "return\nTP=9\n"})
    assert said(found, *DEGREES[:3]) == [2, 1, 8]
    assert any("is sourced: read too" in note for note in found.notes)


@pytest.mark.parametrize(
    "name",
    ["/scratch/$USER/fork/conf/args.sh", "$WORK/fork/conf/args.sh", "/fork/conf/args.sh"],
)
def test_of_an_absolute_path_the_file_that_ends_so_is_followed(tmp_path: Path, name: str) -> None:
    """The repository lay elsewhere on the machine that ran the script: two names of the path are
    enough, one (`/opt/args.sh`) is not.
    """
    launch = 'torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}"\n'
    (tmp_path / "args.sh").write_text("ARGS=(--tensor-model-parallel-size 4)\n")
    (found,) = cases(tmp_path, f"source {name}\n{launch}", **{"conf/args.sh": ARGUMENTS})
    assert said(found, *DEGREES[:3]) == [2, 1, 8]
    assert any(note.endswith(f"read too, as {tmp_path}/conf/args.sh") for note in found.notes)


def test_a_relative_path_is_of_the_folders_that_it_names(tmp_path: Path) -> None:
    """`other/conf/args.sh` is no file of `conf`, which lies beside the script."""
    script = f"source other/conf/args.sh\ntorchrun pretrain_gpt.py {ARGUMENTS[6:-2]}\n"
    (found,) = cases(tmp_path, script, **{"conf/args.sh": ARGUMENTS})
    assert any("what it sets is not read" in note for note in found.notes)


def test_looking_for_files_counts_as_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path is looked for in several folders by several ends: 40 times 10,000 steps are."""
    monkeypatch.setattr("meshplan.executor.frameworks.shell.work.MAX_WORK", 400_000)
    script = "for i in {1..40}; do\nsource /a/b/c/$i.sh\ndone\n"
    with pytest.raises(UnreadableConfig, match="over 400000 steps"):
        read_script(script, path=str(tmp_path / "run.sh"))


@pytest.mark.parametrize("word", ['"${MORE[@]}"', "${MORE[*]}", "$MORE"])
def test_flags_that_only_a_missing_file_can_set_are_not_understood(
    tmp_path: Path, word: str
) -> None:
    launch = f"torchrun pretrain_gpt.py {ARGUMENTS[6:-2]} --lr 1e-4 {word}\n"
    (found,) = cases(tmp_path, f"source conf/gone.sh\n{launch}")
    (fact,) = found.unread
    assert fact.line == 2
    assert fact.value == "flags of $MORE (what 'conf/gone.sh' sets, sourced and not there)"
    for shells_own in ("", "source .venv/bin/activate\n", "source ~/.bashrc\n"):
        assert not cases(tmp_path, f"{shells_own}{launch}")[0].unread


def test_what_is_sourced_from_elsewhere_is_a_note(tmp_path: Path) -> None:
    script = f"source /opt/env.sh\ntorchrun pretrain_gpt.py {ARGUMENTS[6:-2]}\n"
    (found,) = cases(tmp_path, script)
    assert "line 1: /opt/env.sh is sourced: what it sets is not read" in found.notes


def test_a_script_that_calls_nothing_that_is_read_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("pip install torch\n")
    assert recognise(str(tmp_path / "run.sh"), "bash setup.sh\n") is None


def test_a_call_that_is_never_reached_launches_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingToRead, match="calls another one"):
        cases(tmp_path, "exit\nbash common.sh 2\n")


def test_what_calls_and_sources_each_other_ends(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("source b.sh\n")
    (tmp_path / "b.sh").write_text("source a.sh\n")
    with pytest.raises(UnreadableConfig, match="deep"):
        read_script("source a.sh\n", path=str(tmp_path / "run.sh"))
    (tmp_path / "a.sh").write_text("X=1 # " + "x" * 1000 + "\n")
    rounds = MAX_SOURCED // 1000 + 1
    with pytest.raises(UnreadableConfig, match="characters"):
        read_script(f"for i in $(seq {rounds}); do source a.sh; done", path=f"{tmp_path}/run.sh")


def test_what_the_script_is_started_with_reaches_the_other(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text(COMMON)
    path = str(tmp_path / "run.sh")
    started = Start(environment={"TP": "2", "1": "8"})
    assert said(read_config('bash common.sh "$1"\n', path, start=started), *DEGREES[:2]) == [2, 8]


def test_facts_stand_at_the_line_that_calls(tmp_path: Path) -> None:
    (found,) = cases(tmp_path, "# a\n# b\nbash common.sh 2 --no-such-flag\n")
    assert {fact.line for fact in (*found.facts.values(), *found.unread)} == {3}


def test_an_error_names_the_script_and_its_line(tmp_path: Path) -> None:
    with pytest.raises(NothingToRead, match=r"common.sh, line 4: .*\$NOBODY"):
        cases(tmp_path, 'bash common.sh "$NOBODY"\n')


def test_a_sourced_file_of_another_language_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "odd.sh").write_text("if then ((\n")
    script = f"source odd.sh\ntorchrun pretrain_gpt.py {ARGUMENTS[6:-2]}\n"
    (found,) = cases(tmp_path, script)
    assert "line 1: odd.sh is sourced: what it sets is not read" in found.notes


def test_equal_calls_are_one_and_the_first_sixteen_are_judged(tmp_path: Path) -> None:
    assert len(cases(tmp_path, "bash common.sh 2\nbash common.sh 2\n")) == 1
    found = cases(tmp_path, "for i in $(seq 100); do bash common.sh $i; done\n" * 2)
    assert len(found) <= 16


def test_a_script_that_trains_nothing_takes_no_other_along(tmp_path: Path) -> None:
    evaluates = COMMON.replace("pretrain_gpt", "evaluate")
    found = cases(tmp_path, "bash eval.sh 1\nbash common.sh 2\n", **{"eval.sh": evaluates})
    assert [said(each, "micro_batch_size") for each in found] == [[2]]


@pytest.mark.parametrize(
    ("text", "started"),
    [
        pytest.param("exec torchrun b.py\ntorchrun a.py\n", ["torchrun b.py"], id="replaces"),
        pytest.param("exec > >(tee x) 2>&1\ntorchrun a.py\n", ["torchrun a.py"], id="redirects"),
        pytest.param("exec {fd}>x\ntorchrun a.py\n", ["torchrun a.py"], id="opens a file"),
        pytest.param("exec bash -c 'torchrun c.py'\n", ["torchrun c.py"], id="a shell's text"),
        pytest.param(
            'if [ "$X" != y ]; then exec torchrun b.py; fi\ntorchrun a.py\n',
            ["torchrun b.py", "torchrun a.py"],
            id="perhaps",
        ),
    ],
)
def test_exec_starts_a_program_and_ends_the_script(text: str, started: list[str]) -> None:
    """GNU Bash manual 5.2, 4.1 `exec`; stark-sim/megatron-deepspeed-lock-clock scripts/run_eth_...:
    32 scripts that `exec bash` another one were said to call none.
    """
    found = read_script(text, {}, "x.sh").commands
    assert [" ".join(str(word.value) for word in words) for words in found] == started


def test_three_levels_of_calls_are_followed(tmp_path: Path) -> None:
    """stark-sim/megatron-deepspeed-lock-clock scripts/*_compare.sh: a script that runs one that
    runs the launch. What is exported and the arguments reach the innermost.
    """
    launch = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP "
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size $1 "
        "--global-batch-size 64 --seq-length 512 --bf16\n"
    )
    (tmp_path / "inner.sh").write_text(launch)
    (tmp_path / "middle.sh").write_text("export TP=${TP:-1}\nexec bash inner.sh $(($1*2))\n")
    (tmp_path / "third.sh").write_text("bash outer.sh\n")
    outer = tmp_path / "outer.sh"
    outer.write_text("TP=4 bash middle.sh 1\nTP=2 bash middle.sh 3\n")
    reading = read_config(outer.read_text(), str(outer))
    cases = [reading, *reading.others]
    said = [(each.facts["tensor_parallel"].value, each.facts["micro_batch_size"].value)
            for each in cases]  # fmt: skip
    assert said == [(4, 2), (2, 6)]
    assert [each.placement.line for each in cases] == [1, 2]
    third = tmp_path / "third.sh"
    assert len(read_config(third.read_text(), str(third)).others) == 1
    (tmp_path / "fourth.sh").write_text("bash third.sh\n")
    with pytest.raises(UnreadableConfig):  # a fourth level
        read_config("bash third.sh\n", str(tmp_path / "fourth.sh"))
    (tmp_path / "inner.sh").write_text("bash outer.sh\n")
    with pytest.raises(UnreadableConfig):  # in a circle
        read_config(outer.read_text(), str(outer))


def test_launches_of_many_calls_are_judged_up_to_as_many_as_of_one_script(tmp_path: Path) -> None:
    """16 calls of a script that launches 40 times each: 640 cases took five seconds."""
    loop = "for i in $(seq 1 40); do\n"
    run = f"torchrun pretrain_gpt.py {SHAPE} --tensor-model-parallel-size $1 --lr $i\ndone\n"
    (tmp_path / "inner.sh").write_text(loop + run.replace("global-batch-size 64", "lr 1"))
    outer = tmp_path / "outer.sh"
    outer.write_text("".join(f"bash inner.sh {tp}\n" for tp in range(1, 17)))
    reading = read_config(outer.read_text(), str(outer))
    assert 1 + len(reading.others) == 64
    assert any("over 64 launches: the first 64" in note for note in reading.notes)


def test_arguments_that_are_all_sourced(tmp_path: Path) -> None:
    """A script that starts Megatron's program with nothing but what it sources has no flag itself;
    one whose sourced files are not there is skipped in a folder.
    """
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "model.sh").write_text(
        "MODEL=(--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048\n"
        "  --max-position-embeddings 2048 --vocab-size 50304 --bf16)\n"
        "LAYOUT=(--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64)\n"
    )
    script = (
        "source configs/model.sh\n"
        'torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL[@]}" "${LAYOUT[@]}"\n'
    )
    facts = read_config(script, str(tmp_path / "run.sh")).facts
    read = [facts[name].value for name in ("gpus", "tensor_parallel", "global_batch_size")]
    assert read == [8, 2, 64]
    with pytest.raises(NothingToRead, match="no Megatron arguments found"):
        read_config(script.replace("model.sh", "other.sh"), str(tmp_path / "run.sh"))


def test_a_call_that_leaves_a_degree_open_beside_one_that_is_read_is_a_note(
    tmp_path: Path,
) -> None:
    """Only the second call is a case; what the first leaves open is said, of one that trains
    nothing it is not.
    """
    open_degree = COMMON.replace("${TP:-1}", "$DEGREE")
    script = "bash open.sh 2\nexport DEGREE=4\nbash open.sh 1\n"
    (found,) = cases(tmp_path, script, **{"open.sh": open_degree})
    assert said(found, "tensor_parallel", "micro_batch_size") == [4, 1]
    assert found.notes[0].startswith("calls that are not read: 1; the first: open.sh, line ")
    (behind,) = cases(
        tmp_path, script.replace("open.sh", "mid.sh"), **{"mid.sh": "bash open.sh $1\n"}
    )
    assert behind.notes[0].startswith(
        "calls that are not read: 1; the first: mid.sh, line 1: open.sh"
    )
    (alone,) = cases(tmp_path, "bash common.sh 2\n")
    assert not any("calls that are not read" in note for note in alone.notes)


def test_a_script_that_is_a_variables_default_is_followed(tmp_path: Path) -> None:
    """`INNER=${INNER:-common.sh}`: what it is without another word."""
    (found,) = cases(tmp_path, "INNER=${INNER:-common.sh}\nbash $INNER 2\n")
    assert said(found, *DEGREES[:2]) == [1, 2]


def test_processes_that_nothing_states_are_the_reason(tmp_path: Path) -> None:
    """Not the program, which starts none itself: `mpirun -np $((N * 8)) bash inner.sh`."""
    script = "mpirun -np $(($1 * 8)) bash -c 'cd x && bash inner.sh'\n"
    (found,) = cases(tmp_path, script, **{"inner.sh": PLAIN})
    assert said(found, "gpus", "gpus_open") == [
        None, "a number of processes '$(($1 * 8))' leaves the number of GPUs open",
    ]  # fmt: skip
