"""Which forks and releases of Megatron keep the scores of attention; the engine that prices it."""

import re
from collections.abc import Iterator

from meshplan.executor.frameworks.shell.launching.arguments import FlagArguments
from meshplan.planner.case.reading import Fact, Recompute

_UNFUSED = ("unfused", "local")
"""Values of --attention-backend that keep the scores (NVIDIA/Megatron-LM@d98e8a64
megatron/core/transformer/enums.py, AttnBackend)."""
_FLASH = (
    "use_flash_attn",
    *(f"use_flash_attn_{kind}" for kind in ("v1", "v2", "triton", "builder")),
)


def engine_of(values: FlagArguments) -> str:
    """The engine that prices the command; Megatron-DeepSpeed keeps scores unless it is told."""
    flash = [values.on(name) for name in _FLASH]  # each counts as read
    if values.on("deepspeed"):
        return "megatron-deepspeed-flash" if any(flash) else "megatron-deepspeed"
    if not any(flash) and _is_unfused(values):
        dropped = str(getattr(values.get("attention_dropout"), "value", "0.1"))
        kept = re.fullmatch(r"0*\.?0*", dropped) is not None
        return "megatron-unfused-no-dropout" if kept else "megatron-unfused"
    narrow_weights = values.on("fp8_param_gather")  # Megatron-Bridge's recipes have it
    if values.on("grad_reduce_in_bf16"):
        return "megatron-bridge"
    return "megatron-fp8-params" if narrow_weights else "megatron"


def _is_unfused(values: FlagArguments) -> bool:
    """Whether Transformer Engine is told so, or Megatron-Core's own layers run, which know no other
    attention; counts as read then. What both flags say together is judged apart.
    """
    backend, layers = (values.found.get(name) for name in ("attention_backend", "transformer_impl"))
    if not (_said(backend) in _UNFUSED or (backend is None and _said(layers) == "local")):
        return False
    if _said(layers) not in ("", "local", "transformer_engine"):
        return False
    values.asked |= {"attention_backend", "transformer_impl"}
    return True


def _said(fact: Fact | None) -> str:
    return str(fact.value).lower().removeprefix("attnbackend.") if fact else ""


def gradient_bytes(values: FlagArguments) -> float:
    """Of one gradient, 0: as the engine keeps it. With fp16 it has the weights' format unless
    --accumulate-allreduce-grads-in-fp32 is there; of bf16 Megatron sets that itself
    (NVIDIA/Megatron-LM megatron/training/arguments.py, validate_args).
    """
    in_fp32 = values.on("accumulate_allreduce_grads_in_fp32")
    narrow = values.on("fp16") or (values.on("grad_reduce_in_bf16") and _is_unfused(values))
    return 2.0 if narrow and not in_fp32 and not values.on("deepspeed") else 0.0


def keeps_scores(values: FlagArguments) -> Fact | None:
    """BigCode's fork of 2022, which `--attention-head-type` marks, without its FlashAttention
    (bigcode-project/Megatron-LM megatron/model/transformer.py).
    """
    fork = values.found.get("attention_head_type")
    if fork is None or any(values.on(name) for name in _FLASH):
        return None
    why = "BigCode's fork keeps the scores of attention without it, which is not modelled"
    return Fact(f"--use-flash-attn, which is not there ({why})", fork.line)


def scores_of_2023(values: FlagArguments, recompute: Recompute) -> Iterator[str]:
    """Megatron-LM up to October 2023, which `--data-impl` marks: its own layers, the default then,
    keep the scores of attention unless FlashAttention is asked for (alibaba/Megatron-LLaMA, its
    fork of 2023: megatron/arguments.py, megatron/model/transformer.py CoreAttention).
    """
    mark, layers = values.found.get("data_impl"), values.found.get("transformer_impl")
    own = layers is None or layers.value == "local"
    flash = any(values.on(name) for name in _FLASH)
    if mark and own and not flash and not values.on("deepspeed") and recompute.mode == "none":
        said = "is of releases whose attention keeps its scores without --use-flash-attn"
        yield f"line {mark.line}: --data-impl {said}: priced as fused attention, which needs less"
