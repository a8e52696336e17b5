"""What the search goes through, and what it leaves out, in the plan's own words."""

from collections.abc import Iterator, Sequence
from typing import Literal

from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting, places_modules
from meshplan.hardware_profiles.engine_schema import Dispatcher, Engine, Legality
from meshplan.planner.space.axis_rules import (
    FEWEST_COPIES,
    GROUP_NODES,
    USUAL_MICRO_BATCHES,
    divisors,
    widest_tensor_parallel,
)
from meshplan.planner.space.engine_rules import ON_CPU
from meshplan.planner.space.exchange_rules import context_kinds
from meshplan.planner.space.module_splits import apart_allowed
from meshplan.planner.space.pins import Pins
from meshplan.planner.space.stage_splits import MOST_WAYS

CUTS = {
    "free": "any number",
    "ends": "equal on all pipeline ranks but the first and the last",
    "even": "equal",
    "cost": "as the engine splits them",
}
"""By `Legality.uneven_stages`."""
Cuts = Literal["all", "runners-up listed", "listed"]
ENDS_COUNT = "; the embedding and the head may each count as a layer"
LISTED = (
    "any number with one stage per pipeline rank; with several, every split where there are at "
    f"most {MOST_WAYS}, else a list of splits (equal stages, shorter ones where layers do not "
    "divide), and single layers moved between stages from the fastest of the list and from its "
    "other schedules and virtual stages; a pin starts these moves elsewhere and may end faster (8 "
    "of 366 plans tried, by up to 1.4%). Runners-up and what more memory buys are of these splits, "
    "too: others may be faster"
)
"""Instead of what is free, where layouts of several chunks may be faster than the plan."""
BESIDE_LISTED = (
    "; the plan is proved against any, but runners-up and what more memory buys come from a list "
    f"of splits where there are more than {MOST_WAYS} and several stages per pipeline rank"
)
"""Added where they may be faster than a runner-up."""
BOUNDED = "with activations on the host, a layout fits if an upper bound of its memory does"
"""Ranks of several stages are asked for two layers on their way to the host, as large as one that
keeps all; and a node's memory is asked to take what the fastest mix that fits its GPUs sends.
"""
PAYS = "not proved: that recomputing more, of which less is copied to the host, is no faster"
"""Bounds of mixes rest on less being faster; such mixes are looked at all the same."""
OTHER_DEGREES = "left out: degrees with a pipeline where an upper bound of memory fits nowhere"
UNLISTED = "left out: degrees that were not listed when the time limit ended the list"
COUNTED = "a layout fits if all that a rank holds at any moment of the step does"
RECOMPUTED = {
    "any": ", in any layers",
    "first": ": selective in all layers, or full in the first layers of each stage, as many in "
    "each",
    "alike": ", the same in all layers",
}
"""By `Legality.recompute_layers`."""
BEATEN = "left out: a kind of {} if another is at least as fast in every pass"
"""It may still end earlier: `costmodels.ranks.kind_costs`."""


def space_words(
    setting: Setting,
    gpus: int,
    pins: Pins,
    sets: Sequence[tuple[RecomputeModule, ...]],
    cuts: Cuts,
    all_degrees: bool,
) -> tuple[str, ...]:
    """One line each: cuts, recomputation, exchanges, what is left out, what pins would open."""
    model, engine, legality = setting.model, setting.engine, setting.engine.legality
    cut = LISTED if cuts == "listed" else CUTS[legality.uneven_stages]
    cut += BESIDE_LISTED * (cuts == "runners-up listed")
    if legality.layers_count_ends and legality.uneven_stages in ("ends", "even"):
        cut += ENDS_COUNT
    lines = [f"layers per stage: {cut}"] * _open(pins, "pipeline_parallel", gpus)
    how = "recompute as memory requires, or more where that was found to be faster"
    lines.append(how + RECOMPUTED[legality.recompute_layers])
    if "selective" in legality.recompute and pins.allows("recompute", "selective"):
        named = _or([", ".join(modules) for modules in sets], "; or ")
        one = "; the same in all layers" if len(sets) > 1 else ""
        lines.append(f"selective recompute replays {named}{one}")
    lines += _exchange_words(setting, gpus, pins)
    if engine.kernels.counts_passes:
        piped = f"; {OTHER_DEGREES}" * (not all_degrees)
        lines.append(f"memory: {COUNTED}{piped}")
    if bounds_memory(legality, pins):
        lines.append(f"memory: {BOUNDED}")
        lines += [PAYS] * (legality.recompute_layers != "alike")
    if model.mtp_layers:
        lines.append(_modules_words(model, legality, pins))
    both = {"gpipe", "1f1b"} <= set(legality.schedules) and pins.allows("schedule", "1f1b")
    if both and not legality.hides_sends:
        lines.append(
            "left out: GPipe, which takes at least as long as 1F1B (passes wait for sends) and "
            "needs more memory"
        )
    if closed := list(_only_pinned(setting, gpus, pins)):
        lines.append(f"searched only if pinned: {'; '.join(closed)}")
    return tuple(lines)


