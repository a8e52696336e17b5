"""Which engine a measured run used, and how its habits differ from that engine's usual ones.

The framework's name gives the engine and, of Megatron-Bridge, the release. Of Megatron-LM the year
counts too: before FlashAttention its kernels were those of Megatron-DeepSpeed, and for a year after
it fused neither gated units nor rotary positions. What else a source says of a run are the row's
facts (`planner.runs.notes.FACTS`), of which each module beside this one reads its own.
"""

import re
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.runs.attention import (
    FLASH_KERNELS,
    assembly_said,
    attention_said,
    release_said,
)
from meshplan.planner.runs.compiling import COMPILED, compiling_said
from meshplan.planner.runs.dispatchers import DISPATCHERS, GATES
from meshplan.planner.runs.engines import (
    LAST_GATHERED_WIDE,
    LAST_LISTED,
    LAST_UNFUSED,
    LAST_WITHOUT_FLASH,
    OF_FSDP2,
    engine_name,
    engine_with,
)
from meshplan.planner.runs.fused_kernels import KERNELS, OWN, STATES
from meshplan.planner.runs.issuing import issuing_said
from meshplan.planner.runs.losses import LOSSES, loss_said
from meshplan.planner.runs.rows import Facts, Row
from meshplan.planner.runs.sharding import sharding_said
from meshplan.planner.runs.tensor_plans import dtensor_said
from meshplan.planner.runs.updates import update_said
from meshplan.planner.runs.words import WHOLE_STEP, check_words

FUSED_SINKS, BROKEN_SINKS = (26, 6), (26, 6, 1)
"""Releases of Megatron-Bridge: the first whose 8-bit recipes run attention in 8 bits, where a fast
kernel for sinks is, and one that lost that kernel.
"""

FSDP1 = "llm-foundry"
"""The engine that stands for loops around PyTorch's first FSDP."""

CASTS_BY_ROW = {"cast_bytes": 14.0, "gathers_cast": False}
"""Measured on one H100, see hardware_profiles/engines/torchtitan.toml."""

UNFUSED_LLAMA = OWN | {"fused_gated": False, "fused_rope": False}
"""Megatron-LM until 2023: silu and product are kernels of PyTorch's, as is each step of a rotation
(alibaba/Megatron-LLaMA@0dd0c21 megatron/model/transformer.py, of NVIDIA's tree; norms are apex'
fused ones, FlagOpen/FlagScale@43b8604 megatron/model/__init__.py); layers are its own, as under
`fused_kernels.LOCAL`. --no-bias-swiglu-fusion and --no-rope-fusion switch off what came with
Megatron Core 0.5.0 (`engines.LAST_UNFUSED`). GPTs have neither.
"""

GRAPHED_CASTS = 1
"""Of an expert's tokens, where one graph holds a whole step of Megatron-Bridge (26.06 on): its
recipes turn on Transformer Engine's fused experts, whose products cast what they put out
(use_transformer_engine_op_fuser, NVIDIA-NeMo/Megatron-Bridge@067f987
src/megatron/bridge/perf_recipes/deepseek/common.py; NVIDIA/TransformerEngine
transformer_engine/pytorch/ops/fused/grouped_mlp.py). With three casts those runs are predicted too
slow.
"""

NO_GRADIENTS = {"frees_gradients": True}
TRAINER = NO_GRADIENTS | {"step_copies": True}
"""Hugging Face's Trainer and loops like it: zero_grad sets gradients to None, and torch.optim.AdamW
makes a list of one more number for each of its moments (torch/optim/adamw.py
_multi_tensor_adamw, exp_avg_sq_sqrt). FSDP1's own rows, of Composer and fms-fsdp, say no memory.
"""

TRAINERS = ("transformers", "hf trainer", "trl")
"""Frameworks that run Hugging Face's Trainer: but under DeepSpeed it turns the reduction of all
micro-batches of a step but the last off (accelerator.no_sync, unless sync_each_batch:
huggingface/transformers src/transformers/trainer.py), so that FSDP adds up whole gradients. A loop
around the same models need not: `synced` and `unsynced` of the row come before the name.
"""

