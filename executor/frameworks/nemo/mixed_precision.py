"""Megatron-Bridge's and NeMo's names of mixed precision, and the fields that each of them sets.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987d `src/megatron/bridge/training/mixed_precision.py`.
"""

from meshplan.costmodels.training import Precision

MIXED: dict[str, Precision] = {
    "bf16_mixed": "bf16",
    "fp16_mixed": "fp16",
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
    "fp16-mixed": "fp16",
    "32": "fp32",
    "bf16": "bf16",
    "16": "fp16",
}
NARROW_RECIPES = ("fp16_mixed", "fp16-mixed")
"""Recipes of `MIXED` whose gradients have 16 bit."""
OWN_FIELDS: dict[Precision, dict[str, object]] = {
    "bf16": {},
    "fp8": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": True,
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 1,
        "num_layers_at_end_in_bf16": 1,
    },
    "mxfp8": {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True},
}
"""What the recipe of each name sets, as the class takes it; with all of them in bf16."""