def bounds_memory(legality: Legality, pins: Pins) -> bool:
    """Whether activations may be on the host beside recomputation or several chunks per pipeline
    rank, of which a bound of memory decides what fits.
    """
    return pins.offloads_activations and legality.activation_offload == "any"


def _open(pins: Pins, axis: str, gpus: int) -> bool:
    """Whether ranks may be split along an axis at all."""
    pin = pins.axes.get(axis)
    return gpus > 1 and (pin is None or pin.text.strip() != "1")


def _exchange_words(setting: Setting, gpus: int, pins: Pins) -> Iterator[str]:
    """The kinds of context parallelism and the dispatchers of experts."""
    kinds, _ = context_kinds(setting.model, setting.training, setting.engine)
    splits = _open(pins, "context_parallel", gpus)
    allowed = [kind for kind in kinds if splits and pins.allows("context_kind", kind)]
    if allowed:
        yield f"context parallelism: {_or(allowed)}, the same in all layers"
    experts = setting.model.is_moe and _open(pins, "expert_parallel", gpus)
    dispatchers = _dispatchers(setting.engine, pins) if experts else []
    if dispatchers:
        devices = setting.cluster.device_nouns[1]
        yield f"expert dispatcher: {_or(dispatchers)}, where {devices} and expert groups allow it"
    several: dict[str, Sequence[str]] = {
        "context parallelism": allowed, "dispatcher": dispatchers,
    }  # fmt: skip
    if beaten := [name for name, each in several.items() if len(each) > 1]:
        yield BEATEN.format(_or(beaten))


def _dispatchers(engine: Engine, pins: Pins) -> list[Dispatcher]:
    every, usual = engine.legality.dispatchers, engine.legality.usual_dispatchers
    named = every if "dispatcher" in pins.axes else usual
    return [kind for kind in named if pins.allows("dispatcher", kind)]


def _only_pinned(setting: Setting, gpus: int, pins: Pins) -> Iterator[str]:
    """What the usual ranges leave out of this question (`planner.space.legal_layouts`), and a pin
    on the axis opens.
    """
    training, legality = setting.training, setting.engine.legality
    batch = training.global_batch_size
    widest = int(widest_tensor_parallel(gpus, batch, setting.cluster.gpus_per_node))
    others = set(divisors(batch)) - set(USUAL_MICRO_BATCHES)
    dispatchers = _dispatchers(setting.engine, pins) if setting.model.is_moe else []
    closed = [kind for kind in legality.dispatchers if dispatchers and kind not in dispatchers]
    words = {
        "tensor_parallel": f"tensor parallelism over more than {widest} ranks" * (gpus > widest),
        "micro_batch_size": "micro-batches of other sizes than 1 to 16, 20, 24, 32, 40, 48 and 64"
        * bool(others),
        "shard_group": _groups_words(gpus, setting.cluster.gpus_per_node) * legality.hybrid_shard,
        "optimizer_offload": "optimizer offload to the host"
        * (legality.optimizer_offload and training.optimizer in ON_CPU),
        "activation_offload": "activation offload to the host"
        * (legality.activation_offload != "never"),
        "dispatcher": f"expert dispatcher {_or(closed)}" if closed else "",
    }
    yield from (each for axis, each in words.items() if each and axis not in pins.axes)


def _groups_words(gpus: int, gpus_per_node: int) -> str:
    """The groups that ZeRO shards over without a pin; empty where there are no others."""
    if len(divisors(gpus)) <= 2:
        return ""
    _, *several = GROUP_NODES
    usual = ["all replicas", "a node"]
    if gpus >= several[0] * FEWEST_COPIES * gpus_per_node:
        nodes = _or(list(map(str, several)))
        usual.append(f"{nodes} nodes where at least {FEWEST_COPIES} groups remain")
    return f"ZeRO shard groups other than {_or(usual)}"


def _modules_words(model: Model, legality: Legality, pins: Pins) -> str:
    what = "multi-token prediction modules:"
    if not places_modules(model, legality):
        return f"{what} on the last stage only"
    places = {
        False: "on the last stage",
        True: "on the stage before the last, with equal layers on all others but the first and "
        "the last",
    }
    return f"{what} {_or([places[apart] for apart in apart_allowed(pins)])}"


def _or(kinds: Sequence[str], before_last: str = " or ") -> str:
    *most, last = kinds
    between = "; " if before_last.startswith(";") else ", "
    return f"{between.join(most)}{before_last}{last}" if most else last
