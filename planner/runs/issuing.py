"""What the host of a Megatron-LM issues by its age: dense layers, experts' choice and messages."""

import re
from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.runs.rows import Row

HEAVY_PRODUCTS: dict[str, Any] = {"product_share": 1.0}
FIRST_LIGHT, FIRST_LIGHT_RELEASE = 2026, (26, 1)
"""Before Transformer Engine 2.11, in NVIDIA's containers of 26.01, a dense layer of it cost the
host more than PyTorch's (hardware_profiles/engines/megatron.toml, product_share); one of ROCm's is
taken to do so still. A container in the framework's name decides, else the year.
"""

WEIGHED_BEHIND: dict[str, Any] = {"weights_apart": False}
LAST_WEIGHED_BEHIND = 2024
"""The alltoall dispatcher sends the router's weights since NVIDIA/Megatron-LM@26596307 of April
2025 (core 0.13); before, they multiplied what came back from the experts.
"""

ROUTED_BY_OPERATORS: dict[str, Any] = {"routing_kernels": 26}
LAST_ROUTED_BY_OPERATORS = 2024
"""Megatron-Core fuses the choice of experts since 0.14 of September 2025 (its MoE README's What's
New: "Router fusion kernels for MoE models"), the moving of rows since earlier that year
(--moe-permute-fusion). Runs of 2025 say themselves what they fuse; `fused_kernels` has the count.
"""


def issuing_said(row: Row, engine: Engine) -> dict[str, Any]:
    """The habits of an older Megatron-LM. What Megatron-Bridge's dense layers cost is in its
    `launch_s`, and its first release sends weights.
    """
    routed = ROUTED_BY_OPERATORS if _routes_by_operators(row, engine) else {}
    if engine.name != "megatron":
        return routed
    behind = row.year is not None and row.year <= LAST_WEIGHED_BEHIND
    heavy = {} if _issues_lightly(row) else HEAVY_PRODUCTS
    return routed | heavy | (WEIGHED_BEHIND if behind else {})


def _routes_by_operators(row: Row, engine: Engine) -> bool:
    """Of Megatron-Core, whose experts' products one call issues one by one."""
    old = row.year is not None and row.year <= LAST_ROUTED_BY_OPERATORS
    return old and engine.kernels.loops_over_experts


def _issues_lightly(row: Row) -> bool:
    if "local" in row.facts.fused_kernels.split() or row.gpu.startswith("mi"):
        return False
    found = re.search(r"\b(?:ngc|pytorch|nemo) (\d\d)\.(\d\d)", row.framework.lower())
    if found is not None:
        return (int(found[1]), int(found[2])) >= FIRST_LIGHT_RELEASE
    return row.year is None or row.year >= FIRST_LIGHT
