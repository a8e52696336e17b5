"""The number formats and optimizers that each engine has: one list for all that ask."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import meshplan.hardware_profiles
from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.automodel.training import _TE_SCALES
from meshplan.executor.frameworks.automodel.training import OPTIMIZERS as OF_AUTOMODEL
from meshplan.executor.frameworks.hugging_face import accelerate
from meshplan.executor.frameworks.llm_foundry.read import _PRECISIONS as OF_FOUNDRY
from meshplan.executor.frameworks.megatron.settings import OPTIMIZERS, PRECISIONS
from meshplan.executor.frameworks.nanotron.export import DTYPES
from meshplan.executor.frameworks.nemo.mixed_precision import MIXED
from meshplan.executor.frameworks.neox.read import _PRECISIONS as OF_NEOX
from meshplan.executor.frameworks.torchtitan.names import CONVERTER_CLASSES, CONVERTERS
from meshplan.executor.frameworks.torchtune.read import OPTIMIZERS as OF_TORCHTUNE
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.planner.case.resolve import check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.cli.main import app
from meshplan.planner.runs.habits import engine_of
from meshplan.planner.runs.rows import SkippedRow, row_of
from meshplan.planner.runs.runs import read_runs
from meshplan.planner.sweep.cells import Axes, cells_of

PUBLISHED = Path(meshplan.hardware_profiles.__file__).parent / "published"
RUNS = ("runs", "elsewhere", "hybrids", "lora", "internlm", "aleph")
QUESTION = ("llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "64")


@pytest.mark.parametrize("file", RUNS)
def test_published_runs_trained_in_formats_of_their_engines(file: str) -> None:
    """A run that was measured shows that its engine has the format."""
    runs = 0
    for cells in read_runs(PUBLISHED / f"{file}.csv"):
        try:
            row = row_of(cells)
        except SkippedRow:
            continue
        runs += 1
        engine = engine_of(row)
        assert row.precision in ("", *engine.legality.precisions), (row.id, engine.name)
    assert runs


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("accelerate", accelerate.MIXED.values()),
        ("automodel", _TE_SCALES.values()),
        ("gpt-neox", OF_NEOX.values()),
        ("llm-foundry", OF_FOUNDRY.values()),
        ("megatron", PRECISIONS),
        ("megatron-bridge", MIXED.values()),
        ("nanotron", DTYPES.values()),
        ("torchtitan", [*CONVERTERS.values(), *CONVERTER_CLASSES.values()]),
    ],
)
def test_what_files_can_say_the_engine_has(engine: str, words: Iterable[str]) -> None:
    """No reader or writer knows a format that the engine's list leaves out."""
    assert set(words) <= set(load_engine(engine).legality.precisions)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("automodel", OF_AUTOMODEL.values()),
        ("megatron", OPTIMIZERS.values()),
        ("megatron-bridge", OPTIMIZERS.values()),
        ("accelerate-chunked-loss", OF_TORCHTUNE.values()),
    ],
)
def test_optimizers_that_files_can_say_the_engine_has(engine: str, words: Iterable[str]) -> None:
    assert set(words) <= set(load_engine(engine).legality.optimizers)


@pytest.mark.parametrize(
    ("engine", "optimizer"),
    [
        ("torchtitan-0.2", "adamw8bit"),
        ("native", "sgd"),
        ("nanotron", "muon"),
    ],
)
def test_plan_refuses_an_optimizer_that_the_engine_lacks(engine: str, optimizer: str) -> None:
    done = CliRunner().invoke(
        app, ["plan", *QUESTION, "--engine", engine, "--optimizer", optimizer]
    )
    assert done.exit_code == 2
    said = f"optimizer {optimizer}: engine {engine} has "
    assert said in done.stderr
    able = done.stderr.split("engines that have it: ")[1].strip().split(", ")
    assert "deepspeed" in able
    assert engine not in able


def test_a_source_for_every_list() -> None:
    """An engine says where its list is from, itself or the one that it is based on."""
    assert all("precisions" in load_engine(name).sources for name in engine_names())


@pytest.mark.parametrize("engine", ["nanotron", "bigscience", "native"])
def test_plan_refuses_what_the_engine_does_not_train_in(engine: str) -> None:
    """One line with the engine's formats and the engines that have it, exit 2."""
    done = CliRunner().invoke(app, ["plan", *QUESTION, "--engine", engine, "--precision", "fp8"])
    assert done.exit_code == 2
    first, able = done.output.split("; engines that do: ")
    assert first.startswith(f"error: --precision fp8: engine {engine} trains in ")
    names = able.rstrip("\n").split(", ")
    assert {"megatron", "llm-foundry", "torchtitan"} <= set(names)
    assert engine not in names


def test_a_sweep_goes_on_past_it() -> None:
    """Of two engines the one without the format is a cell without a plan."""
    cluster = ("dgx-h100",)
    axes = Axes(models=("llama-3.1-8b",), gpus=(8,), clusters=cluster,
                batches=(64,), engines=("nanotron", "megatron"))  # fmt: skip
    without, able = cells_of(axes, "fp8", "adamw")
    assert "engine nanotron trains in" in without.refusal
    assert able.asked is not None


def test_check_refuses_it_too() -> None:
    """A script of Megatron's in fp8, asked of an engine without."""
    script = (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 "
        "--global-batch-size 8 --seq-length 4096 --bf16 --fp8-format hybrid --fp8-recipe tensorwise"
    )
    given = Settings(cluster="dgx-h100", gpus=8, model="llama-3.1-8b")
    check_case(resolve(read_config(script, "train.sh"), given, Settings()))
    other = given.model_copy(update={"engine": "nanotron"})
    with pytest.raises(InvalidLayout, match="engine nanotron trains in fp32, bf16, fp16"):
        check_case(resolve(read_config(script, "train.sh"), other, Settings()))