XLA = {"plans_buffers": True, "whole_gradient_bytes": 2.0, "master_computes": True}
"""XLA assigns the buffers of a program to one allocation before it runs (openxla/xla
xla/service/buffer_assignment.cc, heap_simulator.h); what its packing loses is left out. The product
that makes a weight's gradient puts out the 16 bits that it computes in, which are scattered before
they become the fp32 of the parameter (the transpose of `convert_element_type` comes last:
jax-ml/jax@0018095c jax/_src/lax/lax.py). Weights are fp32, cast where a layer computes with them,
and none is kept in 16 bits (AI-Hypercomputer/maxtext base.yml, weight_dtype; layers/linears.py,
`jnp.asarray(kernel, self.dtype)`). Of Llama 7B on one MI355X with all layers run again XLA plans
106.6 GiB, of which fp32 weights, moments and gradients are 100.4.
"""
WHOLE_XLA = XLA | {"weight_bytes": 4.0}
"""Unsharded, what computes is the fp32 weight itself."""

JAX: dict[str, Any] = {"drops_unread_replay": True, "pads_vocabulary": True}
"""What jax.checkpoint runs again is cut down to what the backward reads
(jax-ml/jax@0018095c jax/_src/ad_checkpoint.py, remat_partial_eval: "DCE jaxpr_staged"); XLA pads
the sides of products of 16 bits (openxla/xla xla/service/gpu/transforms/cublas_pad_for_gemms.cc).
"""

LAST_SEPARATE_EXPERTS = 2025
"""bitsandbytes quantises modules of nn.Linear; since transformers 5 (January 2026) the experts of a
layer are one parameter of three dimensions, which it leaves in 16 bits (bitsandbytes issue 1849).
"""

REPLAYS_ALL: dict[str, Any] = {"drops_unread_replay": False}
NOT_REENTRANT: dict[str, Any] = {"drops_unread_replay": True}
FIRST_EARLY_STOP = (2, 1)
"""PyTorch's release since which a checkpoint that is not reentrant ends its replay early
(torch/utils/checkpoint.py, early_stop). transformers' Trainer has the reentrant one unless it is
told (transformers 4 modeling_utils.py, gradient_checkpointing_enable).
"""

CHECKPOINTED_EXPERTS = "moe_expert"
"""A fork's word (`costmodels.operations.replayed`): the checkpoint around experts keeps the tokens
that they receive as they come, in 16 bits unless they were cast before.
"""

ASYNC_OVERLAP = {"tensor": 0.7}
BUFFERS = "tensor"
"""Transformer Engine's user buffers (--tp-comm-overlap), an option of Megatron-LM and a default of
NVIDIA's recipes.
"""
NOT_HIDDEN: dict[str, dict[str, float]] = {
    "0": {"data_reduce": 0.0, "weight_gather": 0.0, "pipeline": 0.0},
    "reduce": {"weight_gather": 0.0},
    "data": {},
}
"""What a value of the fact `comm_overlap` leaves unhidden, beside tensor parallel's collectives."""
BLOCKED = dict.fromkeys(
    ("data_reduce", "weight_gather", "tensor", "pipeline", "context", "expert",
     "expert_interleaved"), 0.0,
)  # fmt: skip
"""Nothing runs beside a collective for which the host waits."""


