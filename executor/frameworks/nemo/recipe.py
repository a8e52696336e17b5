"""What Megatron-Bridge's overrides leave to their recipe, which is a program and not read."""

from collections.abc import Iterable, Iterator, Mapping

from meshplan.executor.frameworks.documents.values import YES, shown
from meshplan.executor.frameworks.megatron.settings import COUNTS
from meshplan.planner.case.reading import Fact

_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
_CHUNKS = "virtual_pipeline_model_parallel_size"
_LEFT = {name: COUNTS[name] for name in _DEGREES} | {
    "virtual_stages": _CHUNKS, "recompute": "recompute_granularity",
    "stages": "pipeline_model_parallel_layout",
}  # fmt: skip
_SAYS_CHUNKS = {"pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage"}
_SAYS_STAGES = {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
                "account_for_embedding_in_pipeline_split",
                "account_for_loss_in_pipeline_split"}  # fmt: skip
_SHARDS = {"use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2"}


_OF_TOWERS = {"freeze_vision_model", "freeze_vision_projection", "freeze_sound_model",
              "freeze_sound_projection", "freeze_language_model"}  # fmt: skip
"""Fields that only providers of models with a tower have, whatever their value
(NVIDIA-NeMo/Megatron-Bridge@067f987d src/megatron/bridge/models)."""


def of_towers(found: Mapping[str, Fact]) -> Iterator[Fact]:
    """The fields that say that the recipe's model has a tower, which is not read from a recipe."""
    why = "a field of models with a vision or sound tower, which is not read from a recipe"
    for name, fact in found.items():
        if name.startswith("model.") and name.removeprefix("model.") in _OF_TOWERS:
            yield Fact(f"{name} ({why})", fact.line)


def data_length(found: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """`dataset.sequence_length`, megatron-core's name of the data's length, by Megatron-Bridge's
    (src/megatron/bridge/training/config.py, GPTDatasetConfig: `seq_length` sets it).
    """
    stated = found.get("dataset.sequence_length")
    if stated is None or stated.value is None:
        return found
    rest = {name: fact for name, fact in found.items() if name != "dataset.sequence_length"}
    return {"dataset.seq_length": stated, **rest}


def sharding(found: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """The distributed optimizer is on where either section has it
    (NVIDIA-NeMo/Megatron-Bridge@067f987d src/megatron/bridge/training/config.py,
    `_validate_and_sync_distributed_optimizer_settings`).
    """
    names = [f"{section}.use_distributed_optimizer" for section in ("ddp", "optimizer")]
    on = [found[name] for name in names if name in found and str(found[name].value).lower() in YES]
    return {**found, **dict.fromkeys(names, on[0])} if on else found


def lengths(found: Mapping[str, Fact]) -> list[Fact]:
    """The data's length, where it is not the model's."""
    data, model = (found.get(f"{section}.seq_length") for section in ("dataset", "model"))
    if data is None or model is None or data.value == model.value:
        return []
    why = f"the model's sequences have {shown(model.value)}, and Megatron-Bridge wants them alike"
    return [Fact(f"dataset.seq_length {shown(data.value)} ({why})", data.line)]


def leaves_sharding(found: Iterable[str]) -> bool:
    """Whether a recipe decides how states are sharded: in NVIDIA's the distributed optimizer is on
    (recipes/common.py, _pretrain_common and _sft_common).
    """
    return not (_SHARDS & _names(found) or any(name.startswith("peft.") for name in found))


def left_to_recipe(found: Iterable[str]) -> dict[str, str]:
    """`Reading.left_to_recipe`: what is not stated; null states it."""
    stated = _names(found)
    stated |= {_CHUNKS} if stated & _SAYS_CHUNKS else set()
    stated |= {_LEFT["stages"]} if stated & _SAYS_STAGES else set()
    return {ours: name for ours, name in _LEFT.items() if name not in stated}


def _names(found: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in found}
