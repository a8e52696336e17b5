"""YAML files around a Megatron-Bridge recipe: what they say of the recipe is read or named.

The lines are those of NVIDIA-NeMo/Nemotron `src/nemotron/steps` and `src/nemotron/recipes`.
"""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

RECIPE = "recipe:\n  _target_: megatron.bridge.recipes.nemotronh.nemotron_3_nano.{name}\n"
REST = """\
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
train:
  global_batch_size: 8
  micro_batch_size: 1
"""
FINETUNES = RECIPE.format(name="nemotron_3_nano_finetune_config")
PRETRAINS = RECIPE.format(name="nemotron_3_nano_pretrain_config")


def read(lines: str) -> Reading:
    return read_config(lines + REST, "default.yaml")


def unread(reading: Reading) -> str:
    return " | ".join(str(fact.value) for fact in reading.unread)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (FINETUNES + "  peft: lora\n", "adapters of this recipe"),
        ("recipe:\n  name: nemotron_omni_cord_v2_peft_config\n", "vision or sound tower"),
        (FINETUNES + "  step_func: nemotron_omni_step\n", "step_func"),
        (FINETUNES + "  dataset: vlm-hf\n", "dataset 'vlm-hf'"),
        (FINETUNES + "defaults: default.yaml\n", "defaults 'default.yaml'"),
        (FINETUNES + "defaults: [_self_, base]\n", "defaults 'base'"),
        (RECIPE.format(name="llama3_8b_fp8_config"), "its name says fp8"),
        (FINETUNES, "has LoRA where peft is not stated"),
        (FINETUNES + "  peft:\n    dim: 8\n", "the adapters of this recipe are not stated"),
        (PRETRAINS + "  enable_deepep: true\n", "recipe.enable_deepep"),
        (PRETRAINS + "  moe_kwargs:\n    dispatcher: deepep\n", "recipe.moe_kwargs ("),
    ],
)
def test_what_a_file_says_of_its_recipe_is_named(lines: str, named: str) -> None:
    assert named in unread(read(lines))


@pytest.mark.parametrize(
    "lines",
    [
        PRETRAINS + "  enable_deepep: false\n  data_paths: [a]\n  seq_length: 4096\n",
        FINETUNES + "  peft: null\n",
        FINETUNES + "  peft: none\n  dataset: llm-pretrain\n",
        FINETUNES + "  peft: null\ndefaults: [_self_]\n",
        FINETUNES + "  peft: lora\npeft:\n  dim: 8\n  target_modules: [linear_qkv]\n",
    ],
)
def test_the_rest_is_priced(lines: str) -> None:
    assert not unread(read(lines))


def test_a_name_says_the_format() -> None:
    facts = read(RECIPE.format(name="llama3_8b_fp8mx_config")).facts
    assert facts["precision"].value == "mxfp8"


def test_arguments_of_a_recipe_state_the_layout_and_overrides_win() -> None:
    arguments = "  context_parallelism: 64\n  tensor_parallelism: 2\n  sequence_parallelism: true\n"
    reading = read(PRETRAINS + arguments + "  global_batch_size: 64\n")
    stated = {name: fact.value for name, fact in reading.facts.items()}
    assert (stated["context_parallel"], stated["tensor_parallel"]) == (64, 4)  # `model` says 4
    assert stated["global_batch_size"] == 8  # `train` says it
    assert stated["sequence_parallel"]
    assert "context_parallel" not in reading.left_to_recipe
