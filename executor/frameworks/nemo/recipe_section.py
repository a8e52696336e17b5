"""What a YAML file around a Megatron-Bridge recipe says of the recipe, beside its overrides.

    recipe:
      _target_: megatron.bridge.recipes.nemotronh.nemotron_3_nano.nemotron_3_nano_finetune_config
      name, step_func, dataset, peft           as the options of `run_recipe.py`

Source: NVIDIA-NeMo/Nemotron `src/nemotron/recipes`, `src/nemotron/steps`.
"""

from collections.abc import Iterator, Mapping

from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.nemo.scripts import of_recipe
from meshplan.planner.case.reading import Fact

_NO_PEFT = ("none", "null", "false", "")


def run_of_file(found: Mapping[str, Fact]) -> Run:
    """The file as one launch, with what its recipe's name says and what is not read of it."""
    given = dict(_given(found))
    by_name, unread = of_recipe(given, found)
    return Run({**found, **by_name}, unread=unread)


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
    peft = found.get("recipe.peft")
    if peft is not None and str(peft.value).lower() not in _NO_PEFT:
        yield "peft_scheme", peft
