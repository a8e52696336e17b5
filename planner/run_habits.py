"""Which engine a measured run used, and what its row says that was run in another way than usual.

Read of a framework's name: the engine and, of Megatron-Bridge, the release. Of Megatron-LM the year
counts too: before FlashAttention its kernels were those of Megatron-DeepSpeed; NeMo of that time,
and the zero-bubble paper's fork, had its attention only. Read of a note:

    pp_fix=0                   nanotron before its point-to-point fix
    eager, no torch.compile    torchtitan without it: norms, SwiGLU and RoPE as many small kernels
    async TP                   torchtitan with asynchronous tensor parallel
    fp8-rowwise                torchao with scales by row and column: slower casts, 16-bit gathers
    dispatcher NAME, NAME dispatcher
                               how tokens reach experts; a recipe without one leaves all_to_all
    EP all-to-all overlapped   Megatron's exchanges between experts behind another micro-batch
    Liger kernels              Hugging Face modules with fused kernels, the loss in chunks
    CP by all-to-all           heads exchanged for tokens around the attention kernel
    comm overlap all disabled  of tensor, data and pipeline parallelism, as far as a switch does it
    FA3                        FlashAttention-3
    TE fused cross entropy     Transformer Engine's, whose gradient takes the place of the logits
    CUDA graphs: full_iteration, local full_iteration
                               the host issues a whole step at once
"""

import math
import re
from typing import Any

from hardware_profiles.engine_schema import Engine
from hardware_profiles.engines import load_engine

ENGINES = (
    ("native", "native"), ("nanotron", "nanotron"), ("picotron", "nanotron"), ("bigscience",
    "bigscience"), ("megatron-deepspeed", "megatron-deepspeed"),
    ("neox", "megatron-deepspeed"), ("fsdp1", "llm-foundry"),
    ("llm-foundry", "llm-foundry"), ("torchtitan", "torchtitan"), ("automodel", "automodel"),
    ("interne", "internevo"), ("internlm", "internevo"), ("mlperf", "mlperf"), ("megatron-bridge",
    "megatron-bridge"),
    ("megatron-core", "megatron-bridge"), ("mcore", "megatron-bridge"), ("megatron", "megatron"),
    ("nemo", "nemo"),
    ("primus", "megatron"), ("deepspeed", "deepspeed"), ("colossal", "deepspeed"),
    ("fsdp", "torchtitan"),
)  # fmt: skip
"""Substring of a framework's name, and the engine that runs it; the first that fits wins."""

LAST_WITHOUT_FLASH = 2022
"""Megatron-LM got FlashAttention in 2023 (NVIDIA/Megatron-LM --use-flash-attn, core 0.2)."""

FUSED_SINKS, BROKEN_SINKS = (26, 6), (26, 6, 1)
"""Releases of Megatron-Bridge: the first with a fast kernel for sinks, and one that lost it."""

TRAINS_MTP = ("nemo", "megatron-bridge", "megatron-bridge-2025")
"""Engines whose DeepSeek-V3 has its multi-token-prediction module unless a row says otherwise:
NVIDIA-NeMo/Megatron-Bridge@05d003f src/megatron/bridge/recipes/deepseek/deepseek_v3.py. Rows of
theirs that state FLOPs and tokens state 260e9 a token so, and 250e9 "w/o MTP".
"""

EAGER = re.compile(r"\beager\b|no torch\.compile", re.IGNORECASE)
ASYNC_TENSOR = re.compile(r"\basync tp\b", re.IGNORECASE)
ROWWISE = re.compile(r"\bfp8-rowwise\b", re.IGNORECASE)
STEP_GRAPH = re.compile(r"cuda graphs: [^;]*full_iteration", re.IGNORECASE)
DISPATCHER = re.compile(
    r"\bdispatcher (alltoall|deepep|hybridep)\b|\b(alltoall|deepep|hybridep)( flex)? dispatcher\b",
    re.IGNORECASE,
)
FROM_RECIPE = re.compile(r"\bfrom recipe\b")
HIDDEN_EXCHANGES = re.compile(r"\bEP all-to-all overlapped\b")
NO_OVERLAP = re.compile(r"\bcomm overlap all disabled\b")

KERNELS_SAID: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = (
    (re.compile(r"(?<!no )\bliger kernels\b", re.IGNORECASE), {
        "fused_norm": True, "fused_gated": True, "fused_rope": True, "fused_cross_entropy": True,
        "chunked_loss": True, "loss_chunk_bytes": 1e9,
    }),
    (re.compile(r"\bTE fused cross entropy\b"), {"fused_cross_entropy": True, "logits_bytes": 2.0}),
    (re.compile(r"\bCP by all-to-all\b"), {"context": "all_to_all"}),
    (re.compile(r"\bFA3\b"), {"attention": "cudnn"}),
)  # fmt: skip
"""Words of a note, and the kernels that they mean under every engine."""

NOT_COMPILED = {"fused_norm": False, "fused_gated": False, "fused_rope": False}
CASTS_BY_ROW = {"cast_bytes": 14.0, "gathers_cast": False}
"""Measured on one H100, see hardware_profiles/engines/torchtitan.toml."""