def engine_of(row: Row) -> Engine:
    """The engine that prices the row, with the habits that its facts name; raises `SkippedRow` at a
    word that nothing reads.
    """
    check_words(row.facts)
    engine = load_engine(_name_of(row))
    fsdp2 = engine.name in OF_FSDP2
    compiled, alone = row.facts.compiled, row.gpus == 1
    kernels = compiling_said(engine, compiled=compiled, alone=alone) | loss_said(row, engine)
    kernels |= _gradients_said(row, engine) | update_said(row) | assembly_said(row)
    kernels |= release_said(row) | attention_said(row.facts, engine)
    kernels |= _kernels_said(row.facts, fsdp2=fsdp2) | sharding_said(row, engine)
    if _fuses_no_llama(row, engine):
        kernels |= UNFUSED_LLAMA
    kernels |= issuing_said(row, engine) | dtensor_said(row, engine) | _replay_said(row, engine)
    if CHECKPOINTED_EXPERTS in row.recompute:
        kernels |= {"keeps_received_cast": False}
    if engine.name == "megatron-bridge" and row.facts.cuda_graph == WHOLE_STEP:
        kernels |= {"expert_casts": GRAPHED_CASTS}
    overlap = _overlap_said(row.facts, engine, fsdp2=fsdp2)
    trainer = "transformers" in row.framework.lower() and engine.name in ("llm-foundry", "generic")
    jax = "jax" in row.framework.lower()
    states = dict[str, Any](TRAINER if trainer else _xla_of(row) if jax else {})
    if _is_trainer(row) and engine.name == "torchtitan":
        states |= NO_GRADIENTS
    states |= _sums_said(row) | _packing_said(row) | _gathers_said(row)
    for word in row.facts.fused_kernels.split():
        states |= STATES.get(word, {})
    return engine_with(engine.name, *(tuple(h.items()) for h in (kernels, overlap, states)))


def _xla_of(row: Row) -> dict[str, Any]:
    whole = row.zero == 0 and not row.facts.optimizer_states
    return WHOLE_XLA if whole else XLA


def _gradients_said(row: Row, engine: Engine) -> dict[str, str]:
    """Where FSDP's engine runs without FSDP nothing is copied: autograd takes what a product wrote
    for the gradient of a 16-bit weight (torch/csrc/autograd/functions/accumulate_grad.h), and adds
    to it from the second micro-batch on, which moves as many bytes as a copy in fp32 would.
    """
    copies = engine.kernels.gradient_add == "copied" and engine.name in COMPILED
    alone = row.zero == 0 and row.dp == row.cp == 1 and row.global_batch == row.micro_batch
    leaves = copies and alone and row.facts.optimizer_states == "bf16"
    return {"gradient_add": "left"} if leaves else {}


SUMS: dict[str, dict[str, Any]] = {
    "16": {"bf16_sums_bytes": 0.0, "gradient_bytes": 2.0, "reduce_bytes": 2.0},
    "32": {"gradient_bytes": 4.0, "reduce_bytes": 4.0},
}
"""Gradients by the bits of a number, as they add up and are sent. Megatron-Bridge's recipes name
`bf16_mixed` or another format of `training/mixed_precision.py`, whose grad_reduce_in_fp32 is true
and goes over a recipe's own `ddp.grad_reduce_in_fp32` (update_config_with_precision_overrides);
its performance recipes and some others set it false there (NVIDIA-NeMo/Megatron-Bridge@067f987).
"""


def _sums_said(row: Row) -> dict[str, Any]:
    """How gradients of several micro-batches add up, where the row says it."""
    words, framework = row.facts.gradient_add.split(), row.framework.lower()
    sums = next((SUMS[word] for word in words if word in SUMS), {})
    accumulates = row.global_batch > (row.micro_batch or 1) * max(row.dp or 1, 1)
    trainer = "deepspeed" not in framework and _is_trainer(row)
    whole = "unsynced" in words or (trainer and "synced" not in words)
    return sums | ({"sums_before_reducing": True} if accumulates and whole else {})


def _is_trainer(row: Row) -> bool:
    """Whether Hugging Face's Trainer ran it."""
    return any(name in row.framework.lower() for name in TRAINERS)


def _packing_said(row: Row) -> dict[str, Any]:
    """Whether QLoRA quantises experts: each was a module of nn.Linear until transformers 5."""
    old = row.year is not None and row.year <= LAST_SEPARATE_EXPERTS
    return {"quantises_experts": old and "transformers" in row.framework.lower()}


def _gathers_said(row: Row) -> dict[str, Any]:
    """Whether weights were kept in 8 bits already."""
    old = row.year is not None and row.year <= LAST_GATHERED_WIDE
    return {"gathers_8bit": False} if old else {}


