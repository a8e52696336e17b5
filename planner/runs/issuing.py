"""What the host takes to issue a dense layer of Transformer Engine's."""

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


def issuing_said(row: Row, engine: Engine) -> dict[str, Any]:
    """The habit of a Megatron-LM whose dense layers cost the host what they used to. What
    Megatron-Bridge's cost is in its `launch_s`.
    """
    return HEAVY_PRODUCTS if engine.name == "megatron" and not _issues_lightly(row) else {}


def _issues_lightly(row: Row) -> bool:
    if "local" in row.facts.fused_kernels.split() or row.gpu.startswith("mi"):
        return False
    found = re.search(r"\b(?:ngc|pytorch|nemo) (\d\d)\.(\d\d)", row.framework.lower())
    if found is not None:
        return (int(found[1]), int(found[2])) >= FIRST_LIGHT_RELEASE
    return row.year is None or row.year >= FIRST_LIGHT
