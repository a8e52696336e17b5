"""What the search goes through, and what it leaves out, in the plan's own words."""

from meshplan.hardware_profiles.engine_schema import Legality
from meshplan.planner.space.pins import Pins

CUTS = {
    "free": "any cut into stages with one chunk per pipeline rank; with several a list of cuts "
    "(rows of equal chunks, shorter where layers are missing), no others",
    "ends": "cuts into stages of equal layers, the first and the last pipeline rank's apart; no "
    "cut stage by stage",
    "even": "cuts into stages of equal layers, the embedding and the head each in place of one at "
    "most",
    "cost": "the engine's own cut into stages",
}
"""By `Legality.uneven_stages`."""
DEFAULTS = {
    "tensor_parallel": "tensor parallelism within a node",
    "micro_batch_size": "micro-batches of a power of two up to 64",
}
"""What a pin on the axis opens (`planner.space.legal_layouts`)."""


def space_words(legality: Legality, pins: Pins) -> tuple[str, ...]:
    """One line each: cuts, recomputation, what pins would open, schedules left out."""
    lines = [CUTS[legality.uneven_stages], "layers recompute only where memory asks for it"]
    closed = [text for axis, text in DEFAULTS.items() if axis not in pins.axes]
    if closed:
        lines.append(" and ".join(closed) + "; a pin opens more")
    if {"gpipe", "1f1b"} <= set(legality.schedules) and pins.allows("schedule", "1f1b"):
        lines.append("GPipe is left out, since 1F1B holds less")
    return tuple(lines)
