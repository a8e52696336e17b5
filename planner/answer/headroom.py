"""The memory that a plan leaves free on each device: as stated, or by its engine's error."""

from meshplan.costmodels.units import format_bytes, parse_headroom
from meshplan.hardware_profiles.errors.memory_needs import FITS
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.memory_limit import with_usable, with_usual_headroom


def with_headroom(text: str | None, cluster: Cluster, engine: str) -> tuple[Cluster, str]:
    """`cluster` with so much of each device's memory left free, and the note on it.

    None: as much as usual. Raises `ValueError` where `text` is not a headroom.
    """
    device_bytes = cluster.gpu.memory_bytes
    if text is None:
        kept = with_usual_headroom(cluster, engine)
        free = f"--headroom {format_bytes(device_bytes - kept.fillable_bytes)}"
        said = f"{free}, so that a layout that fills the rest of a GPU fits in {FITS:.0%} of runs"
        return kept, f"assumed: {said}" if kept is not cluster else ""
    left_bytes = device_bytes - parse_headroom(text, device_bytes)
    said = f"as stated: headroom {text}, so a plan may use {format_bytes(left_bytes)} of each GPU"
    return with_usable(cluster, left_bytes), said
