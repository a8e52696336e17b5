"""What Megatron-Bridge's overrides leave to their recipe, which is a program and not read."""

from collections.abc import Iterable, Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact

_CHUNKS = "virtual_pipeline_model_parallel_size"
_LEFT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", _CHUNKS,
    "context_parallel_size", "expert_model_parallel_size", "recompute_granularity",
)  # fmt: skip
_SHARDS = {"use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2"}


def leaves_sharding(found: Iterable[str]) -> bool:
    """Whether a recipe decides how states are sharded: in NVIDIA's the distributed optimizer is on
    (recipes/common.py, _pretrain_common and _sft_common).
    """
    return not (_SHARDS & _names(found) or any(name.startswith("peft.") for name in found))


def left_to_recipe(found: Mapping[str, Fact], values: Values) -> str:
    """The degrees and recompute that are not stated (null states them), and how they are priced."""
    left = [name for name in _LEFT if name not in _names(found)]
    ranks = values.count("pipeline_model_parallel_size")
    if _CHUNKS in left and (ranks is None or ranks.value == 1):
        left.remove(_CHUNKS)
    return f"the recipe leaves {', '.join(left)} at 1 or none" if left else ""


def _names(found: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in found}
