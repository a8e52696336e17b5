"""What a run's words for the gate and the dispatcher of its experts say of its kernels."""

from typing import Any

BY_OWN_KERNELS: dict[str, Any] = {"permutes_by_index": False, "sums_by_index": False}

DISPATCHERS: dict[str, dict[str, Any]] = {
    "alltoall": {"dispatch": "all_to_all"},
    "deepep": {"dispatch": "deduplicated"},
    "hybridep": BY_OWN_KERNELS | {"dispatch": "hybridep"},
    "dist_moe": BY_OWN_KERNELS
    | {
        "dispatch": "all_to_all", "exchanging_products": True, "weighs_apart": False,
        "fixed_capacity": True,
    },
}  # fmt: skip
"""DistMoE's kernels fetch and send each copy of a token, weigh and add up in one kernel what comes
back. Buffers are placed on the device ("no host read": meta-pytorch/dist_moe@191b73f3
docs/mxfp8_execution.md), so the host waits for no counts. What they keep in 8 bits for the backward
is counted in 16.
"""

GATES: dict[str, dict[str, Any]] = {
    "": {},
    "dealt": {"deals_experts": True},
    "capacity": {"fixed_capacity": True},
}
"""Gates that deal tokens out evenly; the other one, `natural X`, gives the busiest rank X times the
mean.
"""
