"""Which kernel computed a measured run's attention, from its facts, its framework and its year."""

import re
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.runs.rows import Facts, Row

UNFUSED = {"attention": "unfused", "flash_attention": False}
BEFORE_FLASH = UNFUSED | {"dropout": True, "keeps_buffers": False, "biases": "apart"}
"""NeMo's Megatron until 2022, and the fork of Megatron-LM of the zero-bubble paper (2401.10241).
Its Table 1 counts s b h (34 + 5 a s / h) bytes of activations a layer, masks of dropout among
them, and its Table 4 measured as much. Neither used Transformer Engine, whose buffers are kept.
"""

FLASH_KERNELS = {
    "flash1": "flash1", "triton": "triton", "flash2": "flash2", "flash3": "flash3",
    "flash4": "flash4", "cudnn": "cudnn", "efficient": "efficient", "masked": "masked",
    "sdpa": "flash2", "cudnn_mxfp8": "cudnn_mxfp8", "flex": "flex", "aiter": "cudnn",
}  # fmt: skip
"""`aiter` is what Transformer Engine calls on AMD's GPUs, by MaxText's `cudnn_flash_te` too:
Composable Kernel, with AITER's assembly, as NVTE_FUSED_ATTN_CK is 1 unless it is set
(ROCm/TransformerEngine@ac80527d README.rst; amd-agi/maxtext-slurm@f64d93fe train_env.sh). Its rates
are a profile's own there, as cuDNN's are on NVIDIA's.

`sdpa` calls FlashAttention-2, or what a GPU or release of PyTorch has instead; with a mask as a
tensor, `masked`, because no other kernel of PyTorch's takes one but cuDNN's, in releases that list
that first. Transformers of July to November 2025 makes such a mask where a model is called without
a cache and without an attention mask (issue 41856, mended by pull request 42367), and any release
where a sequence is padded.
"""


def attention_said(facts: Facts, engine: Engine) -> dict[str, Any]:
    """The attention kernel, and what else was not there before there was a fused one. Before
    torchtitan's was FlexAttention it was PyTorch's, as other loops' over FSDP2 are.
    """
    if facts.flash_attention is False:
        return BEFORE_FLASH if engine.name in ("megatron", "nemo") else UNFUSED
    kernel = FLASH_KERNELS.get(facts.attention_kernel)
    if kernel is None and facts.flash_attention and not engine.kernels.flash_attention:
        kernel = "flash2"
    asks_torch = facts.attention_kernel == "sdpa"
    said = {"attention": kernel, "flash_attention": True, "uses_sdpa": asks_torch}
    unsaid = {"attention": "flash2"} if engine.kernels.attention == "flex" else {}
    return said if kernel else unsaid


def release_said(row: Row) -> dict[str, str]:
    """The release of PyTorch that ran, if the framework's name says it, as "PyTorch 2.8.0" does;
    torchtitan 0.2 lists cuDNN's kernel first (hardware_profiles/engines/variants).
    """
    if "torchtitan 0.2" in row.framework.lower():
        return {"sdpa_order": "cudnn"}
    said = re.search(r"torch (2\.[0-9]+(\.[0-9]+)?)\b", row.framework.lower())
    return {"sdpa_order": said[1] if said else ""}


LAST_BY_TRITON = 2025
"""The last year whose runs on AMD's GPUs are taken to have Triton's backward of attention: PyTorch
2.9, the first with AITER's, is of October 2025 (pytorch pull request 161754).
"""


def assembly_said(row: Row) -> dict[str, bool]:
    """Whether PyTorch's attention was not AITER's yet, or FlexAttention over packed samples
    (torchtune/modules/attention_utils.py), which Triton compiles.
    """
    old = row.year is not None and row.year <= LAST_BY_TRITON
    packed = "torchtune" in row.framework.lower()
    return {"sdpa_by_assembly": False} if old or packed else {}
