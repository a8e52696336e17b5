"""Inputs that are long, deep, doubling or self-referring: each costs its size, or is one line."""

import gc
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from random_plans import CLUSTER
from typer.testing import CliRunner

from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.grammar.words import split_words
from meshplan.executor.frameworks.shell.variables import Variables
from meshplan.executor.frameworks.torchtitan.functions import read_python
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import DEFECT, check_paths, exit_code
from meshplan.planner.cli.check import tools
from meshplan.planner.cli.main import app
from meshplan.planner.cli.main import exit_code as named_exit_code
from meshplan.planner.logs.read import Batch, UnreadableLog, read_log, recognised

GIVEN = Settings(
    cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048, global_batch_size=64,
    micro_batch_size=1,
)  # fmt: skip


ARGS = "--tensor-model-parallel-size 1 --num-layers 16 --micro-batch-size 1 "


@pytest.fixture(autouse=True)
def only_the_input() -> Iterator[None]:
    """The collector looks at all that the process holds by now: what is timed is the input's."""
    gc.disable()
    yield
    gc.enable()


def test_words_of_a_line_cost_their_number_and_not_its_square(tmp_path: Path) -> None:
    """27,000 assignments in one line cost about three times 9,000, not nine times as much."""

    def seconds(words: int) -> float:
        path = tmp_path / "train.sh"
        path.write_text(ARGS + "\n" + "A=1 " * words)
        start = time.process_time()
        check_paths([path], tools(), GIVEN)
        return time.process_time() - start

    assert seconds(27_000) < 6 * seconds(9_000)


def test_parts_of_a_word_cost_their_number_and_not_its_square() -> None:
    """18,000 quoted parts of one word cost some eight times 2,250, not 64 times as much."""

    def seconds(parts: int) -> float:
        (word,) = split_words("'a'\"b\"" * (parts // 2))
        expander = Expander(Variables())
        start = time.process_time()
        for _ in range(5):
            expander.fields(word)
        return time.process_time() - start

    assert min(seconds(18_000) for _ in range(2)) < 25 * min(seconds(2_250) for _ in range(2))


def test_rows_of_an_export_cost_their_own_cells(tmp_path: Path) -> None:
    """6,000 short rows below 60,000 column names cost 6,000 cells, not 360 million."""
    path = tmp_path / "wandb.csv"
    path.write_text("Step" + ",c" * 60_000 + "\n" + "1\n" * 6_000)
    start = time.process_time()
    with pytest.raises(UnreadableLog, match="no step times found"):
        read_log(path, Batch(sequences=8, tokens_per_gpu=1024.0, gpus=8))
    assert time.process_time() - start < 2


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run-tag-iteration-time.csv", "Wall time,Step,Value\n" + "1,1,2\n" * 100_000),
        ("history.jsonl", '{"_step":1}\n' * 100_000),
        ("run.json", "[" + "[1,1,2]," * 100_000 + "[1,1,2]]"),
    ],
    ids=["CSV", "JSON lines", "JSON"],
)
def test_of_an_export_the_last_rows_are_read(tmp_path: Path, name: str, text: str) -> None:
    """100,000 short rows, twice what is read: well under two seconds, and the log says so."""
    start = time.process_time()
    log = recognised(text, name, Batch(sequences=8, tokens_per_gpu=1024.0, gpus=8)).log
    assert time.process_time() - start < 2
    assert "the last 50,000 rows were read" in log.notes


NAMED_FILES = {
    "a model": ["plan", "FILE", "--gpus", "8", "--cluster", CLUSTER],
    "a model to show": ["models", "FILE"],
    "a cluster": ["plan", "llama-3.2-1b", "--gpus", "8", "--cluster", "FILE"],
    "a profile to show": ["profiles", "show", "FILE"],
    "measurements": ["profiles", "import", "FILE", "--cluster", CLUSTER, "-o", "new.toml"],
    "measured runs": ["validate", "FILE"],
    "a sweep's cache": ["sweep", "llama-3.2-1b", "--gpus", "8", "--cluster", CLUSTER,
                        "--global-batch", "8", "--cache", "FILE"],
    "a plan": ["explain", "FILE"],
    "a config": ["check", "FILE"],
}  # fmt: skip


def test_a_table_of_runs_is_not_wider_than_runs_are(tmp_path: Path) -> None:
    """30,000 short rows below 30,000 columns would cost 900 million cells: one line, exit 2."""
    path = tmp_path / "runs.csv"
    path.write_text("id" + ",c" * 30_000 + "\n" + "1\n" * 30_000)
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert (done.exit_code, "more than 500 columns" in done.output) == (2, True)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", NAMED_FILES)
def test_a_pipe_and_a_device_are_no_file(tmp_path: Path, command: str, kind: str) -> None:
    """A pipe would wait for ever and a device never ends: one line, exit 2."""
    path = tmp_path / "named.toml"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    words = [str(path) if word == "FILE" else word for word in NAMED_FILES[command]]
    done = CliRunner().invoke(app, words)
    said = done.output + str(done.exception)
    assert "not a file" in said
    assert done.exit_code == 2 or (done.exception and named_exit_code(done.exception) == 2)


