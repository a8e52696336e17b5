"""Which profile a plan was made for: a hash of what it says."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.schema import Cluster

OF_CLUSTER = ("pod", "host_slowdown")
OF_KERNELS = (
    "grouped_mm_fraction", "grouped_overlap",
    "scan_forward", "scan_backward", "sparse_backward", "sparse_half_backward", "sdpa_forward",
    "sdpa_backward", "sdpa_half_forward", "sdpa_half_backward", "sums16_backward",
    "sums16_half_backward", "uneven_backward", "uneven_half_backward",
)  # fmt: skip
OF_LINK = ("meshed", "interference", "collective_fits")
OF_POINT = ("processor_s", "apart")
OF_FIT = ("apart",)
"""Fields that are no part of a profile's content while they have their defaults: what profiles had
before there were such fields has the hash that it had then.
"""


def cluster_hash(cluster: Cluster) -> str:
    """First 16 hex digits of the SHA-256 of the profile's content, as plan files quote it.

    How much of a GPU a plan may fill is no part of it.
    """
    document = cluster.model_dump(mode="json", exclude={"plan_memory_bytes"})
    for part, written, later in _with_later_fields(cluster, document):
        for name in later:
            if getattr(part, name) == type(part).model_fields[name].default:
                del written[name]
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _with_later_fields(
    cluster: Cluster, document: dict[str, Any]
) -> Iterator[tuple[Frozen, dict[str, Any], tuple[str, ...]]]:
    """Parts of the profile, each as it is written in `document`, and which of its fields count only
    where they are not the default.
    """
    yield cluster, document, OF_CLUSTER
    if cluster.kernels:
        yield cluster.kernels, document["kernels"], OF_KERNELS
    yield cluster.node, document["node"], OF_LINK
    yield cluster.network, document["network"], OF_LINK
    for point, written in zip(
        cluster.collective_points, document["collective_points"], strict=True
    ):
        yield point, written, OF_POINT
    for fit, written in zip(cluster.collective_fits, document["collective_fits"], strict=True):
        yield fit, written, OF_FIT
