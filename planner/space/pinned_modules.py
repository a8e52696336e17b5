"""A pin of what selective recomputation replays: one set of modules, of those the engine has.

Without it a search offers the sets that are worth it (`costmodels.ranks.recompute_sets`). A pinned
set need not be one of these: it stands in their place, and how many layers replay it stays open.
"""

from collections.abc import Container, Iterable
from typing import get_args

from meshplan.costmodels.layout import SELECTIVE, InvalidLayout, Layout, Stage
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.replayed import replayed_of
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine, RecomputeModule
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.space.engine_rules import replays
from meshplan.planner.space.pins import Pins

AXIS = "recompute_modules"
Modules = tuple[RecomputeModule, ...]
MODULES: Modules = get_args(RecomputeModule)


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


def check_pinned_modules(
    pins: Pins, model: Model, training: Training, engine: Engine, cluster: Cluster
) -> None:
    """Raise `InvalidLayout` where the engine replays no such set, or a module of it nothing of the
    model.
    """
    pin, rules = pins.axes.get(AXIS), engine.legality
    if pin is None:
        return
    modes = pins.axes.get("recompute")
    if modes is not None and not modes.allows("selective"):
        raise InvalidLayout(
            f"{AXIS} {pin.text}: recompute {modes.text} is no selective recompute; leave one out"
        )
    if "selective" not in rules.recompute:
        raise InvalidLayout(f"{AXIS} {pin.text}: engine {engine.name} has no selective recompute")
    asked, known = _named(pin.words), rules.recompute_modules or SELECTIVE
    if not replays(asked, rules):
        which = f"{'all of ' if rules.recompute_policy else ''}{_said(known)}"
        raise InvalidLayout(f"{AXIS} {pin.text}: engine {engine.name} replays {which}")
    if rules.recompute_policy:
        return
    has = _of_model(known, Setting.fitted(model, training, cluster, engine))
    if lacking := [each for each in asked if each not in has]:
        no = " and no ".join(lacking)
        of_model = f"engine {engine.name} replays no {no} of {model.name}"
        instead = f"but {_said(has)}" if has else "and nothing else selectively"
        raise InvalidLayout(f"{AXIS} {pin.text}: {of_model}, {instead}")


def _named(words: Container[str]) -> Modules:
    return tuple(each for each in MODULES if each in words)


def _said(modules: Iterable[str]) -> str:
    return ", ".join(modules)


def _of_model(modules: Modules, setting: Setting) -> Modules:
    """Those that hold an operation of one of the model's layers."""
    rank = Rank(setting, Layout(stages=(Stage(setting.model.num_layers),)))
    layers = [rank.operations(kind) for kind in sorted(set(setting.model.pattern))]
    return tuple(one for one in modules if any(replayed_of(each, (one,)) for each in layers))
