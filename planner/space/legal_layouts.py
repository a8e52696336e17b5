"""The legal layouts of a question, as columns, with the reason that each other one was dropped.

    tp cp pp ep etp zero shard_group mbs   a row of `Space.layouts`, with dp and m that follow:
        dp = gpus / (tp cp pp)             m = global_batch_size / (dp mbs), exactly
    schedule, vpp                          the variants of a row (`Space.variants`), opened lazily.
                                           What changes a price is in the row: one chunk per rank or
                                           several, both ends on one rank (V shapes) or not

Rules come from the mathematics (`costmodels.layout.check_layout`), the engine (`Engine.legality`),
the pins, and five default ranges that keep out what never pays and that a pin opens:
    tp up to one node; mbs a power of two up to 64; sequence parallelism on where it can be;
    everything on the device;
    ZeRO over all of dp cp, or (where the engine has hybrid sharding) over what is left of one node.
Counts: each rule counts the rows that it dropped, before the axes below it multiply them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.elementwise import Condition
from meshplan.costmodels.layout import MODES, SCHEDULES, VIRTUAL_STAGES, Schedule
from meshplan.costmodels.layouts import Ints, Layouts, thousandths
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.schedule.in_flight import V_SHAPED
from meshplan.costmodels.seconds.process_groups import hides_with_chunks
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine, Legality
from meshplan.planner.space.engine_rules import ON_CPU, recomputes_under, shards_under
from meshplan.planner.space.pins import FRACTION_AXES, Pins
from meshplan.planner.space.stage_splits import can_split

ANY = -1  # of a row: no price depends on its schedule
MOST_MICRO_BATCH = 64
NO_RECOMPUTE = MODES.index("none")


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule with its chunks per pipeline rank, and the recompute modes that layers may mix."""

    schedule: Schedule
    virtual_stages: int
    modes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The legal rows, the pins that chose them, and the count of those dropped by reason."""

    layouts: Layouts
    model: Model
    legality: Legality
    pins: Pins
    dropped: dict[str, int]
    _variants: dict[tuple[int, ...], tuple[Variant, ...]] = field(default_factory=dict)

    @property
    def mode_classes(self) -> tuple[tuple[int, ...], ...]:
        """The sets of recompute modes that the layers of one plan may mix."""
        return mode_classes(self.legality, self.pins)

    def variants(self, row: int) -> tuple[Variant, ...]:
        """The schedules, chunks per rank and recompute modes that `row` may have."""
        pp = int(self.layouts.pipeline_parallel[row])
        m = int(self.layouts.num_micro_batches[row])
        chunks, shape = int(self.layouts.virtual_stages[row]), int(self.layouts.schedule[row])
        zero = int(self.layouts.zero_stage[row])
        plain = bool(self.layouts.activation_offload[row]) and self._offloads_plainly
        known = self._variants.get((pp, m, zero, chunks, shape, plain))
        if known is None:
            known = self._variants[pp, m, zero, chunks, shape, plain] = tuple(
                Variant(schedule, vpp, modes)
                for schedule, vpp in legal_schedules(self.model, self.legality, self.pins, pp, m)
                if chunks in (0, min(vpp, 2))
                if shape in (ANY, _shape(schedule))
                if shards_under(schedule, self.legality, zero)
                for modes in (((NO_RECOMPUTE,),) if plain else self._modes_under(schedule))
            )
        return known

    def _modes_under(self, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
        """No layer recomputes where `schedule` splits the backward and the engine lacks both."""
        if recomputes_under(schedule, self.legality):
            return self.mode_classes
        legal = any(NO_RECOMPUTE in modes for modes in self.mode_classes)
        return ((NO_RECOMPUTE,),) if legal else ()

    def shapes(self, rows: Ints) -> list[Ints]:
        """`rows` by pipeline ranks, micro-batches, ZeRO stage and the ways to run them: each group
        has the same schedules.
        """
        layouts = self.layouts
        shape = layouts.pipeline_parallel[rows] * 2**32 + layouts.num_micro_batches[rows]
        way = 3 * (layouts.schedule[rows] - ANY) + layouts.virtual_stages[rows]
        _, which = np.unique(shape * 128 + way * 4 + layouts.zero_stage[rows], return_inverse=True)
        order = np.argsort(which, kind="stable")
        return np.split(rows[order], np.flatnonzero(np.diff(which[order])) + 1) if len(rows) else []

    @property
    def _offloads_plainly(self) -> bool:
        return self.legality.activation_offload == "plain"


def enumerate_space(
    model: Model,
    training: Training,
    gpus: int | Sequence[int],
    engine: Engine,
    pins: Pins,
    gpus_per_node: int,
) -> Space:
    """Every legal row for exactly `gpus` accelerators, of each count where there are several."""
    funnel = _Funnel(pins)
    sizes = np.array([gpus] if isinstance(gpus, int) else gpus, np.int64)
    degrees = sorted({degree for size in sizes.tolist() for degree in divisors(size)})
    _replica_shapes(funnel, model, training, sizes, degrees, engine.legality, gpus_per_node)
    _data_parallel(funnel, sizes)
    _batches(funnel, model, training, engine.legality)
    _experts(funnel, model, engine.legality)
    _sharding(funnel, engine.legality, gpus_per_node)
    _offloads(funnel, training, engine.legality)
    _split_backwards(funnel, model, engine.legality)
    columns: dict[str, Any] = dict(funnel.columns)
    columns |= {axis: funnel[axis] / 1000 for axis in FRACTION_AXES}
    layouts = Layouts(
        **columns,
        virtual_stages=np.zeros(len(funnel), np.int64),
        schedule=np.full(len(funnel), ANY, np.int64),
    )
    rules = engine.legality
    space = Space(layouts=layouts, model=model, legality=rules, pins=pins, dropped=funnel.dropped)
    chunks = hides_with_chunks(layouts, engine.overlap, gpus_per_node)
    return _priced_apart(space, chunks, model.tied and engine.state.one_table_per_rank)


def _priced_apart(space: Space, by_chunks: Condition, by_table: bool) -> Space:
    """Each row once for each way to run it that has its own price: `by_chunks` with one chunk per
    rank or several, `by_table` with both ends on one rank or not.
    """
    apart = np.broadcast_to(by_chunks, len(space.layouts))
    found = [np.zeros((0, 3), np.int64)]
    for same in space.shapes(np.arange(len(space.layouts))):
        variants = space.variants(int(same[0]))
        for chunks, rows in ((0, same[~apart[same]]), (1, same[apart[same]])):
            of_each = [(chunks * min(v.virtual_stages, 2), _shape(v.schedule)) for v in variants]
            ways = sorted({(several, shape if by_table else ANY) for several, shape in of_each})
            each = np.tile(np.array(ways, np.int64), (len(rows), 1))
            found.append(np.column_stack([np.repeat(rows, len(ways)), each]))
    columns = np.concatenate(found)
    rows, virtual_stages, schedule = columns[np.argsort(columns[:, 0], kind="stable")].T
    layouts = replace(space.layouts.take(rows), virtual_stages=virtual_stages, schedule=schedule)
    return replace(space, layouts=layouts)


def _shape(schedule: Schedule) -> int:
    """What stands for `schedule` in a row: a V shape or none."""
    return SCHEDULES.index("zb_v" if schedule in V_SHAPED else "1f1b")


def legal_schedules(
    model: Model, legality: Legality, pins: Pins, pp: int, m: int
) -> list[tuple[Schedule, int]]:
    """The (schedule, chunks per rank) that pp ranks may run with m micro-batches.

    GPipe takes the time of 1F1B and more memory (`planner.stages.solve`), so it stands only where
    1F1B may not. One rank has no pipeline: it accumulates gradients, 1F1B with nothing to fill.
    """
    if pp == 1:
        alone = pins.allows("schedule", "1f1b") and pins.allows("virtual_stages", 1)
        return [("1f1b", 1)] if alone and can_split(model, legality, 1, 1) else []
    names = [name for name in legality.schedules if pins.allows("schedule", name)]
    if "1f1b" in names and "gpipe" in names:
        names.remove("gpipe")
    found = []
    for name in SCHEDULES:
        for vpp in _chunks(name, model, pp) if name in names else ():
            fits = m % pp == 0 or name != "interleaved_1f1b"
            fits |= not legality.interleaved_needs_multiple
            fits &= m >= 2 * pp or name != "dualpipe_v"  # DualPipe's own condition
            if fits and pins.allows("virtual_stages", vpp):
                found += [(name, vpp)] if can_split(model, legality, pp, vpp) else []
    return found


def _chunks(schedule: Schedule, model: Model, pp: int) -> range:
    """How many chunks per rank a schedule may have."""
    if schedule in VIRTUAL_STAGES:
        return range(VIRTUAL_STAGES[schedule], VIRTUAL_STAGES[schedule] + 1)
    return range(2, (model.num_layers + 2) // pp + 1)


def mode_classes(legality: Legality, pins: Pins) -> tuple[tuple[int, ...], ...]:
    """Sets of recompute modes that the layers of one plan may mix: all, or one for all layers."""
    allowed = tuple(
        index
        for index, mode in enumerate(MODES)
        if mode in legality.recompute and pins.allows("recompute", mode)
    )
    if legality.recompute_per_layer:
        return (allowed,) if allowed else ()
    return tuple((mode,) for mode in allowed)


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


class _Funnel:
    """Columns that grow axis by axis and shrink rule by rule."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.columns: dict[str, Ints] = {}
        self.dropped: dict[str, int] = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, axis: str) -> Ints:
        return self.columns[axis]

    def multiply(self, axis: str, options: Ints) -> None:
        """Every row once with each of `options`."""
        rows = len(self) if self.columns else 1
        self.columns = {name: np.repeat(c, len(options)) for name, c in self.columns.items()}
        self.columns[axis] = np.tile(np.asarray(options, np.int64), rows)

    def keep(self, legal: NDArray[np.bool_], reason: str) -> None:
        """Only the rows that are `legal`; the others are counted under `reason`."""
        dropped = int(len(legal) - np.count_nonzero(legal))
        if dropped:
            self.dropped[reason] = self.dropped.get(reason, 0) + dropped
            self.columns = {name: c[legal] for name, c in self.columns.items()}

    def keep_pinned(self, axis: str) -> None:
        """Only the rows that the user's pin on `axis` allows."""
        if pin := self.pins.axes.get(axis):
            self.keep(pin.allows_each(self[axis]), f"pinned: {axis} {pin.text}")

    def is_pinned(self, axis: str) -> bool:
        """Whether the user pinned `axis`, which lifts its default range."""
        return axis in self.pins.axes