BEFORE_FLASH = {
    "attention": "unfused", "flash_attention": False, "dropout": True, "keeps_buffers": False,
}  # fmt: skip
"""NeMo's Megatron until 2022, and the fork of Megatron-LM of the zero-bubble paper (2401.10241).
Its Table 1 counts s b h (34 + 5 a s / h) bytes of activations a layer, masks of dropout among
them, and its Table 4 measured as much. Neither used Transformer Engine, whose buffers are kept.
"""

ASYNC_OVERLAP = {"tensor": 0.7}
NOT_HIDDEN = {"data_reduce": 0.0, "weight_gather": 0.0, "pipeline": 0.0}
ALWAYS_HIDDEN = 0.4
"""Of the five exchanges of a tensor-parallel half layer Transformer Engine always runs two beside a
product: backward it gathers the input beside one and scatters its gradient beside the other
(NVIDIA/TransformerEngine transformer_engine/pytorch/module/linear.py).
"""


def engine_name(framework: str) -> str:
    """The engine that stands for a framework's name, `generic` for one that is not known."""
    text = framework.lower()
    return next((engine for part, engine in ENGINES if part in text), "generic")


def engine_of(row: dict[str, str]) -> Engine:
    """The engine that prices the row, with the habits that its note names."""
    engine, note = load_engine(_name_of(row)), row.get("note") or ""
    titan = "torchtitan" in (engine.name, engine.fitted_as)
    kernels = _kernels_said(row, titan=titan)
    overlap = _overlap_said(note, engine, titan=titan)
    return engine.model_copy(
        update={
            "kernels": engine.kernels.model_copy(update=kernels),
            "overlap": engine.overlap.model_copy(update=overlap),
        }
    )


def _name_of(row: dict[str, str]) -> str:
    """Of the engine in the version that the row names."""
    framework = row.get("framework") or ""
    name = engine_name(framework)
    old = _year(row) <= LAST_WITHOUT_FLASH
    if old and name == "megatron" and "nemo" not in framework.lower():
        return "megatron-deepspeed"
    if name == "nanotron" and "pp_fix=0" in (row.get("note") or ""):
        return "nanotron-2024"
    if name == "megatron-bridge" and _slow_sinks(framework):
        return "megatron-bridge-2025"
    return name


def _kernels_said(row: dict[str, str], *, titan: bool) -> dict[str, Any]:
    framework, note = (row.get("framework") or "").lower(), row.get("note") or ""
    old_nemo = "nemo" in framework and _year(row) <= LAST_WITHOUT_FLASH
    old = old_nemo or "zero-bubble" in framework
    said: dict[str, Any] = BEFORE_FLASH if old else {}
    if titan and EAGER.search(note):
        said = said | NOT_COMPILED
    if titan and ROWWISE.search(note):
        said = said | CASTS_BY_ROW
    for words, kernels in KERNELS_SAID:
        if words.search(note):
            said = said | kernels
    if found := DISPATCHER.search(note):
        every = (found[1] or found[2]).lower() == "alltoall"
        return said | {"dispatch": "all_to_all" if every else "deduplicated"}
    return said | {"dispatch": "all_to_all"} if FROM_RECIPE.search(note) else said


def _overlap_said(note: str, engine: Engine, *, titan: bool) -> dict[str, float]:
    said = ASYNC_OVERLAP if titan and ASYNC_TENSOR.search(note) else {}
    if NO_OVERLAP.search(note):
        said = said | NOT_HIDDEN | {"tensor": min(engine.overlap.tensor, ALWAYS_HIDDEN)}
    if HIDDEN_EXCHANGES.search(note):
        said = said | {"expert": engine.overlap.expert_interleaved}
    return said


def whole_step_graph(row: dict[str, str]) -> bool:
    """Whether the row says that one CUDA graph holds a whole step."""
    return STEP_GRAPH.search(row.get("note") or "") is not None


def expert_ranks(row: dict[str, str], num_experts: int, ranks: int) -> int:
    """Expert parallelism of a row that does not state it: DeepEP dispatches over all ranks that it
    can (NVIDIA-NeMo/Automodel@037e04a6 examples/benchmark/configs/gptoss_120b_te_deepep.yaml).
    """
    return math.gcd(num_experts, ranks) if "deepep" in (row.get("note") or "").lower() else 1


def mtp_modules(row: dict[str, str], engine: Engine) -> int:
    """Multi-token-prediction modules that were trained."""
    name = (row.get("model") or "").lower()
    said = re.search(r"\bw/(o?) mtp\b", name)
    if said:
        return int(not said[1])
    return int("deepseekv3" in re.sub("[^a-z0-9]", "", name) and engine.name in TRAINS_MTP)


def _year(row: dict[str, str]) -> float:
    text = row.get("year") or ""
    return float(text) if text.isdecimal() else math.inf


def _slow_sinks(framework: str) -> bool:
    found = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d\d))?", framework)
    if found is None:
        return False
    release = tuple(int(part) for part in found.groups() if part)
    return release < FUSED_SINKS or release == BROKEN_SINKS
