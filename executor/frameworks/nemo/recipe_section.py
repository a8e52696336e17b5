"""What a YAML file around a Megatron-Bridge recipe says of the recipe, beside its overrides.

    recipe:
      _target_: megatron.bridge.recipes.nemotronh.nemotron_3_nano.nemotron_3_nano_finetune_config
      name, step_func, dataset, peft           as the options of `run_recipe.py`
      tensor_parallelism, context_parallelism  arguments of the recipe's function, by their names
        ...                                    or Megatron's; `model` and `train` win over them

An argument that is in no list here is named. A recipe `..._finetune_config` has adapters unless
`peft` is null or "none".

Source: NVIDIA-NeMo/Nemotron@e27b3713 `src/nemotron/recipes`, `src/nemotron/steps`;
NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/recipes` (Nemotron3SuperCommonKwargs,
Nemotron3SuperFinetuneKwargs, Qwen3CommonKwargs, `user_kwargs.get("peft", "lora")`), and @067f987d
`src/megatron/bridge/diffusion/recipes/nemotron_labs_diffusion/ar_to_dlm.py`.
"""

from collections.abc import Iterator, Mapping

from meshplan.costmodels.model.config_fields import names
from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.megatron.settings import COUNTS
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.nemo.scripts import of_recipe
from meshplan.planner.case.reading import Fact

_NO_PEFT = ("none", "null", "false", "")
_SECTION = "recipe."
_RENAMED = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "expert_model_parallelism": "expert_model_parallel_size",
    "expert_tensor_parallelism": "expert_tensor_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "precision_config": "mixed_precision",
}
_READ = frozenset(
    (
        *COUNTS.values(), *_RENAMED.values(), "recompute_granularity", "recompute_method",
        *("recompute_num_layers", "recompute_modules", "use_megatron_fsdp"),
    )
)  # fmt: skip
_OF_RUNNER = frozenset(("_target_", "name", "step_func", "dataset", "peft"))
_NO_EFFECT = names("""
    dir data_paths data_args_path train_data_path valid_data_path test_data_path mock
    path_to_cache per_split_data_args_path pipeline_parallelism_dtype pipeline_dtype
    use_null_tokenizer tokenizer tokenizer_path tokenizer_model train_iters eval_interval
    save_interval log_interval lr min_lr finetune_lr lr_warmup_iters lr_decay_iters lr_decay_style
    lr_warmup_fraction lr_wsd_decay_iters pretrained_checkpoint load_hf_checkpoint wandb_project
    wandb_entity wandb_exp_name packed_sequence model_provider hf_path hf_processor_path
""")
"""Of the model's path nothing is read: `model` says it."""


def run_of_file(found: Mapping[str, Fact]) -> Run:
    """The file as one launch, with what its recipe's name says and what is not read of it."""
    given = dict(_given(found))
    first = sorted(found.items(), key=lambda entry: entry[0].startswith(_SECTION))  # what wins
    stated = {_in_megatrons_words(name): fact for name, fact in first}
    by_name, unread = of_recipe(given, stated)
    unread = (*unread, *_adapters_by_default(given, found), *_other_arguments(found))
    unread = (*unread, *_said_twice(found))
    return Run({**stated, **by_name}, unread=unread)


def _in_megatrons_words(name: str) -> str:
    argument = name.removeprefix(_SECTION)
    return name if argument == name else _SECTION + _RENAMED.get(argument, argument)


def _said_twice(found: Mapping[str, Fact]) -> Iterator[Fact]:
    """One argument under two names, with two values: which one the recipe takes is not known."""
    told: dict[str, tuple[str, object]] = {}
    for name, fact in found.items():
        before, value = told.setdefault(_in_megatrons_words(name), (name, fact.value))
        if value != fact.value:
            yield Fact(f"{before} {shown(value)} and {name} {shown(fact.value)}", fact.line)


def _other_arguments(found: Mapping[str, Fact]) -> Iterator[Fact]:
    """Arguments of the recipe that may set anything, each once: a mapping counts as one."""
    known = {*_RENAMED, *_READ, *_OF_RUNNER, *_NO_EFFECT}
    others: dict[str, Fact] = {}
    for name, fact in found.items():
        if name.startswith(_SECTION) and fact.value not in (None, False):
            others.setdefault(name.split(".")[1], fact)
    for argument, fact in others.items():
        if argument not in known:
            why = "an argument of its recipe, a program: not known"
            yield Fact(f"{_SECTION}{argument} ({why})", fact.line)


def _adapters_by_default(given: Mapping[str, Fact], found: Mapping[str, Fact]) -> Iterator[Fact]:
    recipe = given.get("recipe")
    stated = "recipe.peft" in found or any(name.startswith("peft") for name in found)
    if recipe is not None and str(recipe.value).endswith("_finetune_config") and not stated:
        why = "has LoRA where peft is not stated; `peft: null` below recipe trains all weights"
        yield Fact(f"{shown(recipe.value)} ({why})", recipe.line)


def _given(found: Mapping[str, Fact]) -> Iterator[tuple[str, Fact]]:
    """The options of `run_recipe.py` that the section states."""
    target = found.get("recipe._target_")
    name = found.get("recipe.name")
    if target is not None and isinstance(target.value, str):
        yield "recipe", Fact(target.value.rpartition(".")[2], target.line)
    elif name is not None:
        yield "recipe", name
    for option in ("step_func", "dataset"):
        if (stated := found.get(f"recipe.{option}")) is not None:
            yield option, stated
    for key, fact in found.items():  # one word, or a mapping of what the adapters are
        of_peft = key == "recipe.peft" or key.startswith("recipe.peft.")
        if of_peft and str(fact.value).lower() not in _NO_PEFT:
            yield "peft_scheme", fact
