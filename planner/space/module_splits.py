"""The ways to cut a stack whose last part is modules of multi-token prediction into virtual stages.

The stack (`costmodels.setting.stack_of`) is the layers and, where an engine may place them,
all modules together as one part behind them. Counts are of parts of the stack:

    with the loss   the cuts of the layers alone, and the modules on the last stage
    apart           the last stage holds nothing but the heads, the one before it the modules and
                    at most as many layers as others; of these all hold equally many but the first,
                    which may hold one more, or two less

Apart from the loss the modules need three pipeline ranks: they are not on the first one.
"""

from functools import cache

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import places_modules
from meshplan.hardware_profiles.engine_schema import Legality
from meshplan.planner.space.pins import SWITCH, Pins
from meshplan.planner.space.stage_splits import MOST_OF_FIRST, Counts, Ways, can_split, splits

FEWEST_RANKS = 3


def apart_allowed(pins: Pins) -> tuple[bool, ...]:
    """Whether modules may be with the loss (False), apart from it (True), or either."""
    return tuple(apart for apart in (False, True) if pins.allows("modules_apart", SWITCH[apart]))


def stack_splits(
    model: Model, legality: Legality, pp: int, vpp: int, apart: tuple[bool, ...] = (False, True)
) -> tuple[Counts, ...] | None:
    """Parts of the stack on each virtual stage, every way to choose from; None for any counts."""
    if not model.mtp_layers:
        return splits(model, legality, pp, vpp)
    together = splits(model, legality, pp, vpp) if False in apart else ()
    if together is None or not places_modules(model, legality):
        return together
    return _stacked(together, _apart(model.num_layers, pp, vpp) if True in apart else ())


@cache
def _stacked(together: tuple[Counts, ...], apart: tuple[Counts, ...]) -> Ways:
    """Cuts of the layers with the modules on the last stage, and those with them apart from it."""
    return Ways([*((*counts[:-1], counts[-1] + 1) for counts in together), *apart])


def can_split_stack(
    model: Model, legality: Legality, pp: int, vpp: int, apart: tuple[bool, ...]
) -> bool:
    """Whether there is any way."""
    if (False in apart or not model.mtp_layers) and can_split(model, legality, pp, vpp):
        return True
    placed = True in apart and places_modules(model, legality)
    return placed and len(_apart(model.num_layers, pp, vpp)) > 0


@cache
def _apart(layers: int, pp: int, vpp: int) -> tuple[Counts, ...]:
    """f, q, q, ... q, r and the modules, nothing: f and r as long as q, but for a few."""
    if pp < FEWEST_RANKS:
        return ()
    body, found = pp * vpp - 3, []
    for each in range(1, layers // body + 1) if body else (0,):
        left = layers - body * each
        firsts = range(max(0, each - MOST_OF_FIRST), each + 2) if body else range(layers + 1)
        found += [
            (first, *[each] * body, left - first + 1, 0)
            for first in firsts
            if 0 <= left - first <= (each if body else layers)
        ]
    return Ways(found)
