"""The memory that a plan leaves free of each device: as told, or as its engine's error asks for."""

from meshplan.costmodels.units import format_bytes, parse_headroom
from meshplan.hardware_profiles.memory_needs import FITS, chances_of
from meshplan.hardware_profiles.schema import Cluster


def with_headroom(text: str | None, cluster: Cluster, engine: str) -> tuple[Cluster, str]:
    """`cluster` with so much of each device's memory left free, and what is to be said of it.

    None: as much as usual. Raises `ValueError` where `text` is no headroom.
    """
    device_bytes = cluster.gpu.memory_bytes
    if text is None:
        kept = with_usual_headroom(cluster, engine)
        free = f"{format_bytes(device_bytes - kept.capacity_bytes)} of each GPU left free"
        said = f"{free}, so that what fills the rest fits in {FITS:.0%} of runs (--headroom)"
        return kept, said if kept is not cluster else ""
    left_bytes = device_bytes - parse_headroom(text, device_bytes)
    said = f"headroom {text}: a plan may use {format_bytes(left_bytes)} of each GPU"
    return with_usable(cluster, left_bytes), said


def with_usual_headroom(cluster: Cluster, engine: str) -> Cluster:
    """`cluster` with as much left free of each device as a plan leaves unless told: what the
    profile keeps, or what a layout that fills the rest needs to fit with a probability of `FITS`,
    if that is more. No run says anything of a CPU's memory.
    """
    if cluster.gpu.vendor == "cpu":
        return cluster
    safe_bytes = cluster.gpu.memory_bytes / chances_of(engine, cluster.gpu.name).room(FITS)
    return cluster if safe_bytes >= cluster.capacity_bytes else with_usable(cluster, safe_bytes)


def with_usable(cluster: Cluster, usable_bytes: float) -> Cluster:
    """`cluster` with so much of each device's memory in use at most."""
    return cluster.model_copy(update={"usable_memory_bytes": usable_bytes})
