"""The legal layouts of a question, as columns, with the reason that each other one was dropped.

    tp cp pp ep etp zero shard_group mbs   a row of `Space.layouts`, with dp and m that follow:
        dp = gpus / (tp cp pp)             m = global_batch_size / (dp mbs), exactly
    schedule, vpp                          the variants of a row (`Space.variants`), opened lazily.
                                           What changes a price is in the row: one chunk per rank or
                                           several, both ends on one rank (V shapes) or not

Rules come from the mathematics (`costmodels.layout.check_layout`), the engine (`Engine.legality`),
the pins, and four default ranges that keep out what hardly pays and that a pin opens:
    tp up to one node, or 8 ranks; mbs 1 to 16, 20 24 32 40 48 64; everything on the device;
    ZeRO over all of dp cp, or (where the engine has hybrid sharding) over what is left of one node,
    or of 4, 16 and 64 nodes where eight groups are left.
Counts: each rule counts the rows that it dropped, before the axes below it multiply them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np

from meshplan.costmodels.elementwise import Condition
from meshplan.costmodels.layout import SCHEDULES, SELECTIVE, RecomputeModule, Schedule
from meshplan.costmodels.layouts import Ints, Layouts, each_once
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.seconds.process_groups import axis_group, hides_with_chunks
from meshplan.costmodels.setting import places_modules, stack_of
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine, Legality
from meshplan.planner.space.axis_rules import (
    divisors,
    drop_split_backwards,
    inner_ranks,
    open_batches,
    open_experts,
    open_offloads,
    open_ranks,
    open_replicas,
    open_sharding,
)
from meshplan.planner.space.engine_rules import recomputes_under, shards_under
from meshplan.planner.space.funnel import Funnel
from meshplan.planner.space.legal_schedules import (
    FULLY,
    NO_RECOMPUTE,
    SELECTIVELY,
    filling,
    legal_schedules,
    mode_classes,
)
from meshplan.planner.space.module_splits import apart_allowed
from meshplan.planner.space.pins import FRACTION_AXES, Pins
from meshplan.planner.space.stage_splits import lists_all

PART = 4096  # rows that are sharded at once: what they are made of takes several times their memory
COUNTED = 65_536  # rows whose layouts are counted at once
NO_ROWS = np.zeros(0, np.int64)
ANY = -1  # a row's schedule where no price depends on it


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule with its chunks per pipeline rank, and the recompute modes that layers may mix.

    replayed   what a selectively recomputed layer replays
    columns    those of the prices that hold none, selective with `replayed`, and full
    placed     the last part of the last stage that holds any is modules of multi-token prediction
    first      of every virtual stage equally many of the first layers recompute in full
    """

    schedule: Schedule
    virtual_stages: int
    modes: tuple[int, ...]
    replayed: tuple[RecomputeModule, ...] = SELECTIVE
    columns: tuple[int, int, int] = (0, 1, 2)
    placed: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The legal rows, the pins that chose them, and the count of those dropped by reason.

    recompute_sets  what selective recompute may replay, the same set in all layers of a plan
    ended           a deadline ended the list: rows are missing
    """

    layouts: Layouts
    model: Model
    legality: Legality
    pins: Pins
    dropped: dict[str, int]
    recompute_sets: tuple[tuple[RecomputeModule, ...], ...] = (SELECTIVE,)
    ended: bool = False
    _variants: dict[tuple[int, ...], tuple[Variant, ...]] = field(default_factory=dict)

    @property
    def stack(self) -> tuple[int, ...]:
        """The kind of each part that stages hold, in model order."""
        return stack_of(self.model, self.legality)

    @property
    def kind_counts(self) -> list[int]:
        """How many parts of each kind stages hold."""
        return [self.stack.count(kind) for kind in range(max(self.stack) + 1)]

    @property
    def apart(self) -> tuple[bool, ...]:
        """Whether prediction modules may be with the loss, apart from it, or either."""
        return apart_allowed(self.pins)

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
        last, placed = len(self.recompute_sets) + 1, places_modules(self.model, self.legality)
        first = self.legality.recompute_layers == "first"
        asked = pp, *filling(pp, m), zero, chunks, shape, plain
        known = self._variants.get(asked)
        if known is None:
            known = self._variants[asked] = tuple(
                Variant(
                    schedule, vpp, modes, replayed, (0, column, last), placed,
                    first and len(modes) > 1,
                )
                for schedule, vpp in legal_schedules(self.model, self.legality, self.pins, pp, m)
                if chunks in (0, min(vpp, 2))
                if shape in (ANY, _shape(schedule))
                if shards_under(schedule, self.legality, zero)
                for modes in (((NO_RECOMPUTE,),) if plain else self._modes_under(schedule))
                for column, replayed in enumerate(
                    self.recompute_sets if SELECTIVELY in modes else self.recompute_sets[:1], 1
                )
            )  # fmt: skip
        return known

    def layouts_in(self, rows: Ints) -> int:
        """How many layouts `rows` are: each once for each of its variants."""
        return sum(
            len(same) * len(self.variants(int(same[0])))
            for some in (rows[first : first + COUNTED] for first in range(0, len(rows), COUNTED))
            for same in self.shapes(some)
        )

    def take(self, rows: Ints) -> "Space":
        """Some of the rows."""
        return replace(self, layouts=self.layouts.take(rows))

    def replaying(self, sets: tuple[tuple[RecomputeModule, ...], ...]) -> "Space":
        """With these `recompute_sets`."""
        return replace(self, recompute_sets=sets, _variants={})

    def columns_of(self, modes: tuple[int, ...]) -> tuple[int, ...]:
        """The columns of the prices that hold recompute modes."""
        sets = len(self.recompute_sets)
        held = {NO_RECOMPUTE: [0], SELECTIVELY: range(1, sets + 1), FULLY: [sets + 1]}
        return tuple(column for mode in modes for column in held[mode])

    @property
    def mode_columns(self) -> list[int]:
        """The columns of the prices that layers of any plan may be in."""
        return sorted({each for modes in self.mode_classes for each in self.columns_of(modes)})

    def _modes_under(self, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
        """No layer recomputes where `schedule` splits the backward and the engine lacks both."""
        if recomputes_under(schedule, self.legality):
            return self.mode_classes
        legal = any(NO_RECOMPUTE in modes for modes in self.mode_classes)
        return ((NO_RECOMPUTE,),) if legal else ()

    def lists_cuts(self, rows: Ints) -> bool:
        """Whether some of `rows` may be cut as no list says (`planner.space.stage_splits`)."""
        return len(self.listed(rows)) > 0

    def listed(self, rows: Ints) -> Ints:
        """Those of `rows` that may be cut as no list says."""
        if self.legality.uneven_stages != "free":
            return rows[:0]
        some = [rows[:0], *(same for same in self.shapes(rows) if self._lists(int(same[0])))]
        return np.concatenate(some)

    def _lists(self, row: int) -> bool:
        pp, chunks = int(self.layouts.pipeline_parallel[row]), self.variants(row)
        return not all(
            vpp == 1 or lists_all(self.model, self.legality, pp, vpp)
            for vpp in {each.virtual_stages for each in chunks}
        )

    def by_all_variants(self, rows: Ints) -> list[tuple[tuple[Variant, ...], Ints]]:
        """`rows` by all the variants that each may have."""
        found: dict[int, tuple[tuple[Variant, ...], list[Ints]]] = {}
        for same in self.shapes(rows):
            variants = self.variants(int(same[0]))  # the same tuple for equal ones of a shape
            found.setdefault(id(variants), (variants, []))[1].append(same)
        return [(variants, np.concatenate(each)) for variants, each in found.values()]

    def shapes(self, rows: Ints) -> list[Ints]:
        """`rows` by pipeline ranks, micro-batches, ZeRO stage, the ways to run them, and whether
        activations are offloaded: each group has the same variants.
        """
        return [rows[places] for places in self.shapes_at(rows)]

    def shapes_at(self, rows: Ints) -> list[Ints]:
        """The same as places in `rows`, of each group in their order."""
        layouts = self.layouts
        shape = layouts.pipeline_parallel[rows].astype(np.int64) * 2**32
        shape += layouts.num_micro_batches[rows]
        way = 3 * (layouts.schedule[rows].astype(np.int64) - ANY) + layouts.virtual_stages[rows]
        way = 2 * way + (layouts.activation_offload[rows] > 0)
        key = shape * 256 + way * 4 + layouts.zero_stage[rows]
        order = np.argsort(key, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(rows) else []

    def by_variant(self, rows: Ints) -> list[tuple[Variant, Ints]]:
        """Each variant that any of `rows` may have, with those that may, in their order: of equally
        many pipeline ranks. The variants of the first row come first.
        """
        found: dict[tuple[int, Variant], list[Ints]] = {}
        first: dict[tuple[int, Variant], tuple[int, int]] = {}
        for places in self.shapes_at(rows):
            row = int(rows[places[0]])
            pp = int(self.layouts.pipeline_parallel[row])
            for number, variant in enumerate(self.variants(row)):
                at, key = (int(places[0]), number), (pp, variant)
                found.setdefault(key, []).append(places)
                first[key] = min(first.get(key, at), at)
        order = sorted(found, key=first.__getitem__)
        return [(key[1], rows[np.sort(np.concatenate(found[key]))]) for key in order]

    @property
    def _offloads_plainly(self) -> bool:
        return self.legality.activation_offload == "plain"


Sharded = tuple[Layouts, dict[str, int]]
"""Rows, and what was dropped of them by reason."""
DoneOf = Callable[[Callable[[Funnel], Sharded], Sequence[Funnel]], Sequence[Sharded | None]]
"""What a function gives of each, None of what is left out."""


def _in_turn(work: Callable[[Funnel], Sharded], parts: Sequence[Funnel]) -> Sequence[Sharded]:
    return [work(part) for part in parts]


def enumerate_space(
    model: Model,
    training: Training,
    gpus: int | Sequence[int],
    engine: Engine,
    pins: Pins,
    gpus_per_node: int,
    *,
    done_of: DoneOf = _in_turn,
) -> Space:
    """Every legal row for exactly `gpus` accelerators, of each count where there are several."""
    funnel = Funnel(pins)
    sizes = np.array([gpus] if isinstance(gpus, int) else gpus, np.int64)
    degrees = sorted({degree for size in sizes.tolist() for degree in divisors(size)})
    open_ranks(funnel, model, training, sizes, engine.legality, gpus_per_node, degrees=degrees)
    open_replicas(funnel, training, sizes, gpus_per_node)
    open_batches(funnel, model, training, engine.legality)
    if max(int(sizes.max(initial=0)), training.global_batch_size) <= np.iinfo(np.int32).max:
        funnel.narrow()
    open_experts(funnel, model, engine.legality)
    rules, none = engine.legality, dict[str, Any]((f.name, NO_ROWS) for f in fields(Layouts))
    space = Space(
        layouts=Layouts(**none), model=model, legality=rules, pins=pins, dropped=funnel.dropped
    )

    def sharded(part: Funnel) -> Sharded:
        return _sharded(part, space, training, engine, gpus_per_node), part.dropped

    of_each = done_of(sharded, list(funnel.parts(PART)))
    done = [each for each in of_each if each is not None]
    for _, dropped in done:
        funnel.count(dropped)
    layouts = Layouts.joined([layouts for layouts, _ in done])
    return replace(space, layouts=layouts, ended=len(done) < len(of_each))


def _sharded(
    funnel: Funnel, space: Space, training: Training, engine: Engine, gpus_per_node: int
) -> Layouts:
    """The rows of `funnel`, packed, once for each way to shard that has its own price."""
    open_sharding(funnel, engine.legality, gpus_per_node)
    open_offloads(funnel, training, engine.legality)
    drop_split_backwards(funnel, space.model, engine.legality)
    columns: dict[str, Any] = dict(funnel.columns)
    columns |= {axis: funnel[axis] / 1000 for axis in FRACTION_AXES}
    layouts = Layouts(
        **columns,
        virtual_stages=np.zeros(len(funnel), np.int32),
        context_kind=np.zeros(len(funnel), np.int32),
        dispatcher=np.zeros(len(funnel), np.int32),
        schedule=np.full(len(funnel), ANY, np.int32),
    )
    chunks = hides_with_chunks(layouts, engine.overlap, gpus_per_node)
    by_table = space.model.tied and engine.state.one_table_per_rank
    order = engine.legality.rank_order
    pipeline = axis_group(layouts, "pp", order, gpus_per_node)
    mixed = (pipeline.nodes > 1) & (pipeline.nodes < pipeline.size)
    return _priced_apart(replace(space, layouts=layouts), chunks, mixed, by_table).packed()


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
    pipelines = range(1, model.num_layers + 3 + places_modules(model, engine.legality))
    degrees = sorted({*divisors(widths), *divisors(training.seq_len), *pipelines})
    funnel = Funnel(pins)
    open_ranks(funnel, model, training, sizes, engine.legality, gpus_per_node, degrees=degrees)
    inner = each_once(inner_ranks(funnel))
    replicas = np.array(divisors(training.global_batch_size), np.int64)
    both = np.sort(np.concatenate([each_once(sizes), each_once(inner[:, None] * replicas)]))
    found: Ints = both[1:][both[1:] == both[:-1]]  # `numpy.intersect1d` would import `numpy.ma`
    return found


def _priced_apart(
    space: Space, by_chunks: Condition, by_hops: Condition, by_table: bool
) -> Layouts:
    """Each row once for each way to run it that has its own price: `by_chunks` with one chunk per
    rank or several, `by_table` with both ends on one rank or not, `by_hops` both: where some hops
    of a pipeline leave a node, more of a ring do than of a chain.
    """
    apart = np.broadcast_to(by_chunks, len(space.layouts)) + 2 * by_hops
    found = [np.zeros((0, 3), np.int32)]
    for variants, same in space.by_all_variants(np.arange(len(space.layouts))):
        for how in range(4):
            rows, chunks = same[apart[same] == how], int(how > 0)
            of_each = [(chunks * min(v.virtual_stages, 2), _shape(v.schedule)) for v in variants]
            shaped = by_table or how > 1
            ways = sorted({(several, shape if shaped else ANY) for several, shape in of_each})
            each = np.tile(np.array(ways, np.int32).reshape(-1, 2), (len(rows), 1))
            found.append(np.column_stack([np.repeat(rows.astype(np.int32), len(ways)), each]))
    columns = np.concatenate(found)
    rows, virtual_stages, schedule = columns[np.argsort(columns[:, 0], kind="stable")].T
    return replace(space.layouts.take(rows), virtual_stages=virtual_stages, schedule=schedule)


def _shape(schedule: Schedule) -> int:
    """What stands for `schedule` in a row: a V shape or none."""
    return SCHEDULES.index("zb_v" if schedule in V_SHAPED else "1f1b")
