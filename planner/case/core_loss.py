"""Megatron-Core's three ways to the loss, by the words that configs and runs have for them.

    te       cross_entropy_loss_fusion with cross_entropy_fusion_impl te: Transformer Engine's
             kernel, whose gradient takes the logits' place
    native   cross_entropy_loss_fusion with cross_entropy_fusion_impl native, its default: operators
             on fp32 logits, compiled in four pieces
    unfused  neither: the same operators one by one, in place

Recipes of Megatron-Bridge set these fields one by one (NVIDIA-NeMo/Megatron-Bridge@067f987
src/megatron/bridge/recipes); its models fuse unless they are told not to (models/gpt_provider.py,
models/mamba/mamba_provider.py). What `native` moves is taken as what `unfused` does, 52 bytes a
logit, where four compiled pieces move some 40 (NVIDIA/Megatron-LM@d98e8a64
megatron/core/fusions/fused_cross_entropy.py). NeMo's engine has its bytes too, and a step learnt as
if one kernel did it.
"""

from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine

CORE_LOSSES: dict[str, dict[str, Any]] = {
    "te": {"fused_cross_entropy": True, "logits_bytes": 2.0},
    "native": {"fused_cross_entropy": False, "logits_bytes": 13.0},
    "unfused": {"fused_cross_entropy": False, "logits_bytes": 8.0},
}
"""Habits of `KernelHabits`, with the bytes that published peaks leave for a logit: `unfused` of
Megatron-LM (engines/megatron.toml), `native` of NeMo's runs of 8B and 15B, 13.5 and 12.8
(engines/nemo.toml). Its allocations alone are 10 under torch 2.13 on a CPU: in the backward what
was saved in fp32, its copy without the labels, and the gradient.
"""


def loss_word(engine: Engine) -> str:
    """The word whose bytes a logit an engine has; of another framework's the nearest."""
    kernels = engine.kernels
    same = [word for word, habits in CORE_LOSSES.items()
            if habits["logits_bytes"] == kernels.logits_bytes]  # fmt: skip
    return same[0] if same else "te" if kernels.fused_cross_entropy else "unfused"


def with_loss(engine: Engine, word: str) -> Engine:
    """The engine with the loss that a config states, "": its own."""
    if word in ("", loss_word(engine)):
        return engine
    kernels = engine.kernels.model_copy(update=CORE_LOSSES[word])
    return engine.model_copy(update={"kernels": kernels})