def reachable_sizes(
    model: Model,
    training: Training,
    sizes: Ints,
    engine: Engine,
    pins: Pins,
    gpus_per_node: int,
) -> Ints:
    """Those of `sizes` that some tp x cp x pp and a dp that divides the batch make."""
    widths = math.gcd(*(size for kind in model.kinds for size in kind.divided_by_tp.values()))
    pipelines = range(1, model.num_layers + 3)
    degrees = sorted({*divisors(widths), *divisors(training.seq_len), *pipelines})
    funnel = _Funnel(pins)
    _replica_shapes(funnel, model, training, sizes, degrees, engine.legality, gpus_per_node)
    inner = np.unique(_inner(funnel))
    replicas = np.array(divisors(training.global_batch_size), np.int64)
    return np.intersect1d(sizes, inner[:, None] * replicas)


def _replica_shapes(
    funnel: _Funnel,
    model: Model,
    training: Training,
    sizes: Ints,
    degrees: list[int],
    legality: Legality,
    gpus_per_node: int,
) -> None:
    """tp, cp and pp out of `degrees` whose product divides one of `sizes`."""
    options = np.array(degrees, np.int64)
    funnel.multiply("tensor_parallel", options)
    _keep_dividing(funnel, sizes)
    modes = np.full(len(funnel), bool(mode_classes(legality, funnel.pins)))
    funnel.keep(modes, "the engine has none of the pinned recompute modes")
    tp = funnel["tensor_parallel"]
    widths = [size for kind in model.kinds for size in kind.divided_by_tp.values()]
    funnel.keep(math.gcd(*widths) % tp == 0, "tensor_parallel does not divide heads or ffn")
    if legality.kv_heads_divide:
        kv_heads = [k.attention.kv_heads for k in model.kinds if not k.attention.is_mla]
        legal = math.gcd(*kv_heads) % funnel["tensor_parallel"] == 0
        funnel.keep(legal, "tensor_parallel does not divide the key/value heads")
    funnel.keep_pinned("tensor_parallel")
    if not funnel.is_pinned("tensor_parallel"):
        legal = funnel["tensor_parallel"] <= gpus_per_node
        funnel.keep(legal, "tensor_parallel beyond one node (a pin opens it)")
    funnel.multiply("context_parallel", options)
    _keep_dividing(funnel, sizes)
    cp = funnel["context_parallel"]
    legal = (cp == 1) | ((training.seq_len % (2 * cp) == 0) & legality.context_parallel)
    funnel.keep(legal, "context_parallel does not split the sequence, or the engine has none")
    funnel.keep_pinned("context_parallel")
    funnel.multiply("pipeline_parallel", options)
    _keep_dividing(funnel, sizes)
    _pipelines(funnel, model, legality)


