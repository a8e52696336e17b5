"""The recipe that a launch of `run_recipe.py` names. Run: pytest tests/executor/frameworks."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

RECIPES = """\
def llama3_8b_2gpu_config() -> ConfigContainer:
    cfg = ConfigContainer()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.context_parallel_size = 1
    cfg.model.seq_length = 8192
    cfg.dataset.seq_length = 8192
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = "bf16_mixed"
    return cfg
"""
ALIAS = "from .llama3 import (\n    llama3_8b_2gpu_config as llama3_8b_config,\n)\n"
LAUNCH = "torchrun --nproc_per_node=8 scripts/training/run_recipe.py "


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a launch of a recipe needs of Megatron-Bridge's repository."""
    recipes = tmp_path / "src/megatron/bridge/recipes/llama"
    recipes.mkdir(parents=True)
    (recipes / "llama3.py").write_text(RECIPES)
    (recipes / "__init__.py").write_text(ALIAS + "from .other import x as x\n")
    program = tmp_path / "scripts/training/run_recipe.py"
    program.parent.mkdir(parents=True)
    program.write_text("import argparse\n")
    return tmp_path


def launched(clone: Path, words: str) -> Reading:
    """The launch of `words` by a script in the clone's folder."""
    return read_config(LAUNCH + words + "\n", str(clone / "run.sh"))


@pytest.mark.parametrize("name", ["llama3_8b_2gpu_config", "llama3_8b_config"])
def test_a_recipe_is_followed_under_its_words(clone: Path, name: str) -> None:
    """By its name or by that of an import; the words win, `-sl` for the model's sequences too."""
    found = launched(clone, f"--recipe {name} -tp 2 -sl 4096 train.global_batch_size=64")
    values = {key: fact.value for key, fact in found.facts.items()}
    assert {"model": "llama-3-8b", "tensor_parallel": 2, "pipeline_parallel": 2, "gpus": 8,
            "global_batch_size": 64, "micro_batch_size": 1, "seq_len": 4096,
            }.items() <= values.items()  # fmt: skip
    assert {fact.line for fact in found.facts.values()} == {1}
    assert "line 1: the recipe 'llama3_8b_2gpu_config' of llama3.py" in found.notes
    assert not found.unread


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("", {}),
        ("--tp 2", {"tensor_parallel": 2, "sequence_parallel": True}),
        (
            "--tp=1 --pp 4",
            {"tensor_parallel": 1, "sequence_parallel": False, "pipeline_parallel": 4},
        ),
        (
            "--tp 2 model.sequence_parallel=false",
            {"tensor_parallel": 2, "sequence_parallel": False},
        ),
        ("-tp 2 --seq-length 4096", {"tensor_parallel": 2, "seq_len": 4096}),
    ],
)
def test_options_of_each_release(clone: Path, words: str, changed: dict[str, int | bool]) -> None:
    """Over the recipe, which may be all that a launch states."""
    values = {
        name: fact.value
        for name, fact in launched(clone, "--recipe llama3_8b_config " + words).facts.items()
    }
    assert "sequence_parallel" not in RECIPES
    own = {"tensor_parallel": 4, "pipeline_parallel": 2, "seq_len": 8192}
    names = (*own, "sequence_parallel")
    assert {name: values[name] for name in names if name in values} == own | changed


def test_arguments_of_a_recipe_are_named(clone: Path) -> None:
    """It is followed without any."""
    found = launched(clone, "--recipe llama3_8b_config --hf_path other/model -tp 2")
    assert [str(fact.value).partition(",")[0] for fact in found.unread] == [
        "--hf_path 'other/model' (an argument of the recipe"
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-pp 4", True),
        ("-pp 2", False),
        ("", False),
        ("-pp 4 model.num_layers_in_first_pipeline_stage=7", False),
    ],
)
def test_a_recipes_own_stages_under_other_degrees(clone: Path, words: str, named: bool) -> None:
    """The program may cut the layers anew where the launch changes how many stages there are."""
    recipes = clone / "src/megatron/bridge/recipes/llama/llama3.py"
    uneven = "    cfg.model.num_layers_in_first_pipeline_stage = 17\n    return"
    recipes.write_text(RECIPES.replace("    return", uneven))
    found = launched(clone, f"--recipe llama3_8b_config -tp 1 {words}")
    unread = [str(fact.value) for fact in found.unread]
    assert any("the recipe's num_layers_in_first" in each for each in unread) is named


@pytest.mark.parametrize(("words", "named"), [("-mb 1", True), ("-tp 2", False)])
def test_what_a_recipe_leaves_unclear_is_named_unless_stated(
    clone: Path, words: str, named: bool
) -> None:
    """At the line of the launch."""
    recipes = clone / "src/megatron/bridge/recipes/llama/llama3.py"
    recipes.write_text(RECIPES.replace("_size = 4", "_size = degree()"))
    unread = launched(clone, f"--recipe llama3_8b_config {words}").unread
    assert [fact.line for fact in unread] == [1] * named


@pytest.mark.parametrize(
    ("name", "degree"), [("llama3_8b_2gpu_config", 8), ("llama3_8b_config", 4)]
)
def test_a_benchmarks_recipe_comes_before_another_of_its_name(
    clone: Path, name: str, degree: int
) -> None:
    """A name that an import makes is of the package of that import."""
    recipes = clone / "src/megatron/bridge/perf_recipes/llama.py"
    recipes.parent.mkdir()
    recipes.write_text(RECIPES.replace("_size = 4", "_size = 8"))
    found = launched(clone, f"--recipe {name} -mb 1")
    assert found.facts["tensor_parallel"].value == degree


@pytest.mark.parametrize("name", ["x", "in_a_circle", "llama9_config"])
def test_a_recipe_that_is_not_there_leaves_the_words(clone: Path, name: str) -> None:
    """Also where imports only hand its name on."""
    imports = "from .a import round as in_a_circle\nfrom .b import in_a_circle as round\n"
    (clone / "src/megatron/bridge/recipes/llama/a.py").write_text(imports)
    found = launched(clone, f"--recipe {name} -tp 2")
    assert found.facts["tensor_parallel"].value == 2
    assert "pipeline_parallel" not in found.facts


def test_a_module_of_the_clone_may_be_empty(clone: Path) -> None:
    """`recipes/utils/__init__.py` of a fork is."""
    for name, text in (("empty", b""), ("latin", b"# \xe9\n")):
        (clone / f"src/megatron/bridge/recipes/{name}.py").write_bytes(text)
    found = launched(clone, "--recipe llama3_8b_config")
    assert found.facts["tensor_parallel"].value == 4


@pytest.mark.parametrize("name", ["seq_length", "sequence_length"])
def test_the_datas_length_by_either_name_wins(clone: Path, name: str) -> None:
    """`sequence_length` is megatron-core's (src/megatron/bridge/training/config.py)."""
    words = f"--recipe llama3_8b_config model.seq_length=512 dataset.{name}=512"
    found = launched(clone, words)
    assert found.facts["seq_len"].value == 512
    assert not found.unread


@pytest.mark.parametrize(("scheme", "named"), [("none", False), ("None", False), ("lora", True)])
def test_no_scheme_is_no_adapters(clone: Path, scheme: str, named: bool) -> None:
    """NVIDIA-NeMo/Megatron-Bridge examples/models/gpt_oss/slurm_sft.sh trains all weights."""
    found = launched(clone, f"--recipe llama3_8b_config --peft_scheme {scheme}")
    assert bool(found.unread) == named
