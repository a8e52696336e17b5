"""What a framework runs where nothing compiled its modules, or where all was compiled."""

from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.tunings import fits_of
from meshplan.planner.runs.engines import OF_FSDP2
from meshplan.planner.runs.losses import EAGER_LOSS

NOT_COMPILED = {"fused_norm": False, "fused_gated": False, "fused_rope": False}
PLAIN = {"launch_share": 0.227, "adapter_casts": "none"}
"""An nn.Linear is issued in 13.48 us on a DGX H100 (NVIDIA/TransformerEngine issue 2053); a module
of the engines that taught all engines' `launch_s` takes 59.3 (hardware_profiles/fits/generic.toml).
What nothing compiles and nobody wraps in modules of his own is issued so, and no kernel takes the
scaling of an adapter in.
"""
PLAIN_LOOPS = ("torchtitan", "llm-foundry", "generic")
FSDP = ("torchtitan", "llm-foundry")
"""Engines of PyTorch's FSDP, whose checkpoints are not reentrant."""
EAGER_EXPERTS = {"weighs_apart": True, "permutes_by_index": True}
"""torchtitan's rows are multiplied by the router's weights in fp32, before their experts or after
(pytorch/torchtitan@b5bcd76 torchtitan/models/common/token_dispatcher.py, combine; @25413d224
torchtitan/models/moe.py), which the compiler fuses with the copy beside it; without it the copies
are PyTorch's indexing and scatter_add, one each where nothing is sent. HybridEP permutes in its own
kernels (HybridEPTokenDispatcher).
"""
EAGER_CASTS = {"cast_bytes": 66.0}
"""Of a number that torchao casts with one scale: its magnitude 4 and the largest 2, a copy in fp32
6, times the scale 8, clamped 8 and cast 5 (pytorch/ao@36027d82 torchao/float8/float8_utils.py
tensor_to_amax, to_fp8_saturated; float8_training_tensor.py _ToFloat8ConstrFunc), which the compiler
makes two kernels of; and all of it twice, for the product that it enters forward or backward and
for the weight's gradient (float8_linear.py, matmul_with_hp_or_float8_args). Leaves out weights,
which are cast as often.
"""
EAGER_LISTS: dict[str, Any] = {"keeps_listed": True}
"""Without a compiler PyTorch holds every output that a checkpoint by operator lists."""

EAGER_MERGES: dict[str, Any] = {"context_merge": "operators"}
"""What PyTorch's ring merges, operators merge one after the other."""

COMPILED = (*OF_FSDP2, "llm-foundry", "generic")
"""Engines of PyTorch's own modules, under FSDP2 and FSDP1, that the compiler alone fuses; and of a
framework that is not known, where its row says that nothing was compiled.
"""

WHOLE_PROGRAM = {"pads_products": True}
"""Where a row of a framework that is not known says `compiled`, the whole model was, its head too
(nanoGPT and loops like it, litgpt). FSDP2's trainers compile layer by layer, and not the head
(pytorch/torchtitan@018740b7 torchtitan/models/llama3/infra/parallelize.py, apply_compile).
"""


def _as_measured() -> dict[str, Any]:
    """All engines' scale of kernels over their published rates was learnt from frameworks on many
    GPUs: it stands for operators that nothing counts, gaps between kernels and waiting for other
    GPUs as well. A program that was compiled as a whole and runs on one GPU has none of them, so
    its kernels are priced at the rates alone (no run chose this).
    """
    return {"kernel_share": 1 / fits_of("generic")["any"].tuning.matmul_scale}


def compiling_said(engine: Engine, *, compiled: bool | None, alone: bool) -> dict[str, Any]:
    """What the fact `compiled` says of an engine's kernels, before the row's own words; None where
    the row does not say it. `alone`: on one GPU.
    """
    if compiled and engine.name == "generic":
        return WHOLE_PROGRAM | (_as_measured() if alone else {})
    if compiled is not False or engine.name not in COMPILED:
        return {}
    eager: dict[str, Any] = {}
    if engine.name == "torchtitan":
        eager = EAGER_EXPERTS | EAGER_CASTS | EAGER_LISTS | EAGER_LOSS | EAGER_MERGES
    plain = PLAIN if engine.name in PLAIN_LOOPS else {}
    if engine.name in FSDP:
        plain = plain | {"checkpoint_hooks": True}
    return NOT_COMPILED | eager | plain