def _inner(funnel: _Funnel) -> Ints:
    """The product of the degrees that the rows have so far."""
    axes = ("tensor_parallel", "context_parallel", "pipeline_parallel")
    return np.array(math.prod(funnel.columns[axis] for axis in axes if axis in funnel.columns))


def _keep_dividing(funnel: _Funnel, sizes: Ints) -> None:
    """Only the rows whose degrees divide one of `sizes`, uncounted: the others are no layouts."""
    products, which = np.unique(_inner(funnel), return_inverse=True)
    divide = np.array([bool((sizes % product == 0).any()) for product in products], dtype=bool)
    funnel.columns = {name: c[divide[which]] for name, c in funnel.columns.items()}


def _data_parallel(funnel: _Funnel, sizes: Ints) -> None:
    """The dp that remains of each of `sizes`."""
    inner = _inner(funnel)
    parts = [(np.flatnonzero(size % inner == 0), size) for size in sizes.tolist()]
    rows = np.concatenate([rows for rows, _ in parts])
    replicas = np.concatenate([size // inner[rows] for rows, size in parts])
    funnel.columns = {name: c[rows] for name, c in funnel.columns.items()}
    funnel.columns["data_parallel"] = replicas
    funnel.keep_pinned("data_parallel")


def _pipelines(funnel: _Funnel, model: Model, legality: Legality) -> None:
    funnel.keep_pinned("pipeline_parallel")
    pp = funnel["pipeline_parallel"]
    degrees, which = np.unique(pp, return_inverse=True)
    cuts = np.array([can_split(model, legality, degree, 1) for degree in degrees.tolist()], bool)
    funnel.keep(cuts[which], "the layers do not cut into pipeline_parallel stages")


def _batches(funnel: _Funnel, model: Model, training: Training, legality: Legality) -> None:
    """mbs and the m that reaches the global batch exactly, with a schedule that can run it."""
    batch = training.global_batch_size
    sizes = np.array(divisors(batch), np.int64)
    funnel.multiply("micro_batch_size", sizes)
    if funnel.is_pinned("micro_batch_size"):
        funnel.keep_pinned("micro_batch_size")
    else:
        mbs = funnel["micro_batch_size"]
        legal = (mbs <= MOST_MICRO_BATCH) & (mbs & (mbs - 1) == 0)
        funnel.keep(legal, "micro_batch_size above 64 or no power of two (a pin opens it)")
    per_step = funnel["data_parallel"] * funnel["micro_batch_size"]
    funnel.keep(batch % per_step == 0, "data_parallel x micro_batch_size misses the global batch")
    per_step = funnel["data_parallel"] * funnel["micro_batch_size"]
    funnel.columns["num_micro_batches"] = batch // per_step
    funnel.keep_pinned("num_micro_batches")
    pp, m = funnel["pipeline_parallel"], funnel["num_micro_batches"]
    if legality.micro_batches_at_least_pp:
        funnel.keep(m >= pp, "fewer micro-batches than pipeline ranks")
        pp, m = funnel["pipeline_parallel"], funnel["num_micro_batches"]
    shapes, which = np.unique(np.stack([pp, m], axis=1), axis=0, return_inverse=True)
    legal = np.array(
        [bool(legal_schedules(model, legality, funnel.pins, int(p), int(n))) for p, n in shapes],
        dtype=bool,
    )
    funnel.keep(legal[which.reshape(-1)], "no schedule runs this pipeline and accumulation")


def _experts(funnel: _Funnel, model: Model, legality: Legality) -> None:
    """ep and etp, which reuse the ranks of dp, cp and tp."""
    experts = model.num_experts if legality.expert_parallel else 0
    funnel.multiply("expert_parallel", np.array(divisors(experts) if experts else (1,), np.int64))
    funnel.keep_pinned("expert_parallel")
    tensor = legality.expert_tensor_parallel and model.is_moe
    degrees = {etp for tp in np.unique(funnel["tensor_parallel"]) for etp in divisors(int(tp))}
    within = sorted(degrees) if tensor and degrees else [1]
    funnel.multiply("expert_tensor_parallel", np.array(within, np.int64))
    funnel.keep_pinned("expert_tensor_parallel")
    tp, etp = funnel["tensor_parallel"], funnel["expert_tensor_parallel"]
    widths = [kind.experts.ffn for kind in model.kinds if kind.experts]
    legal = tp % etp == 0
    legal &= math.gcd(*widths) % etp == 0
    funnel.keep(legal, "expert_tensor_parallel does not divide tensor_parallel or the experts' ffn")
    ranks = funnel["data_parallel"] * funnel["context_parallel"] * funnel["tensor_parallel"]
    inner = funnel["expert_parallel"] * funnel["expert_tensor_parallel"]
    funnel.keep(ranks % inner == 0, "expert_parallel x etp does not divide dp x cp x tp")


def _sharding(funnel: _Funnel, legality: Legality, gpus_per_node: int) -> None:
    """Sequence parallelism, the ZeRO stage and the ranks that it shards over."""
    funnel.multiply("sequence_parallel", np.arange(2))
    on = funnel["sequence_parallel"] == 1
    can = funnel["tensor_parallel"] > 1
    wanted = funnel.pins.axes.get("sequence_parallel")
    words = wanted.words if wanted else frozenset({"off" if legality.sequence_parallel == "never"
                                                   else "on"})  # fmt: skip
    legal = np.where(can, np.where(on, "on" in words, "off" in words), ~on)
    if legality.sequence_parallel != "optional":
        legal &= ~can | (on == (legality.sequence_parallel == "always"))
    funnel.columns = {name: column[legal] for name, column in funnel.columns.items()}
    funnel.multiply("zero_stage", np.array(legality.zero_stages, np.int64))
    funnel.keep_pinned("zero_stage")
    zero = funnel["zero_stage"]
    legal = (funnel["pipeline_parallel"] == 1) | np.isin(zero, legality.zero_with_pipeline)
    funnel.keep(legal, "the engine does not combine this ZeRO stage with a pipeline")
    replicas = funnel["data_parallel"] * funnel["context_parallel"]
    lowest = min(legality.zero_stages)
    legal = (replicas > 1) | (funnel["zero_stage"] == lowest)
    funnel.keep(legal, "nothing to shard over: data_parallel x context_parallel is 1")
    _shard_groups(funnel, legality, gpus_per_node)


def _shard_groups(funnel: _Funnel, legality: Legality, gpus_per_node: int) -> None:
    """All of dp x cp; with hybrid sharding also the ranks of one node, or what the user pinned."""
    replicas = funnel["data_parallel"] * funnel["context_parallel"]
    sharded = funnel["zero_stage"] > 0
    if not legality.hybrid_shard:
        funnel.columns["shard_group"] = np.where(sharded, replicas, 1)
        funnel.keep_pinned("shard_group")
        return
    pinned = funnel.is_pinned("shard_group")
    sizes = {1, *divisors(gpus_per_node)}
    for count in np.unique(replicas):
        sizes |= set(divisors(int(count))) if pinned else {int(count)}
    funnel.multiply("shard_group", np.array(sorted(sizes), np.int64))
    group = funnel["shard_group"]
    replicas = funnel["data_parallel"] * funnel["context_parallel"]
    node = np.minimum(replicas, np.maximum(1, gpus_per_node // funnel["tensor_parallel"]))
    usual = (group == replicas) | ((group == node) & (group > 1))
    legal = (replicas % group == 0) & (usual | pinned)
    legal = np.where(funnel["zero_stage"] > 0, legal, group == 1)
    funnel.columns = {name: column[legal] for name, column in funnel.columns.items()}
    funnel.keep_pinned("shard_group")


def _offloads(funnel: _Funnel, training: Training, legality: Legality) -> None:
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


def _split_backwards(funnel: _Funnel, model: Model, legality: Legality) -> None:
    """Rows whose only schedules split the backward, which the engine does not do with their ZeRO
    stage, or with the recompute that is pinned."""
    modes = mode_classes(legality, funnel.pins)
    kept = any(NO_RECOMPUTE in each for each in modes)
    columns = [funnel[axis] for axis in ("pipeline_parallel", "num_micro_batches", "zero_stage")]
    cases, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    legal = np.array(
        [
            any(
                shards_under(schedule, legality, int(zero))
                and (kept or recomputes_under(schedule, legality))
                for schedule, _ in legal_schedules(model, legality, funnel.pins, int(pp), int(m))
            )
            for pp, m, zero in cases
        ],
        dtype=bool,
    )
    why = "the engine does not split the backward with this ZeRO stage, or with recompute"
    funnel.keep(legal[which.reshape(-1)], why)