def test_a_file_larger_than_any_of_its_kind_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A sparse file of 8 GiB costs no more than the limit of its kind, and is one line."""
    path = tmp_path / "runs.csv"
    with path.open("wb") as file:
        file.truncate(8 * 2**30)
    start = time.process_time()
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert "larger than 16 MiB" in done.output + str(done.exception)
    assert time.process_time() - start < 2


def test_blank_lines_cost_their_number_and_not_its_square(tmp_path: Path) -> None:
    """A hundred thousand empty lines before a plan are looked at once: well under two seconds."""
    path = tmp_path / "plan.yaml"
    path.write_text("a: 1\n" + "\n" * 100_000 + "b: 1\n")
    start = time.process_time()
    check_paths([path], tools(), GIVEN)
    assert time.process_time() - start < 2


HUGE = {
    "a plan 30,000 deep": (".yaml", "meshplan: 1\nx: " + "[" * 30_000 + "]" * 30_000, None),
    "YAML 30,000 deep": (".yaml", "parallelism:\n  tp: " + "[" * 30_000, "nanotron"),
    "a plan of aliases": (".yaml", "meshplan: 1\na0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)), None),
    "aliases under many keys": (".yaml", "parallelism: {tp: 1}\na: &a [" + "1," * 9000 + "]\n"
        + "".join(f"k{i}: *a\n" for i in range(50_000)), "nanotron"),
    "references without end": (".yaml", "model: {mcore_gpt: true, tensor_model_parallel_size: 1}\n"
        "x: '${model.mcore_gpt}" + "\u202e" * 200_000 + "'\n", "bridge"),
    "$(( unclosed": (".sh", ARGS + 'X="${X:-' + "$((" * 80_000 + '}"\n', None),
    "variables that double": (".sh", 'A="abcdefgh"\n' + 'A="$A$A"\n' * 10_000 + ARGS, None),
    "arrays that double": (".sh", "A=(x y)\n" + "A+=(${A[@]})\n" * 5_000 + ARGS, None),
    "operators without end": (".sh", ARGS + "\nA=(" + "<>(" * 60_000 + ")" * 60_000 + ")", None),
    "an append loop": (".sh", "A=()\n" + ("A+=(" + "--num-layers 1 " * 1000 + ")\n") * 12
        + 'B="${A[@]}"\n', "megatron"),
    "a key of 100,000 parts": (".toml", "[parallelism]\n" + ".".join("a" * 100_000) + "=1\n", None),
    "10,000 stages": (".sh", ARGS.replace("16", "10000") + "--pipeline-model-parallel-size 10000 "
        "--hidden-size 64 --num-attention-heads 8 --nproc-per-node 10000 --vocab-size 32000 "
        "--seq-length 2048 --global-batch-size 10000", None),
    "a layer pattern without end": (".sh", ARGS + "--hidden-size 64 --num-attention-heads 8 "
        "--num-experts 8 --moe-layer-freq '[1,1,1,1]*99999'", None),
}  # fmt: skip


@pytest.mark.parametrize("case", HUGE)
def test_an_input_without_end_is_one_line(tmp_path: Path, case: str) -> None:
    """Deep, long, doubling or self-referring: refused by a stated limit, with exit code 2."""
    suffix, text, framework = HUGE[case]
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    facts = Settings(cluster=CLUSTER) if "stages" in case else GIVEN
    (finding,) = check_paths([path], tools(), facts, framework=framework)
    assert finding.verdict == "unreadable"
    assert re.search(r"more than|at most|or more|parts", finding.text), finding.text
    assert DEFECT not in finding.text
    assert exit_code([finding]) == 2


NEMO = "model:\n  mcore_gpt: true\n  tensor_model_parallel_size: 1\n  x0: 8888888888\n"


REFERENCES = {
    "texts that double": "".join(f"  x{i}: ${{.x{i - 1}}}${{.x{i - 1}}}\n" for i in range(1, 40)),
    "squares": "".join(
        f"  x{i}: ${{multiply:${{model.x{i - 1}}},${{model.x{i - 1}}}}}\n" for i in range(1, 40)
    ),
    "a text times a number": "  x1: ${multiply:abcdefgh,9999999999}\n",
    "references in references": "  x1: " + "${A:-" * 1500 + "}" * 1500 + "\n",
    "one that contains itself": "  x1: a${model.x2}\n  x2: b${model.x1}\n",
    "aliases beside": "  x1: ${model.x0}\na: &a [" + "1," * 9000 + "]\n"
    + "".join(f"k{i}: *a\n" for i in range(8)),
}  # fmt: skip


def test_a_dotted_name_of_python_has_an_end() -> None:
    """CPython's parser keeps every beginning of `a.a.a`: sixty kilobytes would take a gigabyte."""
    start = time.process_time()
    with pytest.raises(UnreadableConfig, match="at most 10000 are read"):
        read_python("from torchtitan." + "a." * 30_000 + "b import c\n", "")
    assert time.process_time() - start < 1


@pytest.mark.parametrize("case", REFERENCES)
def test_references_of_a_yaml_file_cost_their_number(tmp_path: Path, case: str) -> None:
    """Each `${...}` is answered once and stays short: no defect, and well under two seconds."""
    path = tmp_path / "config.yaml"
    path.write_text(NEMO + REFERENCES[case])
    start = time.process_time()
    (finding,) = check_paths([path], tools(), GIVEN, framework="bridge")
    assert time.process_time() - start < 2
    assert DEFECT not in finding.text


def test_words_of_a_model_name_cost_their_number_and_not_its_square(tmp_path: Path) -> None:
    """A hundred thousand words that name a tuning, in one name: well under two seconds."""
    path = tmp_path / "axolotl.yaml"
    name = "a" + "-it" * 100_000 + "!"
    path.write_text(f"base_model: {name}\nsequence_len: 4096\ndatasets: []\n")
    start = time.process_time()
    check_paths([path], tools(), GIVEN)
    assert time.process_time() - start < 2
