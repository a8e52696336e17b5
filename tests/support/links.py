"""Links whose collectives all move alike, for arithmetic by hand."""

from meshplan.hardware_profiles.schema import BusBandwidth, Link


def link(latency_s: float, ring: float, own: float | None = None) -> Link:
    """Rings at `ring` bytes/s; what a rank sends by itself at `own`, the same unless said."""
    own = ring if own is None else own
    return Link(
        latency_s=latency_s,
        bus_bandwidth=BusBandwidth(
            all_reduce=ring, all_gather=ring, reduce_scatter=ring, all_to_all=own, send=own
        ),
    )
