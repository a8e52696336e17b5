"""Megatron-Core's three ways to the loss, by the words that configs and runs have for them.

    te       cross_entropy_loss_fusion with cross_entropy_fusion_impl te: Transformer Engine's
             kernel, whose gradient takes the logits' place
    native   cross_entropy_loss_fusion with cross_entropy_fusion_impl native, its default: operators
             on fp32 logits, compiled in four pieces. Forward 6 bytes a logit are allocated, and
             backward 10: what was saved in fp32, its copy without the labels, the gradient
    unfused  neither: the same operators one by one, in place

Counted of NVIDIA/Megatron-LM@d98e8a64 megatron/core/fusions/fused_cross_entropy.py under torch 2.13
on a CPU, by its allocations. What `native` moves is taken as what `unfused` does: 52 bytes a logit,
where four compiled pieces move some 40. Recipes of Megatron-Bridge set these fields one by one
(NVIDIA-NeMo/Megatron-Bridge@067f987 src/megatron/bridge/recipes); its models fuse unless they are
told not to (models/gpt_provider.py, models/mamba/mamba_provider.py).
"""

from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine

CORE_LOSSES: dict[str, dict[str, Any]] = {
    "te": {"fused_cross_entropy": True, "logits_bytes": 2.0},
    "native": {"fused_cross_entropy": False, "logits_bytes": 10.0},
    "unfused": {"fused_cross_entropy": False, "logits_bytes": 8.0},
}
"""Habits of `KernelHabits`; those of `unfused` are the engine `megatron`'s, as published peaks of
Megatron-LM have it."""


def with_loss(engine: Engine, word: str) -> Engine:
    """The engine with the loss that a config states, "": its own."""
    if not word:
        return engine
    kernels = engine.kernels.model_copy(update=CORE_LOSSES[word])
    return engine.model_copy(update={"kernels": kernels})