def _replay_said(row: Row, engine: Engine) -> dict[str, Any]:
    """Whether a replay leaves out what no backward reads, where that is not its engine's habit,
    what a reentrant one holds, and what else XLA does.
    """
    words = row.framework.lower()
    if "jax" in words:
        return JAX
    if "no_reentrant" in row.facts.fused_kernels.split():
        return NOT_REENTRANT
    found = re.search(r"\btorch (\d+)\.(\d+)", words)
    old = found is not None and (int(found[1]), int(found[2])) < FIRST_EARLY_STOP
    reentrant = "transformers" in words
    holds = {"holds_input_gradients": True} if reentrant and engine.name == FSDP1 else {}
    return (REPLAYS_ALL if old or reentrant else {}) | holds


def _name_of(row: Row) -> str:
    """Of the engine in the version that the row names."""
    name = engine_name(row.framework)
    old = row.year is not None and row.year <= LAST_WITHOUT_FLASH
    if old and name == "megatron" and "nemo" not in row.framework.lower():
        return "megatron-deepspeed"
    if name == "megatron-deepspeed" and row.facts.attention_kernel in FLASH_KERNELS:
        return "megatron-deepspeed-flash"
    if old and name == "gpt-neox":
        return "gpt-neox-unfused"
    if name == "deepspeed" and row.year is not None and row.year <= LAST_LISTED:
        return "deepspeed-2021"
    if name == "nanotron" and row.facts.stalling_p2p:
        return "nanotron-2024"
    if name == "megatron-bridge" and _slow_sinks(row.framework):
        return "megatron-bridge-2025"
    return name


def _fuses_no_llama(row: Row, engine: Engine) -> bool:
    """Whether Megatron-LM trained a Llama before it fused SwiGLU; NeMo's tree was another."""
    old = row.year is not None and row.year <= LAST_UNFUSED
    its_own = engine.name == "megatron" and "nemo" not in row.framework.lower()
    return old and its_own and row.shape.get("gated_mlp", "1") != "0"


def _kernels_said(facts: Facts, *, fsdp2: bool) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if fsdp2 and facts.fp8_scaling == "rowwise":
        said |= CASTS_BY_ROW
    for word in facts.fused_kernels.split():
        said |= KERNELS.get(word, {})
    for word in facts.fused_loss.split():
        said |= LOSSES.get(word, {})
    if facts.fp8_scaling == "flow":
        said |= {"receives_casts": True}
    said |= GATES.get(facts.gate, {})
    if "added" in facts.gradient_add.split():
        said |= {"gradient_add": "added", "keeps_buffers": False}
    if facts.cp_kind:
        said |= {"context": facts.cp_kind}
    return said | _graphs_said(facts.cuda_graph) | DISPATCHERS.get(facts.dispatcher, {})


def _graphs_said(parts: str) -> dict[str, Any]:
    """Of the parts of a step that are launched as CUDA graphs."""
    if parts == WHOLE_STEP:
        return {"step_graph": True}
    return {"graphed": tuple(parts.split())} if parts else {}


def _overlap_said(facts: Facts, engine: Engine, *, fsdp2: bool) -> dict[str, float]:
    said = dict(ASYNC_OVERLAP) if fsdp2 and facts.async_tensor else {}
    if facts.comm_overlap in NOT_HIDDEN:
        always_hidden = load_engine("megatron").overlap.tensor
        hidden = NOT_HIDDEN[facts.comm_overlap]
        said |= hidden | {"tensor": min(engine.overlap.tensor, always_hidden)}
    if facts.comm_overlap == BUFFERS:
        said |= {"tensor": load_engine("megatron-bridge").overlap.tensor}
    if facts.hidden_exchanges:
        said |= {"expert": engine.overlap.expert_interleaved}
    if facts.hidden_exchanges is False:
        said |= {"expert": 0.0, "expert_interleaved": 0.0}
    return said | (BLOCKED if "blocking" in facts.fused_kernels.split() else {})


def _slow_sinks(framework: str) -> bool:
    found = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d\d))?", framework)
    if found is None:
        return False
    release = tuple(int(part) for part in found.groups() if part)
    return release < FUSED_SINKS or release == BROKEN_SINKS
