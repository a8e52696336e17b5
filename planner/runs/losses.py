"""How a measured run computed its loss: the bytes that each logit holds at its peak, and whether
one kernel computes it, by the words of the fact `fused_loss`, or else by the release or the year.
"""

import re
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.case.core_loss import CORE_LOSSES
from meshplan.planner.runs.rows import Row

WHOLE_LOSS = {"loss_chunks": 1, "chunked_loss": False}
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
FP32_SHIFTED_LOSS = FP32_LOSS_IN_PLACE | {"logits_bytes": 6.0}
"""The same without that copy: since labels are shifted in place of logits, those in 16 bits and one
copy in fp32 (huggingface/transformers src/transformers/loss/loss_utils.py, ForCausalLMLoss), in
whose place Liger's cross entropy writes the gradient (whitecircle/halo@0476f5c0
agent-docs/optimization/liger-kernels.md: its default, logits are kept).
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
LOSSES: dict[str, dict[str, Any]] = CORE_LOSSES | {
    "fp32": FP32_LOSS, "fp32_in_place": FP32_LOSS_IN_PLACE,
    "fp32_shifted": FP32_SHIFTED_LOSS, "fp32_held": FP32_HELD_LOSS, "bf16": BF16_LOSS,
    "bf16_held": BF16_HELD_LOSS, "eager": EAGER_LOSS, "compiled": COMPILED_LOSS,
    "gathered": {"gathers_logits": True},
}  # fmt: skip

FIRST_CHUNKED = 2026
FIRST_CHUNKED_RELEASE = (0, 3)
"""torchtitan's configurations have their loss in chunks since 2026-04-27
(pytorch/torchtitan@786e26f8), which no release 0.2 holds (0.2.2 of 2026 is older). A release in the
framework's name decides, else the year; rows of that year from before say `whole`.
"""

LAST_EAGER_LOSS = 2024
"""torchtitan compiles its loss beside the layers since 2025-04-02 (pytorch/torchtitan@bbb1b616e),
and did for eight weeks from 2024-10-22 (@e10cb9494 train.py; off again in @e8977b007). Before it
compiled layers alone (@9954e19cc), and the head behind them cast its logits to fp32. So the loss of
a row of that year is eager where the row says nothing of it; rows of 2025 from before April say so
themselves.
"""


def loss_said(row: Row, engine: Engine) -> dict[str, Any]:
    """What the row's framework and date say of its loss, before its own words (`LOSSES`)."""
    said = {} if _chunks_loss(row, engine) else dict[str, Any](WHOLE_LOSS)
    return said | (EAGER_LOSS if _not_compiled_yet(row, engine) else {})


def _not_compiled_yet(row: Row, engine: Engine) -> bool:
    """Whether torchtitan itself ran the row when its loss was not compiled."""
    old = row.year is not None and row.year <= LAST_EAGER_LOSS
    its_own = engine.name == "torchtitan" and "torchtitan" in row.framework.lower()
    return old and its_own and not row.facts.fused_loss


def _chunks_loss(row: Row, engine: Engine) -> bool:
    """Whether an engine whose loss has equal chunks had them: other trainers that FSDP2 stands for
    have none.
    """
    if engine.kernels.loss_chunks == 1 or "chunks" in row.facts.fused_loss.split():
        return True
    return (
        not _older_than_chunks(row)
        and engine.name in row.framework.lower()
        and "whole" not in row.facts.fused_loss.split()
    )


def _older_than_chunks(row: Row) -> bool:
    """Whether the release that the row names, or else its year, had the loss at once."""
    release = re.search(r"\btorchtitan (\d+)\.(\d+)", row.framework.lower())
    if release is not None:
        return (int(release[1]), int(release[2])) < FIRST_CHUNKED_RELEASE
    return row.year is not None and row.year < FIRST_CHUNKED
