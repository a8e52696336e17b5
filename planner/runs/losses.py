"""What the words of the fact `fused_loss` say of a loss: the bytes that each logit holds at its
peak, and whether one kernel computes it.
"""

from typing import Any

WHOLE_LOSS = {"loss_chunks": 1, "chunked_loss": False}
TE_LOSS = {"fused_cross_entropy": True, "logits_bytes": 2.0}
FP32_LOSS = {"fused_cross_entropy": False, "logits_bytes": 14.0}
"""Logits cast to fp32 before PyTorch's loss, as engines/automodel-fp32-loss.toml counts them:
prime-rl's (PrimeIntellect-ai/prime-rl@11d87ee8 src/prime_rl/trainer/model.py, forward) and, not in
chunks, torchtune's (meta-pytorch/torchtune@bd2a0fc7 torchtune/modules/transformer.py, unembed).
"""
FP32_LOSS_IN_PLACE = {"fused_cross_entropy": True, "logits_bytes": 8.0}
"""The copy in fp32 and that of its rows less the last, whose gradient takes its place: Unsloth's
kernel behind transformers 4.45 (foundation-model-stack/fms-acceleration@876e2ed plugins/
accelerated-peft; the logits themselves go with the model's output before the backward).
"""
BF16_LOSS = {"fused_cross_entropy": False, "logits_bytes": 6.0}
"""Of 16-bit logits PyTorch's loss has 16-bit log-probabilities and gradients: before it the logits
and the copy that their rows less the last are; after it the gradients of both its steps
(ljm565/universal-llm-trainer@aefdc4a src/models/llama3.py, forward).
"""
BF16_HELD_LOSS = BF16_LOSS | {"logits_bytes": 8.0}
FP32_HELD_LOSS = FP32_LOSS | {"logits_bytes": 16.0}
"""A loop whose variable holds the logits until the next ones take its place: beside them their
log-probabilities and the gradients of both steps; before, those of the step before, the new ones,
their copy less the last row and the log-probabilities
(KempnerInstitute/KempnerForge@5666d0d1 scripts/train.py, kempnerforge/training/loss.py;
intelligent-machine-learning/atorch@7fb7da86 examples/llama2/fsdp_llama2.py).
"""
EAGER_LOSS = {"fused_cross_entropy": False, "logits_bytes": 12.0, "cut_logits_bytes": 16.0}
"""torchtitan's loss without a compiler: log-probabilities in fp32, and the gradients of both steps;
the logits are let go before (pytorch/torchtitan@e8977b007 train.py, `del pred`). torch 2.13, on a
CPU, allocates 12.0 bytes a logit, 4.0 compiled.
"""
COMPILED_LOSS = {"fused_cross_entropy": True, "logits_bytes": 4.0, "cut_logits_bytes": 0.0}
LOSSES: dict[str, dict[str, Any]] = {
    "te": TE_LOSS, "fp32": FP32_LOSS, "fp32_in_place": FP32_LOSS_IN_PLACE, "bf16": BF16_LOSS,
    "eager": EAGER_LOSS, "compiled": COMPILED_LOSS, "bf16_held": BF16_HELD_LOSS,
    "fp32_held": FP32_HELD_LOSS, "gathered": {"gathers_logits": True},
}  # fmt: skip
