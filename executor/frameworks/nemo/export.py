"""A plan as overrides of the Megatron-Bridge recipe that builds its model.

As YAML (for `--config-file`) and as `KEY=VALUE` words (for `run_recipe.py`); `bridge` reads both
back, and names what stands where.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987d `src/megatron/bridge/training/config.py`,
`scripts/training/run_recipe.py`.
"""

from collections.abc import Mapping

from meshplan.costmodels.training import Precision
from meshplan.executor.frameworks.adapters import bridge_settings
from meshplan.executor.frameworks.documents.nested import as_yaml
from meshplan.executor.frameworks.export_notes import GPUS_PER_NODE, LORA, answer_of, torchrun_words
from meshplan.executor.frameworks.megatron.core_loss import loss_settings
from meshplan.executor.frameworks.megatron.settings import (
    layout_settings,
    narrow_gradients,
    training_settings,
)
from meshplan.executor.frameworks.nemo.mixed_precision import MIXED, OWN_FIELDS
from meshplan.executor.frameworks.nemo.overrides import as_word
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import CannotSay, Exported

RECIPES = {
    "llama-3-8b": "llama3_8b",
    "llama-3-70b": "llama3_70b",
    "llama-3.1-8b": "llama31_8b",
    "llama-3.1-70b": "llama31_70b",
    "llama-3.1-405b": "llama31_405b",
    "llama-3.2-1b": "llama32_1b",
    "llama-3.2-3b": "llama32_3b",
    "qwen3-8b": "qwen3_8b",
    "qwen3-14b": "qwen3_14b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "deepseek-v2-lite": "deepseek_v2_lite",
    "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
}
_SECTIONS = {
    "micro_batch_size": "train",
    "global_batch_size": "train",
    "seq_length": "dataset",
    "use_distributed_optimizer": "ddp",
    "use_megatron_fsdp": "ddp",
    "data_parallel_sharding_strategy": "ddp",
    "num_distributed_optimizer_instances": "ddp",
    "optimizer": "optimizer",
    "optimizer_cpu_offload": "optimizer",
    "optimizer_offload_fraction": "optimizer",
    "use_precision_aware_optimizer": "optimizer",
}
_ALSO = {
    "seq_length": "model",
    "use_distributed_optimizer": "optimizer",
    "use_megatron_fsdp": "dist",
}
_OWN = ("bf16", "fp16", "fp8", "fp4", "fp8_recipe", "fp4_recipe")
_OFF = {
    "model.sequence_parallel": False, "model.expert_model_parallel_size": 1,
    "model.recompute_granularity": None, "model.virtual_pipeline_model_parallel_size": None,
    "model.pipeline_model_parallel_layout": None,
}  # fmt: skip
"""What a recipe may switch on, said where the layout does not have it."""
_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
_BFLOAT16 = {"_target_": "torch.bfloat16", "_call_": False}


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as overrides of the recipe that builds its model."""
    answer = answer_of(plan, gpus_per_node)
    layout, unsaid = layout_settings(answer)
    training, more = training_settings(answer.training)
    if answer.layout.zero_stage == 0:
        layout["use_distributed_optimizer"] = False  # which recipes switch on
    flat = _flat({**layout, **training, **loss_settings(plan.engine)})
    precision = answer.training.precision
    if precision == "fp32":
        more.append(CannotSay("training.precision", "fp32", "a recipe's mixed_precision is 16 bit"))
    elif precision in OWN_FIELDS and narrow_gradients(plan.engine):
        flat["mixed_precision"] = _narrow(precision)
    else:
        theirs = {ours: name for name, ours in reversed(MIXED.items())}
        flat["mixed_precision"] = theirs.get(precision, theirs["bf16"])
    recipe = RECIPES.get(plan.model.name)
    if recipe is None:
        why = "no recipe of this name; replace RECIPE in the command by one that builds it"
        more.append(CannotSay("model", plan.model.name, why, True))
    recipe_kind, data = "pretrain", "--mode pretrain --dataset mock"
    if lora := answer.training.lora:
        flat |= bridge_settings(lora)
        unsaid = [each for each in unsaid if each.name != LORA]
        recipe_kind, data = "peft", "--peft_scheme lora --dataset llm-finetune"
    words = [f"{name}={as_word(value)}" for name, value in flat.items()]
    command = (
        f"{torchrun_words(answer)} "
        f"scripts/training/run_recipe.py --recipe {recipe or 'RECIPE'}_{recipe_kind}_config "
        f"{data} $(grep -v '^#' overrides.txt)"
    )
    return Exported(
        framework="bridge",
        files={"overrides.yaml": as_yaml(flat), "overrides.txt": "\n".join(words) + "\n"},
        launch=command,
        cannot_say=(*unsaid, *more),
    )


def _narrow(precision: Precision) -> dict[str, object]:
    """A `MixedPrecisionConfig` whose gradients have 16 bit, as Bridge builds it from a mapping."""
    dtypes = {name: dict(_BFLOAT16) for name in ("params_dtype", "pipeline_dtype")}
    own = {"_target_": _CLASS, "bf16": True, **dtypes, **OWN_FIELDS[precision]}
    return {**own, "grad_reduce_in_fp32": False}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings under their sections; precision goes by `mixed_precision` instead."""
    flat: dict[str, object] = {}
    for name, value in settings.items():
        if name in _OWN:
            continue
        field = "virtual_pipeline_model_parallel_size" if name == "virtual_pipeline" else name
        flat[f"{_SECTIONS.get(name, 'model')}.{field}"] = value
        if name in _ALSO:
            flat[f"{_ALSO[name]}.{field}"] = value
    return flat | {name: value for name, value in _OFF.items() if name not in flat}
