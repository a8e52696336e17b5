"""Frameworks' names, as people write them, and the engines that price them."""

from functools import cache, lru_cache
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine

ENGINES = (
    ("aa-scaling", "aa-scaling"), ("megatron-swift", "megatron-swift"),
    ("hai-llm", "hai-llm"), ("hai_llm", "hai-llm"),
    ("nanotron", "nanotron"), ("picotron", "nanotron"), ("bigscience",
    "bigscience"), ("megatron-deepspeed", "megatron-deepspeed"),
    ("neox", "gpt-neox"), ("fsdp1", "llm-foundry"),
    ("llm-foundry", "llm-foundry"), ("torchtitan", "torchtitan"), ("automodel", "automodel"),
    ("fsdp2 + transformer engine", "automodel"),
    ("interne", "internevo"), ("internlm", "internevo"), ("mlperf", "mlperf"), ("megatron-bridge",
    "megatron-bridge"),
    ("megatron-core", "megatron-bridge"), ("mcore", "megatron-bridge"), ("megatron", "megatron"),
    ("nemo", "nemo"),
    ("primus", "megatron"), ("deepspeed", "deepspeed"), ("colossal", "deepspeed"),
    ("fsdp", "torchtitan"), ("torchtune", "torchtitan"),
)  # fmt: skip
"""Substring of a framework's name, and the engine that runs it; the first that fits wins."""

OURS = ("native", "meshplan")
"""First words of a name that mean meshplan's own engine: others' names have them inside (PyTorch's
native FSDP).
"""

OF_FSDP2 = ("torchtitan", "automodel", "automodel-fp32-loss")
"""Engines that train PyTorch's own modules under FSDP2."""

LAST_WITHOUT_FLASH = 2022
"""Megatron-LM got FlashAttention in 2023 (NVIDIA/Megatron-LM --use-flash-attn, core 0.2)."""

LAST_UNFUSED = 2023
"""Its SwiGLU and its rotary positions have been fused since (`habits.UNFUSED_LLAMA`): the release
notes of NVIDIA Megatron Core 0.5.0 (github.com/NVIDIA/Megatron-LM/releases/tag/core_v0.5.0, 2024)
list "Rope and Swiglu fusion" as new.
"""

LAST_GATHERED_WIDE = 2023
"""8-bit weights come with `fp8_params`, which NVIDIA's runs of MLPerf have since v4.0 (2024:
mlcommons/training_results_v4.0@62f111b7 gpt3 config_common.sh; v3.1@f33f9444 has none).
"""

LAST_LISTED = 2021
"""DeepSpeed's ZeRO-3 has gathered several weights at once, without lists of ranks, since its
release 0.6.0 of January 2022 (deepspeedai/DeepSpeed@4912e0ad).
"""


@cache
def engine_name(framework: str) -> str:
    """The engine that stands for a framework's name, `generic` for one that is not known."""
    text = framework.lower()
    if text.split(maxsplit=1)[:1] in ([ours] for ours in OURS):
        return "native"
    return next((engine for part, engine in ENGINES if part in text), "generic")


ENGINES_KEPT = 256
Habits = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=ENGINES_KEPT)
def engine_with(name: str, kernels: Habits, overlap: Habits, state: Habits) -> Engine:
    """An engine with these habits of its own, which many rows share."""
    engine = load_engine(name)
    said = {"kernels": kernels, "overlap": overlap, "state": state}
    changed = {
        part: getattr(engine, part).model_copy(update=dict(habits))
        for part, habits in said.items()
    }  # fmt: skip
    return engine.model_copy(update=changed)
