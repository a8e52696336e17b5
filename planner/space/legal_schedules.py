"""The schedules that a pipeline may run, and the recompute modes that its layers may mix."""

from typing import Any, TypeVar

import numpy as np

from meshplan.costmodels.layout import MODES, SCHEDULES, VIRTUAL_STAGES, Schedule
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import places_modules
from meshplan.hardware_profiles.engine_schema import Legality
from meshplan.planner.space.module_splits import apart_allowed, can_split_stack
from meshplan.planner.space.pins import Pins

Numbers = TypeVar("Numbers", int, Ints)
NO_RECOMPUTE, SELECTIVELY, FULLY = (MODES.index(mode) for mode in ("none", "selective", "full"))


def filling(pp: Numbers, m: Numbers) -> tuple[Any, Any]:
    """All that schedules ask of m micro-batches: that pp ranks divide them; two for each rank."""
    return m % pp == 0, m >= 2 * pp


def legal_schedules(
    model: Model, legality: Legality, pins: Pins, pp: int, m: int
) -> list[tuple[Schedule, int]]:
    """The (schedule, chunks per rank) that pp ranks may run with m micro-batches.

    GPipe holds more than 1F1B. Where passes wait for what is sent it takes as long, so it stands
    only where 1F1B may not; where sends are hidden it may be faster: on a slow network 1F1B waits
    for gradients to come all the way back, GPipe has all micro-batches on their way. One rank has
    no pipeline: it accumulates gradients, 1F1B with nothing to fill.
    """
    apart = apart_allowed(pins)
    if pp == 1:
        alone = pins.allows("schedule", "1f1b") and pins.allows("virtual_stages", 1)
        return [("1f1b", 1)] if alone and can_split_stack(model, legality, 1, 1, apart) else []
    names = [name for name in legality.schedules if pins.allows("schedule", name)]
    if "1f1b" in names and "gpipe" in names and not legality.hides_sends:
        names.remove("gpipe")
    most = int(most_chunks(model, legality, pp))
    (divided, twice), found = filling(pp, m), []
    for name in sorted(SCHEDULES, key="gpipe".__eq__):  # of equals the one that holds less
        for vpp in _chunks(name, most) if name in names else ():
            fits = divided or name != "interleaved_1f1b"
            fits |= not legality.interleaved_needs_multiple
            fits &= twice or name != "dualpipe_v"  # DualPipe's own condition
            if fits and pins.allows("virtual_stages", vpp):
                found += [(name, vpp)] if can_split_stack(model, legality, pp, vpp, apart) else []
    return found


def most_chunks(model: Model, legality: Legality, pp: Numbers) -> Any:
    """Chunks that each of pp ranks may have at most, one at least."""
    parts = model.num_layers + 2 + places_modules(model, legality)
    return np.maximum(parts // pp, 1)


def _chunks(schedule: Schedule, most: int) -> range:
    """How many chunks per rank a schedule may have."""
    if schedule in VIRTUAL_STAGES:
        return range(VIRTUAL_STAGES[schedule], VIRTUAL_STAGES[schedule] + 1)
    return range(2, most + 1)


def mode_classes(legality: Legality, pins: Pins) -> tuple[tuple[int, ...], ...]:
    """Sets of recompute modes that the layers of one plan may mix, as `Legality.recompute_layers`
    says: all; none and full; or one for all layers.
    """
    allowed = tuple(
        index
        for index, mode in enumerate(MODES)
        if mode in legality.recompute and pins.allows("recompute", mode)
    )
    if legality.recompute_layers == "any":
        return (allowed,) if allowed else ()
    alone = tuple((mode,) for mode in allowed)
    if legality.recompute_layers == "first" and {NO_RECOMPUTE, FULLY} <= set(allowed):
        return ((NO_RECOMPUTE, FULLY), *(each for each in alone if each == (SELECTIVELY,)))
    return alone
