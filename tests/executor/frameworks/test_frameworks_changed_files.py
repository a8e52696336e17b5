"""Files that a launch script writes anew for each launch, and those that it changes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.executor.frameworks.shell.substituted import edit
from meshplan.planner.case.reading import Reading

BASE = """base_model: meta-llama/Llama-3.1-8B
datasets: [{path: x}]
sequence_len: 4096
micro_batch_size: 1  # of a GPU
deepspeed: deepspeed_configs/zero3.json
"""
TRAIN = "accelerate launch --num_processes 8 -m axolotl.cli.train"
PROGRAM = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2"
SED = shutil.which("sed")


def cases(folder: Path, text: str) -> list[Reading]:
    """The launches of `text`, a script in `folder`, where `base.yaml` lies too."""
    (folder / "base.yaml").write_text(BASE)
    reading = read_config(text, str(folder / "run.sh"))
    return [reading, *reading.others]


def micro_batches(folder: Path, text: str) -> list[object]:
    """The micro-batch of each launch."""
    return [case.facts["micro_batch_size"].value for case in cases(folder, text)]


def test_each_launch_of_a_loop_finds_the_file_that_its_round_wrote(tmp_path: Path) -> None:
    """Not the one that the last round left."""
    text = f"for N in 1 4; do\ncat > run.yaml <<EOF\n{BASE.replace(': 1 ', ': $N ')}EOF\n"
    assert micro_batches(tmp_path, f"{text}{TRAIN} run.yaml\ndone\n") == [1, 4]


def test_launches_with_the_same_words_and_other_files_are_cases_of_their_own(
    tmp_path: Path,
) -> None:
    """The stage is DeepSpeed's JSON's alone."""
    text = 'for Z in 1 2 3; do\necho "{\\"zero_optimization\\": {\\"stage\\": $Z}}" > ds.json\n'
    launch = f"deepspeed --num_gpus 8 train.py {PROGRAM} --deepspeed ds.json\n"
    found = cases(tmp_path, f"{text}{launch}done\n")
    assert [case.facts["zero_stage"].value for case in found] == [1, 2, 3]
    same = cases(
        tmp_path, f"{text.replace('1 2 3', '2')}{launch}done\n{launch}echo x > log\n{launch}"
    )
    assert [case.facts["zero_stage"].value for case in same] == [2]


def test_launches_with_the_same_words_on_other_gpus_are_cases_of_their_own(tmp_path: Path) -> None:
    """DeepSpeed takes the GPUs that it sees."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    loop = "for G in 0,1 0,1,2,3; do\nexport CUDA_VISIBLE_DEVICES=$G\n"
    found = cases(tmp_path, f"{loop}deepspeed train.py {PROGRAM} --deepspeed ds.json\ndone\n")
    assert [case.facts["gpus"].value for case in found] == [2, 4]


@pytest.mark.parametrize(
    ("lines", "micro_batch"),
    [
        pytest.param("sed -i 's/batch_size: 1/batch_size: 8/' base.yaml", 8, id="as is"),
        pytest.param('N=2\nsed -i "s/^micro_batch_size:.*/micro_batch_size: $N/" base.yaml', 2,
                     id="with a variable"),
        pytest.param("sed -i -e 's|sequence_len: .*|sequence_len: 8192|;s|size: [0-9]*|size: 4|' "
                     "base.yaml", 4, id="two steps"),
        pytest.param("sed -Ei 's/size: 1/size: 8/' base.yaml", 8, id="options in one word"),
        pytest.param("cp -f base.yaml x.yaml && sed -i 's/size: 1/size: 8/' x.yaml && "
                     "mv -f x.yaml base.yaml", 8, id="copied by force"),
        pytest.param("sed -i 's/no_such_key: .*/no_such_key: 1/' base.yaml", 1, id="nothing"),
    ],
)  # fmt: skip
def test_sed_changes_a_file_that_lies_there(tmp_path: Path, lines: str, micro_batch: int) -> None:
    """Its program reads the changed one; the file itself stays as it is."""
    assert micro_batches(tmp_path, f"{lines}\n{TRAIN} base.yaml\n") == [micro_batch]
    assert (tmp_path / "base.yaml").read_text() == BASE


