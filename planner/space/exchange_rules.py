"""Which kinds of context parallelism, and which dispatchers, an engine can run where.

all_to_all     the ranks of a group divide a tensor rank's heads, and its key/value heads
hierarchical   those of its ranks that share a node do, and it spans several nodes
others         any group
DeepEP ...     on the accelerators, and for the sizes of groups, that `dispatchers.toml` lists

What goes with windows, latent attention, keys that an indexer chose and packed documents is in the
engine's file.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number
from meshplan.costmodels.layout import BY_HEADS, InvalidLayout, Layout
from meshplan.costmodels.layouts import one_of
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.seconds.process_groups import Group, axis_group, place
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dispatchers import load_dispatchers
from meshplan.hardware_profiles.engine_schema import Dispatcher, Engine
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.space.pins import Pins


def context_kinds(
    model: Model, training: Training, engine: Engine
) -> tuple[tuple[ContextKind, ...], str]:
    """The kinds that `engine` has for this model, and why it has no others ("": it has all)."""
    rules, kept, why = engine.legality, engine.legality.context_kinds, ""
    attentions = [kind.attention for kind in model.kinds if kind.attention.heads]
    limits = {
        "sliding windows": rules.context_kinds_with_windows
        if any(attention.window for attention in attentions)
        else None,
        "values narrower than keys": rules.context_kinds_with_latents
        if any(each.head_dim != each.v_head_dim and not each.is_absorbed for each in attentions)
        else None,
        "latent attention over chosen keys": rules.context_kinds_with_chosen_latents
        if any(attention.is_absorbed for attention in attentions)
        else None,
        "packed documents": rules.context_kinds_with_packing
        if training.packed_mean_length
        else None,
    }
    for what, limit in limits.items():
        if limit is not None:
            kept, why = tuple(kind for kind in kept if kind in limit), why or what
    return kept, why


def splits_heads(kind: ContextKind, model: Model, tp: Number, cp: Group) -> Condition:
    """Whether `kind` can split the heads of a tensor rank over the group `cp`."""
    if kind not in BY_HEADS:
        return cp.size >= 1
    by = cp.size if kind == "all_to_all" else cp.ranks_per_node
    counts = [
        heads
        for attention in (each.attention for each in model.kinds)
        if attention.heads
        for heads in (attention.heads, attention.heads if attention.is_mla else attention.kv_heads)
    ]
    divides = math.gcd(*counts) % (tp * by) == 0
    if kind == "all_to_all":
        return divides
    whole = (cp.ranks_per_node > 1) & (cp.nodes > 1) & (cp.size % cp.ranks_per_node == 0)
    return divides & whole


def dispatches(name: Dispatcher, ranks: Group, cluster: Cluster) -> Condition:
    """Whether the library `name` has kernels for the group `ranks` of this cluster."""
    library = load_dispatchers().get(name)
    if library is None:  # the collectives that every framework has
        return ranks.size >= 1
    if cluster.gpu.name not in library.gpus:
        return ranks.size < 0
    known: Condition = ranks.size >= 1
    if library.ranks is not None:
        known = one_of(ranks.size, library.ranks)
    if library.ranks_of_a_node is not None:
        least = np.minimum(ranks.size, library.ranks_of_a_node)
        known = known & (ranks.ranks_per_node >= least)
    return known


def expert_ranks(ep: Number, etp: Number, gpus_per_node: int) -> Group:
    """The ranks that a dispatcher exchanges between: all that hold parts of one set of experts."""
    return place(ep * etp * 1.0, 1.0, gpus_per_node)


def check_exchanges(
    layout: Layout, model: Model, training: Training, engine: Engine, cluster: Cluster
) -> None:
    """Raise `InvalidLayout` where a kind that the layout states is none of the engine's, or cannot
    split the heads. Where a dispatcher runs is not asked: forks run them where releases do not.
    """
    for broken in _broken(layout, model, training, engine, cluster):
        raise InvalidLayout(broken)


def _broken(
    la: Layout, model: Model, training: Training, engine: Engine, cluster: Cluster
) -> Iterator[str]:
    if la.context_kind and la.context_parallel > 1 and not _is_own(la, "context_kind", engine):
        kinds, why = context_kinds(model, training, engine)
        said = f"context_kind {la.context_kind}"
        if la.context_kind not in engine.legality.context_kinds:
            yield f"{said}: {engine.title} {has_no_choice('context_kind', engine)}"
        if la.context_kind not in kinds:
            yield f"{said}: not with {why} ({', '.join(kinds) or 'no kind is'})"
        group = axis_group(la, "cp", engine.legality.rank_order, cluster.gpus_per_node)
        if not splits_heads(la.context_kind, model, la.tensor_parallel * 1.0, group):
            yield (
                f"{said}: heads do not divide by tensor_parallel {la.tensor_parallel} and the "
                f"ranks of context_parallel {la.context_parallel} that exchange them"
            )
    named = ("", *engine.legality.dispatchers)
    own = _is_own(la, "dispatcher", engine)
    if la.expert_parallel > 1 and la.dispatcher not in named and not own:
        has = has_no_choice("dispatcher", engine)
        yield f"dispatcher {la.dispatcher}: {engine.title} {has}"


def _is_own(la: Layout, axis: Literal["context_kind", "dispatcher"], engine: Engine) -> bool:
    """Whether a layout states what an engine without a choice does anyway."""
    rules, kernels = engine.legality, engine.kernels
    if axis == "context_kind":
        return not rules.context_kinds and la.context_kind == kernels.context
    single = la.dispatcher != "all_to_all"
    return not rules.dispatchers and single == (kernels.dispatch != "all_to_all")


def levels_unpriced(la: Layout, engine: Engine, cluster: Cluster) -> str:
    """Why the levels of hierarchical context parallelism have no price here; "": they have one.

    Megatron-Core takes any two sizes (`hierarchical_context_parallel_sizes`), within one node too;
    priced are a node's ranks, and the nodes.
    """
    if la.context_kind != "hierarchical" or la.context_parallel == 1:
        return ""
    group = axis_group(la, "cp", engine.legality.rank_order, cluster.gpus_per_node)
    if group.nodes > 1 and group.ranks_per_node > 1:
        return ""
    where = "within one node" if group.ranks_per_node > 1 else "each on a node of its own"
    return f"the {la.context_parallel} ranks are {where}; priced are levels of a node and of nodes"


def check_pinned_kinds(
    pins: Pins, model: Model, training: Training, engine: Engine, cluster: Cluster
) -> None:
    """Raise `InvalidLayout` where a pin names a kind that is none of the engine's, or where none of
    those pinned goes with the model, or runs on any group of this cluster.
    """
    rules = engine.legality
    contexts, sends = (
        pins.axes[axis].words if axis in pins.axes else frozenset[str]()
        for axis in ("context_kind", "dispatcher")
    )
    for axis, words, kinds in (
        ("context_kind", contexts, rules.context_kinds),
        ("dispatcher", sends, rules.dispatchers),
    ):
        for word in sorted(words.difference(kinds)):
            has = has_no_choice(axis, engine)
            raise InvalidLayout(f"{axis} {word}: engine {engine.name} {has}")
    able, why = context_kinds(model, training, engine)
    if contexts and contexts.isdisjoint(able):
        named, others = ", ".join(sorted(contexts)), ", ".join(able) or "no kind does"
        raise InvalidLayout(f"context_kind {named}: not with {why}; what does: {others}")
    pair = place(2.0, 1.0, cluster.gpus_per_node)
    known = [kind for kind in rules.dispatchers if kind in sends]
    if known and not any(dispatches(kind, pair, cluster) for kind in known):
        raise InvalidLayout(
            f"dispatcher {', '.join(known)} does not run on {cluster.gpu.name} with "
            f"{cluster.gpus_per_node} on a node; use all_to_all"
        )


def with_kinds_of(engine: Engine, layout: Layout) -> Layout:
    """`layout` as `engine` would run it: a kind that it does not choose is left to it."""
    rules = engine.legality
    return replace(
        layout,
        context_kind=layout.context_kind if layout.context_kind in rules.context_kinds else "",
        dispatcher=layout.dispatcher if layout.dispatcher in rules.dispatchers else "",
    )


def has_no_choice(axis: str, engine: Engine) -> str:
    """What the engine has of `axis` instead."""
    plural = {"context_kind": "context_kinds", "dispatcher": "dispatchers"}[axis]
    found: tuple[str, ...] = getattr(engine.legality, plural)
    return f"has {', '.join(found)}" if found else "has one, which is not chosen"
