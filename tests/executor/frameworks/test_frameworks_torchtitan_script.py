"""Scripts that launch torchtitan with a TOML file: its facts, less what the options replace."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

TOML = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
[compile]
enable = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
LAUNCH = (
    "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file {file} {more}"
)


def script(tmp_path: Path, more: str, file: str = "./configs/llama3_8b.toml") -> Reading:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "configs").mkdir(exist_ok=True)
    (tmp_path / "configs/llama3_8b.toml").write_text(TOML)
    (tmp_path / "slurm").mkdir(exist_ok=True)
    path = tmp_path / "slurm/train.sh"
    path.write_text("#!/bin/bash\n" + LAUNCH.format(file=file, more=more) + "\n")
    return read_config(path.read_text(), str(path), start=Start(environment={"MB": "4"}))


def test_options_win_over_the_file_and_the_launcher_gives_the_gpus(tmp_path: Path) -> None:
    more = '--parallelism.tensor_parallel_degree 4 --training.local-batch-size=$MB "$@"'
    reading = script(tmp_path, more)
    said = {name: fact.value for name, fact in reading.facts.items()}
    assert (said["tensor_parallel"], said["micro_batch_size"], said["gpus"]) == (4, 4, 16)
    assert (said["seq_len"], said["model"]) == (8192, "llama-3.1-8b")
    assert {fact.line for name, fact in reading.facts.items() if name == "tensor_parallel"} == {2}


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ("", "selective"),
        ("--activation_checkpoint.mode full", "full"),
        ("--activation_checkpoint.mode=none --compile.no-enable", "none"),
    ],
)
def test_recompute_is_the_options(tmp_path: Path, more: str, mode: str) -> None:
    assert script(tmp_path, more).recompute.mode == mode


def test_a_loop_is_a_case_each(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    text = "for tp in 1 2 4; do\n" + LAUNCH.format(
        file="a.toml", more="--parallelism.tensor_parallel_degree $tp"
    )
    path = tmp_path / "sweep.sh"
    path.write_text(text + "\ndone\n")
    reading = read_config(path.read_text(), str(path))
    cases = [reading, *reading.others]
    assert [each.facts["tensor_parallel"].value for each in cases] == [1, 2, 4]


def test_what_is_left_open_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableConfig, match=r"\$TP.*--env TP=VALUE"):
        script(tmp_path, "--parallelism.tensor_parallel_degree $TP")
    with pytest.raises(NothingToRead, match="CONFIG=VALUE"):
        script(tmp_path, "", file="$CONFIG")
    with pytest.raises(NothingToRead, match="check that file"):
        script(tmp_path, "", file="other.toml")


def test_another_program_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "infer.sh"
    path.write_text("python -m torchtitan.models.flux.infer --job.config_file a.toml\n")
    with pytest.raises(NothingToRead, match=r"not torchtitan\.train"):
        read_config(path.read_text(), str(path))


REGISTRY = """\
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer
from .parts import own_training


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=own_training(),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=FullAC.Config(),
    )
"""
PARTS = """\
def own_training(length=4096):
    return TrainingConfig(seq_len=length, local_batch_size=2)
"""
RECIPES = """\
from torchtitan.models.llama3.config_registry import llama3_8b


def wide() -> Trainer.Config:
    config = llama3_8b()
    config.parallelism.tensor_parallel_degree *= 4
    return config
"""


def functions(tmp_path: Path, more: str) -> Reading:
    """A script that launches `more` beside a repository of configuration functions."""
    models = "torchtitan/models/llama3"
    files = {f"{models}/__init__.py": "def model_registry(flavor):\n    return 1\n",
             "torchtitan/__init__.py": "", "torchtitan/models/__init__.py": "",
             f"{models}/config_registry.py": REGISTRY, f"{models}/parts.py": PARTS,
             "recipes/llama3.py": RECIPES}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 -m torchtitan.train {more}\n")
    return read_config(path.read_text(), str(path))


@pytest.mark.parametrize(
    ("more", "tensor", "micro"),
    [
        ("--module llama3 --config llama3_8b", 2, 2),
        ("--module=recipes.llama3 --config=wide", 8, 2),
        ("--module llama3 --config llama3_8b --training.local_batch_size 4 --compile.enable", 2, 4),
    ],
)
def test_a_configuration_function_is_followed_over_files(
    tmp_path: Path, more: str, tensor: int, micro: int
) -> None:
    reading = functions(tmp_path, more)
    said = {name: fact.value for name, fact in reading.facts.items()}
    assert (said["tensor_parallel"], said["micro_batch_size"], said["gpus"]) == (tensor, micro, 8)
    assert (said["model"], said["seq_len"], reading.recompute.mode) == (
        "llama-3.1-8b",
        4096,
        "full",
    )
    assert not reading.unread


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--module llama3 --config nothing", "has no configuration function 'nothing'"),
        ("--module qwen3 --config qwen3_8b", "module 'qwen3' is not below it"),
        ("--module llama3 --config $CONFIG", r"'\$CONFIG' means; .*--env CONFIG="),
    ],
)
def test_a_function_that_is_not_there_is_refused(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(NothingToRead, match=said):
        functions(tmp_path, more)


def test_a_sections_class_that_a_word_chooses_is_named(tmp_path: Path) -> None:
    more = "--module llama3 --config llama3_8b activation_checkpoint:selective-ac.config"
    unread = functions(tmp_path, more).unread
    assert [str(fact.value).split()[0] for fact in unread] == [more.split()[-1]]


def test_a_function_is_followed_with_the_commands_variables(tmp_path: Path) -> None:
    """Exported by the script, set before the command, or said by `--env` of the file itself."""
    functions(tmp_path, "--module llama3 --config llama3_8b")
    degree = "int(os.environ.get('TP', '2'))"
    recipe = RECIPES.replace("degree *= 4", f"degree = {degree}")
    file = tmp_path / "recipes/llama3.py"
    file.write_text(f"import os\n{recipe}")
    launch = "torchrun --nproc_per_node 8 -m torchtitan.train --module recipes.llama3 --config wide"
    for before, tensor in (("export TP=8\n", 8), ("TP=4 ", 4), ("", 2)):
        text = f"{before}{launch}\n"
        reading = read_config(text, str(tmp_path / "run.sh"))
        assert reading.facts["tensor_parallel"].value == tensor, before
    start = Start(environment={"TP": "8"})
    reading = read_config(file.read_text(), str(file), start=start)
    assert reading.facts["tensor_parallel"].value == 8
