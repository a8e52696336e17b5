"""The axes of a layout, opened one after the other, each with the rules that drop rows.

Rules are the mathematics', the engine's (`Legality`), the pins and the default ranges that
`planner.space.legal_layouts` names.
"""

import math

import numpy as np

from meshplan.costmodels.layouts import Ints, distinct, each_once, numbered, one_of, thousandths
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Legality
from meshplan.planner.space.engine_rules import (
    ON_CPU,
    recomputes_under,
    shards_under,
    tower_widths,
)
from meshplan.planner.space.funnel import Funnel
from meshplan.planner.space.legal_schedules import (
    NO_RECOMPUTE,
    filling,
    legal_schedules,
    mode_classes,
)
from meshplan.planner.space.module_splits import apart_allowed, can_split_stack
from meshplan.planner.space.pins import FRACTION_AXES, SWITCH

USUAL_MICRO_BATCHES = (*range(1, 17), 20, 24, 32, 40, 48, 64)
SMALL_NODES_RANKS, FEW_SEQUENCES_RANKS = 8, 16
"""Of tensor parallelism across nodes: of fewer GPUs; where the batch has fewer sequences than there
are nodes, so that replicas alone leave GPUs idle.
"""
GROUP_NODES, FEWEST_COPIES = (1, 4, 16, 64), 8
"""Shard groups of the ranks of so many nodes; of several, where so many groups are left: with fewer
no collective gets much shorter.
"""


def widest_tensor_parallel(gpus: Ints | int, sequences: int, gpus_per_node: int) -> Ints:
    """Ranks that the search looks at without a pin on that many `gpus`: those of a node, of small
    nodes several, and more where the batch has fewer `sequences` than there are nodes.
    """
    few = np.asarray(gpus) > sequences * gpus_per_node
    return np.where(few, FEW_SEQUENCES_RANKS, SMALL_NODES_RANKS).clip(min=gpus_per_node)


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def open_ranks(
    funnel: Funnel,
    model: Model,
    training: Training,
    sizes: Ints,
    legality: Legality,
    gpus_per_node: int,
    *,
    degrees: list[int],
) -> None:
    """tp, cp and pp out of `degrees` whose product divides one of `sizes`."""
    options = np.array(degrees, np.int64)
    funnel.multiply("tensor_parallel", options)
    _keep_dividing(funnel, sizes)
    _keep_if_pins_run(funnel, legality)
    _keep_cut_evenly(funnel, model, training, legality)
    funnel.keep_pinned("tensor_parallel")
    sequences = training.global_batch_size
    _keep_near(funnel, widest_tensor_parallel(sizes.max(initial=0), sequences, gpus_per_node))
    funnel.multiply("context_parallel", options)
    _keep_dividing(funnel, sizes)
    cp = funnel["context_parallel"]
    splits = legality.context_parallel and not model.mixed_by
    legal = (cp == 1) | ((training.seq_len % (2 * cp) == 0) & splits)
    funnel.keep(legal, "context_parallel does not split the sequence, or the engine has none")
    funnel.keep_pinned("context_parallel")
    funnel.multiply("pipeline_parallel", options)
    _keep_dividing(funnel, sizes)
    _pipelines(funnel, model, legality)


def _keep_if_pins_run(funnel: Funnel, legality: Legality) -> None:
    """No row at all where the engine has no pinned recompute mode, or no pinned schedule."""
    modes = np.full(len(funnel), bool(mode_classes(legality, funnel.pins)))
    funnel.keep(modes, "the engine has none of the pinned recompute modes")
    pinned = funnel.pins.axes.get("schedule")
    runs = pinned is None or any(pinned.allows(each) for each in legality.schedules)
    funnel.keep(np.full(len(funnel), runs), "the engine runs none of the pinned schedules")


