"""What a measured run under Megatron-FSDP did with its weights' gradients, by its release.

Under ZeRO-2 and 3 Megatron-Core's runs are Megatron-FSDP's; under ZeRO-1 where the framework's name
says it.
"""

import re
from typing import Any

from meshplan.costmodels.ranks.beside import ZERO_2
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.runs.rows import Row

FIRST_UNFUSED, FIRST_FUSED = (25, 11), (26, 4)
"""NeMo's containers of the Megatron-Bridge that turns gradient_accumulation_fusion off beside
Megatron-FSDP (NVIDIA-NeMo/Megatron-Bridge@v0.2.0, @v0.3.1 src/megatron/bridge/training/config.py;
gone in @v0.4.0). The second Megatron-FSDP refuses it (NVIDIA/Megatron-LM@d98e8a64
megatron/core/distributed/fsdp/mcore_fsdp_adapter.py).
"""
NAMED, SECOND = "megatron-fsdp", "megatron-fsdp v2"


def sharding_said(row: Row, engine: Engine) -> dict[str, Any]:
    """The habits of Megatron-FSDP, where it ran: a kernel adds each gradient to its buffer, or
    copies it there where gradients are kept in shards.
    """
    named, shards = NAMED in row.framework.lower(), row.zero is not None and row.zero >= ZERO_2
    if not engine.kernels.hooked_from or not (named or shards):
        return {}
    hooked = {"hooked_from": 1} if named else {}
    if not _unfused(row.framework.lower(), engine):
        return hooked
    return hooked | {"gradient_add": "copied" if shards else "added", "keeps_buffers": False}


def _unfused(framework: str, engine: Engine) -> bool:
    found = re.search(r"\b(\d\d)\.(\d\d)", framework)
    if found is None or not engine.name.startswith("megatron-bridge"):
        return SECOND in framework
    return FIRST_UNFUSED <= (int(found[1]), int(found[2])) < FIRST_FUSED
