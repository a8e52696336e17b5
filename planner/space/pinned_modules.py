"""A pin of what selective recomputation replays: one set of modules, of those the engine has.

Without it a search offers the sets that are worth it (`costmodels.step.recompute_sets`). A pinned
set need not be one of these: it stands in their place, and how many layers replay it stays open.
"""

from typing import get_args

from meshplan.costmodels.layout import SELECTIVE, InvalidLayout
from meshplan.hardware_profiles.engine_schema import Engine, RecomputeModule
from meshplan.planner.space.engine_rules import replays
from meshplan.planner.space.pins import Pins

AXIS = "recompute_modules"
MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)


def replaying_pinned(engine: Engine, pins: Pins) -> Engine:
    """`engine`, which replays the pinned set or nothing, in the order of its own list."""
    if AXIS not in pins.axes:
        return engine
    rules, words = engine.legality, pins.axes[AXIS].words
    modules = tuple(each for each in rules.recompute_modules if each in words)
    if not modules:  # it has one set, which is not listed
        return engine
    rules = rules.model_copy(update={"recompute_modules": modules, "recompute_policy": True})
    return engine.model_copy(update={"legality": rules})


def check_pinned_modules(pins: Pins, engine: Engine) -> None:
    """Raise `InvalidLayout` where the engine replays no such set."""
    pin, rules = pins.axes.get(AXIS), engine.legality
    if pin is None:
        return
    if "selective" not in rules.recompute:
        raise InvalidLayout(f"{AXIS} {pin.text}: engine {engine.name} has no selective recompute")
    if not replays(tuple(each for each in MODULES if each in pin.words), rules):
        every = "all of " if rules.recompute_policy else ""
        has = ", ".join(rules.recompute_modules or SELECTIVE)
        raise InvalidLayout(f"{AXIS} {pin.text}: engine {engine.name} replays {every}{has}")