def _keep_cut_evenly(funnel: Funnel, model: Model, training: Training, legality: Legality) -> None:
    """Only the rows whose tensor parallelism divides what it cuts."""
    widths = [size for kind in model.kinds for size in kind.divided_by_tp.values()]
    legal = math.gcd(*widths) % funnel["tensor_parallel"] == 0
    funnel.keep(legal, "tensor_parallel does not divide heads or ffn")
    if tower := tower_widths(model, training, legality):
        legal = math.gcd(*tower.values()) % funnel["tensor_parallel"] == 0
        funnel.keep(legal, "tensor_parallel does not divide the vision tower's heads or ffn")
    if legality.kv_heads_divide:
        kv_heads = [k.attention.kv_heads for k in model.kinds if not k.attention.is_mla]
        legal = math.gcd(*kv_heads) % funnel["tensor_parallel"] == 0
        funnel.keep(legal, "tensor_parallel does not divide the key/value heads")


def inner_ranks(funnel: Funnel) -> Ints:
    """The product of the degrees that the rows have so far."""
    axes = ("tensor_parallel", "context_parallel", "pipeline_parallel")
    return np.array(math.prod(funnel.columns[axis] for axis in axes if axis in funnel.columns))


def _keep_dividing(funnel: Funnel, sizes: Ints) -> None:
    """Only the rows whose degrees divide one of `sizes`, uncounted: the others are no layouts."""
    products, which = numbered(inner_ranks(funnel))
    divide = np.array([bool((sizes % product == 0).any()) for product in products], dtype=bool)
    funnel.columns = {name: c[divide[which]] for name, c in funnel.columns.items()}


def _keep_near(funnel: Funnel, widest: Ints) -> None:
    if not funnel.is_pinned("tensor_parallel"):
        legal = funnel["tensor_parallel"] <= widest
        funnel.keep(legal, "tensor_parallel beyond the nodes of the usual space (a pin opens it)")


