"""What the search goes through, and what it leaves out, in the plan's own words."""

from collections.abc import Iterator, Sequence
from typing import Literal

from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.step.setting import places_modules
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine, Legality
from meshplan.planner.space.engine_rules import ON_CPU
from meshplan.planner.space.exchange_rules import context_kinds
from meshplan.planner.space.module_splits import apart_allowed
from meshplan.planner.space.pins import Pins
from meshplan.planner.space.stage_splits import MOST_WAYS

CUTS = {
    "free": "any cut into stages",
    "ends": "cuts into stages of equal layers, the first and the last pipeline rank's apart; no "
    "cut stage by stage",
    "even": "cuts into stages of equal layers",
    "cost": "the engine's own cut into stages",
}
"""By `Legality.uneven_stages`."""
ENDS_COUNT = "; the embedding and the head each in the place of one layer at most"
LISTED = (
    "any cut into stages with one chunk per pipeline rank; with several every cut where there are "
    f"up to {MOST_WAYS}, else the listed ones: rows of equal chunks, shorter where layers are "
    "missing. From the fastest plans so and their other schedules and chunks single layers are "
    "moved between chunks; no other cut is looked at, and a pin may start moves that end "
    "faster (8 of 366 plans that were tried, by up to 1.4%)"
)
"""Instead of what is free, where layouts of several chunks may be faster than the plan."""
BOUNDED = "what fits by a bound of its memory, which may be above what a rank needs"
"""Where passes are counted; and where layers differ, since each rank is asked for the most that any
of them holds for a moment.
"""
RECOMPUTED = {
    "any": "layers recompute only where memory asks for it",
    "first": "layers recompute only where memory asks for it: all selectively, or the first "
    "of each stage in full, equally many",
    "alike": "layers recompute only where memory asks for it, all alike",
}
"""By `Legality.recompute_layers`."""
BEATEN = "; a kind is left out where another takes no longer in any pass"
"""It may still end earlier: `costmodels.step.kind_costs`."""
DEFAULTS = {
    "tensor_parallel": "tensor parallelism within a node (of up to 8 ranks where a node has fewer "
    "GPUs, of 16 where the batch has fewer sequences than there are nodes)",
    "micro_batch_size": "micro-batches of 1 to 16, 20, 24, 32, 40, 48 and 64",
    "shard_group": "ZeRO over all replicas, those of a node, or of 4, 16 or 64 nodes where 8 "
    "groups are left",
    "optimizer_offload": "the optimizer on the GPUs",
    "activation_offload": "activations on the GPUs",
}
"""What a pin on the axis opens (`planner.space.legal_layouts`)."""


def space_words(
    model: Model,
    training: Training,
    engine: Engine,
    pins: Pins,
    sets: Sequence[tuple[RecomputeModule, ...]],
    cuts: Literal["all", "listed"],
) -> tuple[str, ...]:
    """One line each: cuts, recomputation, exchanges, what pins would open, what is left out."""
    legality = engine.legality
    cut = LISTED if cuts == "listed" else CUTS[legality.uneven_stages]
    if legality.layers_count_ends and legality.uneven_stages in ("ends", "even"):
        cut += ENDS_COUNT
    lines = [cut, RECOMPUTED[legality.recompute_layers]]
    if "selective" in legality.recompute and pins.allows("recompute", "selective"):
        named = _or([", ".join(modules) for modules in sets], "; or ")
        one = "the same set in all layers, " if len(sets) > 1 else ""
        lines.append(f"selective recomputation of {named}: {one}no other set")
    kinds, _ = context_kinds(model, training, engine)
    if allowed := [kind for kind in kinds if pins.allows("context_kind", kind)]:
        beaten = BEATEN if len(allowed) > 1 else ""
        lines.append(f"context parallelism by {_or(allowed)}, the same in all layers{beaten}")
    lines += _dispatch_words(engine, pins) if model.is_moe else []
    if engine.kernels.counts_passes:
        lines.append(f"{BOUNDED}; with few layers per rank what fits when every moment is counted "
                     "was looked for too, without a proof")  # fmt: skip
    elif len(set(model.pattern)) > 1:
        lines.append(BOUNDED)
    if model.mtp_layers:
        lines.append(_modules_words(model, legality, pins))
    own = {
        "shard_group": legality.hybrid_shard,
        "optimizer_offload": legality.optimizer_offload and training.optimizer in ON_CPU,
        "activation_offload": legality.activation_offload != "never",
    }
    opened = [axis for axis in DEFAULTS if own.get(axis, True) and axis not in pins.axes]
    closed = [DEFAULTS[axis] for axis in opened]
    if closed:
        lines.append(f"{_and(closed)}; a pin opens more")
    both = {"gpipe", "1f1b"} <= set(legality.schedules) and pins.allows("schedule", "1f1b")
    if both and not legality.hides_sends:
        lines.append(
            "GPipe is left out: passes wait for what is sent, so it takes as long as 1F1B or "
            "longer, and holds more"
        )
    return tuple(lines)


def _modules_words(model: Model, legality: Legality, pins: Pins) -> str:
    what = "modules of multi-token prediction"
    if not places_modules(model, legality):
        return f"{what} on the last stage alone"
    places = {
        False: "on the last stage",
        True: "on the stage before the last, where all others but the first and the last hold "
        "equally many layers",
    }
    return f"{what} {_or([places[apart] for apart in apart_allowed(pins)])}"


def _dispatch_words(engine: Engine, pins: Pins) -> Iterator[str]:
    every, usual = engine.legality.dispatchers, engine.legality.usual_dispatchers
    named = every if "dispatcher" in pins.axes else usual
    if kinds := [kind for kind in named if pins.allows("dispatcher", kind)]:
        others = [kind for kind in every if kind not in named]
        opens = f"; a pin opens {_or(others)}" if others else ""
        beaten = BEATEN if len(kinds) > 1 else ""
        yield f"tokens to experts by {_or(kinds)}, where GPUs and groups allow it{beaten}{opens}"


def _or(kinds: Sequence[str], before_last: str = " or ") -> str:
    *most, last = kinds
    between = "; " if before_last.startswith(";") else ", "
    return f"{between.join(most)}{before_last}{last}" if most else last


def _and(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
