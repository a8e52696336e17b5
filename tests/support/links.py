"""Links whose collectives all move alike, for arithmetic by hand."""

from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import BusBandwidth, CollectiveKind, Link
from meshplan.hardware_profiles.schema import Cluster

COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
)  # fmt: skip


def link(latency_s: float, ring: float, own: float | None = None) -> Link:
    """Rings at `ring` bytes/s; what a rank sends by itself at `own`, the same unless said."""
    own = ring if own is None else own
    return Link(
        latency_s=latency_s,
        bus_bandwidth=BusBandwidth(
            all_reduce=ring, all_gather=ring, reduce_scatter=ring, all_to_all=own, send=own
        ),
    )


def four_gpus_a_node() -> Cluster:
    """4 GPUs a node; 1 us and 100 GB/s inside; 10 us, 200 GB/s a node, 25 GB/s a card outside."""
    return load_cluster("dgx-h100").model_copy(
        update={
            "gpus_per_node": 4,
            "node": link(1e-6, 100e9, 50e9),
            "network": link(10e-6, 200e9, 25e9),
            "bandwidth_by_nodes": {},
        }
    )