@pytest.mark.parametrize("made", ["cp base.yaml run.yaml\nsed -i 's/size: 1/size: {}/' run.yaml",
                                  "sed 's/size: 1/size: {}/' base.yaml > run.yaml"])  # fmt: skip
def test_a_file_that_sed_makes_of_another(tmp_path: Path, made: str) -> None:
    """Of the one that lies there, in each round anew."""
    loop = f"for N in 2 4; do\n{made.format('$N')}\n{TRAIN} run.yaml\ndone\n".replace("'", '"')
    assert micro_batches(tmp_path, loop) == [2, 4]


@pytest.mark.parametrize(
    "change",
    ["yq -i '.micro_batch_size = 4' base.yaml", "sed -i 4d base.yaml",
     "python3 make.py > base.yaml", "perl -pi -e 's/1/4/' base.yaml",
     "perl -0777 -i -pe 's/1/4/' base.yaml", "yq --inplace '.a = 4' base.yaml",
     "sed -ni p base.yaml",
     "jq . x > new.yaml && mv new.yaml base.yaml"],
)  # fmt: skip
def test_a_change_that_is_not_followed_is_a_note(tmp_path: Path, change: str) -> None:
    """The file is read as it lies there."""
    (case,) = cases(tmp_path, f"{change}\n{TRAIN} base.yaml\n")
    assert any("makes of base.yaml is not followed" in note for note in case.notes)
    (plain,) = cases(tmp_path, f"python3 x.py > train.log\n{TRAIN} base.yaml\n")
    assert not any("not followed" in note for note in plain.notes)


@pytest.mark.skipif(SED is None, reason="needs sed")
@pytest.mark.parametrize(
    "words",
    [
        ["s/a/b/"], ["s/a/b/g"], ["s|a.c|x/y|"], ["s/a*/-/"], ["s/a*b/-/g"], ["s/^a/x/"],
        ["s/c$/x/g"], ["s/a+/x/"], ["-E", "s/[a-c]*/<>/"], ["s/(b)/x/"], ["s/[^a]/./g"],
        [r"s/\./,/g"], [r"s/a\/c/x/"], ["s/a/b/;s/b/c/g"], ["-e", "s/a/1/", "-e", "s/1/2/"],
        ["s/a{2}/x/"], ["s/.*a/x/"], ["s/k: .*/k: 3/"], ["s/ *$//"], ["s,a|b,x,"],
        ["s/$/,/"], ["s/^/# /"], ["s/.*/x/"], ["s/[a&b]/x/g"], ["s/[a-]/x/g"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["ccc", "ccc\n", "\n", ""])
def test_steps_are_those_of_sed(words: list[str], end: str) -> None:
    """Held against the host's own; behind the end of the last line there is no other."""
    assert SED is not None
    text = f"abc aac\nk: 1 # a.c\n\na+ (b) a|b a{{2}} a/c  \n{end}"
    steps = edit(words)
    assert steps is not None
    run = subprocess.run([SED, *words], input=text, capture_output=True, text=True, check=True)
    assert steps.of(text) == run.stdout


@pytest.mark.parametrize(
    "words",
    [["-E", "s/(a)/b/"], ["s/a/&&/"], [r"s/\(a\)/\1/"], [r"s/a\+/b/"], ["s/a/b/2"], ["2d"],
     ["-n", "p"], ["/a/s/b/c/"], ["-E", "s/a+/b/"], ["s/*a/b/"], [],
     ["s/[z-a]/x/"], ["s/[a&&b]/x/"], ["s/a*/x/g"]],
)  # fmt: skip
def test_steps_that_are_not_followed(words: list[str]) -> None:
    """Groups, counts, addresses, what is special in one kind of expression alone, a range that goes
    down, sets that Python may come to subtract, and every match of what may be empty.
    """
    assert edit(words) is None


def test_stars_that_try_too_much_are_not_followed(tmp_path: Path) -> None:
    """A hundred thousand characters of one line by three stars."""
    (tmp_path / "base.yaml").write_text("a" * 100_000)
    script = read_script("sed -i 's/a*a*a*b/x/' base.yaml", path=str(tmp_path / "run.sh"))
    assert script.files == {}
    assert any("sed makes of base.yaml is not followed" in note for note in script.notes)
