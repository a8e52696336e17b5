"""What the host of a Megatron-LM issues by its age: dense layers, and messages of experts."""

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


def issuing_said(row: Row, engine: Engine) -> dict[str, Any]:
    """The habits of an older Megatron-LM. What Megatron-Bridge's dense layers cost is in its
    `launch_s`, and its first release sends weights.
    """
    if engine.name != "megatron":
        return {}
    behind = row.year is not None and row.year <= LAST_WEIGHED_BEHIND
    heavy = {} if _issues_lightly(row) else HEAVY_PRODUCTS
    return heavy | (WEIGHED_BEHIND if behind else {})


def _issues_lightly(row: Row) -> bool:
    if "local" in row.facts.fused_kernels.split() or row.gpu.startswith("mi"):
        return False
    found = re.search(r"\b(?:ngc|pytorch|nemo) (\d\d)\.(\d\d)", row.framework.lower())
    if found is not None:
        return (int(found[1]), int(found[2])) >= FIRST_LIGHT_RELEASE
    return row.year is None or row.year >= FIRST_LIGHT
