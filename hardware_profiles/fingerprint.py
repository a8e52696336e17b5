"""Which profile a plan was made for: a hash of what it says."""

import hashlib
import json

from meshplan.hardware_profiles.schema import Cluster, Kernels

UNSTATED = (
    "grouped_mm_fraction", "grouped_overlap",
    "scan_forward", "scan_backward", "sparse_backward", "sparse_half_backward", "sdpa_forward",
    "sdpa_backward", "sdpa_half_forward", "sdpa_half_backward", "sums16_backward",
    "sums16_half_backward", "uneven_backward", "uneven_half_backward",
)  # fmt: skip
"""Of `Kernels`, what no part of a profile's content is while it is the default."""


def cluster_hash(cluster: Cluster) -> str:
    """First 16 hex digits of the SHA-256 of the profile's content, as plan files quote it.

    Without pods, processor seconds of collectives, ranks that compute apart, and with the usual
    rates of scans, of chosen keys, of PyTorch's kernels and of an attention that sums in 16 bits or
    has uneven heads, of a tier that states no interference and no mesh, and of a host as fast as
    most, it is what it was before profiles had any of them. How much of a GPU a plan may fill is no
    part of it.
    """
    left_out = {"plan_memory_bytes"} if cluster.pod else {"plan_memory_bytes", "pod"}
    if cluster.host_slowdown == 1:
        left_out.add("host_slowdown")
    document = cluster.model_dump(mode="json", exclude=left_out)
    for name in UNSTATED if cluster.kernels else ():
        if document["kernels"][name] == Kernels.model_fields[name].default:
            del document["kernels"][name]
    for tier in ("node", "network"):
        if not document[tier]["meshed"]:
            del document[tier]["meshed"]
        if document[tier]["interference"] is None:
            del document[tier]["interference"]
        if not document[tier]["collective_fits"]:
            del document[tier]["collective_fits"]
    for point in document["collective_points"]:
        for name in ("processor_s", "apart"):
            if point[name] is None:
                del point[name]
    for fit in document["collective_fits"]:
        if fit["apart"] is None:
            del fit["apart"]
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