def open_replicas(funnel: Funnel, training: Training, sizes: Ints, gpus_per_node: int) -> None:
    """The dp that remains of each of `sizes`."""
    inner = inner_ranks(funnel)
    parts = [(np.flatnonzero(size % inner == 0), size) for size in sizes.tolist()]
    rows = np.concatenate([rows for rows, _ in parts])
    replicas = np.concatenate([size // inner[rows] for rows, size in parts])
    funnel.columns = {name: c[rows] for name, c in funnel.columns.items()}
    funnel.columns["data_parallel"] = replicas
    funnel.keep_pinned("data_parallel")
    gpus = funnel["data_parallel"] * inner_ranks(funnel)
    _keep_near(funnel, widest_tensor_parallel(gpus, training.global_batch_size, gpus_per_node))


def _pipelines(funnel: Funnel, model: Model, legality: Legality) -> None:
    funnel.keep_pinned("pipeline_parallel")
    if model.tied and not legality.tied_with_pipeline:
        whole = funnel["pipeline_parallel"] == 1
        funnel.keep(whole, "the engine has no pipeline of a model with tied embeddings")
    pp = funnel["pipeline_parallel"]
    degrees, which = numbered(pp)
    apart = apart_allowed(funnel.pins)
    cuts = np.array([
        can_split_stack(model, legality, degree, 1, apart) for degree in degrees.tolist()
    ], bool)  # fmt: skip
    funnel.keep(cuts[which], "the layers do not cut into pipeline_parallel stages")


def open_batches(funnel: Funnel, model: Model, training: Training, legality: Legality) -> None:
    """mbs and the m that reaches the global batch exactly, with a schedule that can run it."""
    batch = training.global_batch_size
    sizes = np.array(divisors(batch), np.int64)
    funnel.multiply("micro_batch_size", sizes)
    if funnel.is_pinned("micro_batch_size"):
        funnel.keep_pinned("micro_batch_size")
    else:
        legal = one_of(funnel["micro_batch_size"], USUAL_MICRO_BATCHES)
        funnel.keep(
            legal, "micro_batch_size not 1 to 16, 20, 24, 32, 40, 48 or 64 (a pin opens it)"
        )
    per_step = funnel["data_parallel"] * funnel["micro_batch_size"]
    funnel.keep(batch % per_step == 0, "data_parallel x micro_batch_size misses the global batch")
    per_step = funnel["data_parallel"] * funnel["micro_batch_size"]
    funnel.columns["num_micro_batches"] = batch // per_step
    funnel.keep_pinned("num_micro_batches")
    if legality.micro_batches_at_least_pp:
        least = funnel["pipeline_parallel"] - legality.micro_batches_short_of_pp
        fills = funnel["num_micro_batches"] >= least
        funnel.keep(fills, "fewer micro-batches than pipeline ranks")
    shapes, which = _distinct_asked(funnel)
    legal = np.array(
        [bool(legal_schedules(model, legality, funnel.pins, *each)) for each in shapes.tolist()],
        dtype=bool,
    )
    funnel.keep(legal[which], "no schedule runs this pipeline and accumulation")


def _distinct_asked(funnel: Funnel, *axes: str) -> tuple[Ints, Ints]:
    """Ranks, micro-batches and `axes` of the rows that differ in these or in what schedules ask,
    and each row's index among them.
    """
    columns = [funnel[axis] for axis in ("pipeline_parallel", "num_micro_batches", *axes)]
    asked = [each.astype(np.int32) for each in filling(*columns[:2])]
    first, which = distinct([columns[0], *asked, *columns[2:]])
    return np.stack([column[first] for column in columns], axis=1), which


def open_experts(funnel: Funnel, model: Model, legality: Legality) -> None:
    """ep and etp, which reuse the ranks of dp, cp and tp."""
    experts = model.num_experts if legality.expert_parallel else 0
    funnel.multiply("expert_parallel", np.array(divisors(experts) if experts else (1,), np.int64))
    funnel.keep_pinned("expert_parallel")
    _open_expert_tensor(funnel, model, legality)
    tp, etp = funnel["tensor_parallel"], funnel["expert_tensor_parallel"]
    widths = [width for kind in model.kinds if kind.experts for width in kind.experts.widths]
    legal = tp % etp == 0
    legal &= math.gcd(*widths) % etp == 0
    funnel.keep(legal, "expert_tensor_parallel does not divide tensor_parallel or the experts' ffn")
    ranks = funnel["data_parallel"] * funnel["context_parallel"] * funnel["tensor_parallel"]
    inner = funnel["expert_parallel"] * funnel["expert_tensor_parallel"]
    funnel.keep(ranks % inner == 0, "expert_parallel x etp does not divide dp x cp x tp")


def _open_expert_tensor(funnel: Funnel, model: Model, legality: Legality) -> None:
    tp = funnel["tensor_parallel"]
    if model.is_moe and legality.expert_tensor_parallel == "free" and tp.size:
        within = sorted({etp for degree in each_once(tp) for etp in divisors(int(degree))})
        funnel.multiply("expert_tensor_parallel", np.array(within, np.int64))
    else:
        split = model.is_moe & legality.splits_experts(funnel["expert_parallel"])
        funnel.columns["expert_tensor_parallel"] = np.where(split, tp, 1)
    funnel.keep_pinned("expert_tensor_parallel")


def open_sharding(funnel: Funnel, legality: Legality, gpus_per_node: int) -> None:
    """Sequence parallelism, the ZeRO stage and the ranks that it shards over."""
    funnel.multiply("sequence_parallel", np.arange(2))
    on = funnel["sequence_parallel"] == 1
    can = funnel["tensor_parallel"] > 1
    allowed = [funnel.pins.allows("sequence_parallel", word) for word in SWITCH]
    legal = np.where(can, np.where(on, allowed[1], allowed[0]), ~on)
    if legality.sequence_parallel != "optional":
        legal &= ~can | (on == (legality.sequence_parallel == "always"))
    funnel.columns = {name: column[legal] for name, column in funnel.columns.items()}
    funnel.multiply("zero_stage", np.array(legality.zero_stages, np.int64))
    funnel.keep_pinned("zero_stage")
    zero = funnel["zero_stage"]
    legal = (funnel["pipeline_parallel"] == 1) | one_of(zero, legality.zero_with_pipeline)
    funnel.keep(legal, "the engine does not combine this ZeRO stage with a pipeline")
    replicas = funnel["data_parallel"] * funnel["context_parallel"]
    lowest = min(legality.zero_stages)
    legal = (replicas > 1) | (funnel["zero_stage"] == lowest)
    funnel.keep(legal, "nothing to shard over: data_parallel x context_parallel is 1")
    _shard_groups(funnel, legality, gpus_per_node)


def _shard_groups(funnel: Funnel, legality: Legality, gpus_per_node: int) -> None:
    """All of dp x cp; with hybrid sharding also the ranks of a few nodes, or what a pin says."""
    replicas = funnel["data_parallel"] * funnel["context_parallel"]
    sharded = funnel["zero_stage"] > 0
    if not legality.hybrid_shard:
        funnel.columns["shard_group"] = np.where(sharded, replicas, 1)
        _keep_pinned_groups(funnel)
        return
    node = np.minimum(replicas, np.maximum(1, gpus_per_node // funnel["tensor_parallel"]))
    if not funnel.is_pinned("shard_group"):
        groups = [node * nodes for nodes in GROUP_NODES]
        fewest = [2, *(FEWEST_COPIES for _ in GROUP_NODES[1:])]
        within = [
            sharded & (group > 1) & (group * copies <= replicas) & (replicas % group == 0)
            for group, copies in zip(groups, fewest, strict=True)
        ]
        ways = np.stack([*groups, np.where(sharded, replicas, 1)], axis=1)
        row, way = np.nonzero(np.stack([*within, np.ones_like(sharded)], axis=1))
        funnel.columns = {name: column[row] for name, column in funnel.columns.items()}
        funnel.columns["shard_group"] = ways[row, way]
        return
    every = {1, *divisors(gpus_per_node)}
    every.update(*(divisors(int(count)) for count in each_once(replicas)))
    funnel.multiply("shard_group", np.array(sorted(every), np.int64))
    group, replicas = funnel["shard_group"], funnel["data_parallel"] * funnel["context_parallel"]
    legal = np.where(funnel["zero_stage"] > 0, replicas % group == 0, group == 1)
    funnel.columns = {name: column[legal] for name, column in funnel.columns.items()}
    _keep_pinned_groups(funnel)


def _keep_pinned_groups(funnel: Funnel) -> None:
    """Only the groups that the pin allows, by their ranks or as a layout states them: 0 where all
    of dp x cp shard together, or nothing is sharded.
    """
    if pin := funnel.pins.axes.get("shard_group"):
        group, replicas = (
            funnel["shard_group"],
            funnel["data_parallel"] * funnel["context_parallel"],
        )
        stated = np.where((funnel["zero_stage"] > 0) & (group < replicas), group, 0)
        allowed = pin.allows_each(group) | pin.allows_each(stated)
        funnel.keep(allowed, f"pinned: shard_group {pin.text}")


def open_offloads(funnel: Funnel, training: Training, legality: Legality) -> None:
    """What is kept on the host: nothing, unless a pin says more."""
    for axis in FRACTION_AXES:
        pin = funnel.pins.axes.get(axis)
        fractions = np.array(pin.fractions if pin else (0.0,))
        funnel.multiply(axis, thousandths(fractions))
    on_cpu, waits = funnel["optimizer_offload"] > 0, funnel["activation_offload"] > 0
    updates = legality.optimizer_offload and training.optimizer in ON_CPU
    alone = funnel["data_parallel"] * funnel["context_parallel"] == 1
    can = updates & ((funnel["zero_stage"] >= 1) | alone)
    plainly = (funnel["pipeline_parallel"] == 1) & any(
        NO_RECOMPUTE in modes for modes in mode_classes(legality, funnel.pins)
    )
    kinds = {"never": np.zeros_like(waits), "plain": plainly, "any": np.ones_like(waits)}
    legal = ~waits | kinds[legality.activation_offload]
    legal &= ~on_cpu | can
    funnel.keep(legal, "the engine does not keep this on the host")


def drop_split_backwards(funnel: Funnel, model: Model, legality: Legality) -> None:
    """Rows whose only schedules split the backward, which the engine does not do with their ZeRO
    stage, or with the recompute that is pinned."""
    modes = mode_classes(legality, funnel.pins)
    kept = any(NO_RECOMPUTE in each for each in modes)
    cases, which = _distinct_asked(funnel, "zero_stage")
    legal = np.array(
        [
            any(
                shards_under(schedule, legality, zero)
                and (kept or recomputes_under(schedule, legality))
                for schedule, _ in legal_schedules(model, legality, funnel.pins, pp, m)
            )
            for pp, m, zero in cases.tolist()
        ],
        dtype=bool,
    )
    why = "the engine does not split the backward with this ZeRO stage, or with recompute"
    funnel.keep(legal[which], why)
