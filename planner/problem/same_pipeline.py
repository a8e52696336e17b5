"""Layouts that differ in prices and micro-batches only, so that one array holds them all.

Letters as in `planner.problem.closed_form`; arrays are [layout, ...].
"""

from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from meshplan.costmodels.elementwise import least_along
from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints, numbered
from meshplan.costmodels.schedule.in_flight import enough
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.problem.closed_form import ClosedForm
from meshplan.planner.problem.coefficients import ABSENT, Coefficients, Priced
from meshplan.planner.problem.pipeline_shape import (
    Apart,
    PipelineShape,
    apart,
    pipeline_shape,
    places,
)
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.module_splits import stack_splits


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipelines:
    """A pipeline that one layout runs, or many; and their prices.

    prices      a row for each, held in memory as the schedule holds them; three recompute modes
    columns     where the three modes stand among the columns of the space's prices
    modes       the recompute modes that layers may have (0 none, 1 selective, 2 full), ascending
    pattern     the kind of each layer in model order, and of placed prediction modules after them
                (`costmodels.setting.stack_of`)
    splits      the layers per stage to choose from, None for any
    empty_ends  the first and the last of several stages may hold no layer
    first       of every virtual stage equally many of the first layers recompute in full, the
                others not: modes 2 and 0, and listed splits where there are several ranks
    """

    prices: Coefficients
    schedule: Schedule
    pp: int
    vpp: int
    modes: tuple[int, ...]
    pattern: tuple[int, ...]
    splits: tuple[tuple[int, ...], ...] | None = None
    empty_ends: bool = False
    columns: tuple[int, int, int] = (0, 1, 2)
    first: bool = False

    @property
    def chunks(self) -> int:
        """Virtual stages in all."""
        return self.pp * self.vpp

    @cached_property
    def kind_counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.pattern.count(kind) for kind in range(self.prices.layer_ns.shape[1]))

    def fewest_layers(self, chunk: int) -> int:
        """The fewest layers that virtual stage `chunk` may hold."""
        end = chunk in (0, self.chunks - 1) and self.chunks > 1
        return 0 if end and self.empty_ends else 1


@dataclass(frozen=True, kw_only=True, eq=False)
class SamePipeline(Pipelines):
    """Layouts of one schedule, ranks, chunks, recompute modes and splits; `m` and prices differ.
    Where `vpps` are said, [layout], chunks differ too, and all others speak of `vpp`.
    """

    m: Ints
    vpps: Ints | None = None

    def take(self, rows: "Ints | slice") -> "SamePipeline":
        """Some of them."""
        known: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        vpps = None if self.vpps is None else self.vpps[rows]
        return SamePipeline(**known, prices=self.prices.take(rows), m=self.m[rows], vpps=vpps)

    def __len__(self) -> int:
        return len(self.m)

    @property
    def each_vpp(self) -> Floats | int:
        """Chunks of each rank, of each layout where they differ."""
        return self.vpp if self.vpps is None else self.vpps.astype(float)

    @cached_property
    def vectors(self) -> Ints:
        """[layout, rank, chunk] the fullest in-flight vector of each rank."""
        return self._fullest[self._shapes[1]]

    @cached_property
    def covers(self) -> Floats:
        """[layout, which, rank, chunk] `PipelineShape.covers`."""
        return self._covers[self._shapes[1]]

    def vector_at(self, rank: int, place: int) -> Ints:
        """[layout] `vectors` of one rank and place, without the whole array being made."""
        found: Ints = self._fullest[self._shapes[1], rank, place]
        return found

    def covers_at(self, rank: int, place: int) -> Floats:
        """[layout, which] `covers` of one rank and place, without the whole array being made."""
        found: Floats = self._covers[self._shapes[1], :, rank, place]
        return found

    @property
    def covers_by_size(self) -> tuple[Floats, Floats | None, Ints]:
        """[size, which, rank, chunk] `covers` of each of `sizes`; `late`, None where that does not
        count apart; and each layout's size.
        """
        late = np.stack([each.late for each in self._apart]) if self.waits_apart else None
        return self._covers, late, self._shapes[1]

    @property
    def most_covered(self) -> tuple[Floats, Ints]:
        """[size, which, rank] the most that a cover holds of any chunk, and each layout's size."""
        return self._covers.max(axis=3), self._shapes[1]

    @cached_property
    def _fullest(self) -> Ints:
        return np.stack([shape.fullest for shape in self._shapes[0]])

    @cached_property
    def _covers(self) -> Floats:
        if self.waits_apart:
            return np.stack([each.held for each in self._apart])
        return np.stack([shape.covers for shape in self._shapes[0]])

    @property
    def waits_apart(self) -> bool:
        """Whether what awaits its weight gradient counts apart."""
        return self.prices.waits_apart and self.schedule in V_SHAPED

    @cached_property
    def late(self) -> Floats:
        """[layout, which, rank, chunk] of `covers` the micro-batches that await their weight
        gradient, where they count apart.
        """
        found: Floats = np.stack([each.late for each in self._apart])[self._shapes[1]]
        return found

    @cached_property
    def _apart(self) -> list[Apart]:
        return [apart(self.schedule, self.pp, self.vpp, m) for m in self.sizes[0]]

    @cached_property
    def sizes(self) -> tuple[list[int], Ints]:
        """So many micro-batches as there may be in flight at once, each number once; and [layout]
        which of them it is.
        """
        if len(self.m) == 1:
            return [enough(self.schedule, self.pp, int(self.m[0]))], np.zeros(1, np.int64)
        each, which = numbered(self.m)
        most = [enough(self.schedule, self.pp, m) for m in each.tolist()]
        sizes = sorted(set(most))
        place = {size: at for at, size in enumerate(sizes)}
        return sizes, np.array([place[size] for size in most], np.int64)[which]

    @property
    def chunks_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """The virtual stages of each rank, in model order."""
        return places(self.schedule, self.pp, self.vpp).chunks_of_rank

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The ranks that hold the embedding and the head, and the place of their chunk there."""
        return places(self.schedule, self.pp, self.vpp).ends

    @cached_property
    def _shapes(self) -> tuple[list[PipelineShape], Ints]:
        sizes, which = self.sizes
        return [pipeline_shape(self.schedule, self.pp, self.vpp, m) for m in sizes], which

    @cached_property
    def fastest(self) -> tuple[Ints, Ints]:
        """[layout, kind] ns of a layer in its fastest mode, and the KiB that it saves there."""
        modes, prices = list(self.modes), self.prices
        ns, kib = prices.layer_ns[:, :, modes], prices.layer_saved_kib[:, :, modes]
        least = least_along(ns, 2)
        return least, least_along(np.where(ns == least[:, :, None], kib, ABSENT), 2)

    @cached_property
    def form(self) -> ClosedForm[Ints]:
        """The coefficients of the objective."""
        return self.prices.form(self.schedule, self.pp, self.vpp, self.m)

    @cached_property
    def least_work_ns(self) -> Ints:
        """Lower bound in ns of one micro-batch's pass through all chunks, by layout."""
        c = self.prices
        layers = c.layer_ns[:, :, list(self.modes)].min(2) @ np.array(self.kind_counts)
        total: Ints = layers + c.embedding_ns + c.head_ns + self.chunks * c.send_ns
        return total

    @cached_property
    def least_end_ns(self) -> Ints:
        """Lower bound in ns of costs once per step, the form's constant included, by layout."""
        c = self.prices
        layers = c.layer_step_ns @ np.array(self.kind_counts)
        mean: Ints = -(-(layers + c.embedding_step_ns + c.head_step_ns) // self.pp)
        return mean + c.fixed_step_ns + self.form.constant_ns


SHARED = tuple(f.name for f in fields(Pipelines) if f.name != "prices")
"""What all layouts of a `SamePipeline` have in common."""


def run_as(space: Space, coefficients: Priced, rows: Ints, variant: Variant) -> SamePipeline:
    """`rows` of `space`, which have equally many pipeline ranks, run as `variant`."""
    return priced_as(space, coefficients.take(rows), rows, variant)


def priced_as(space: Space, prices: Coefficients, rows: Ints, variant: Variant) -> SamePipeline:
    """`run_as` of rows that have these `prices`."""
    pp, vpp = int(space.layouts.pipeline_parallel[rows[0]]), variant.virtual_stages
    return SamePipeline(
        prices=prices.recomputing(variant.columns).held_as(variant.schedule),
        m=space.layouts.num_micro_batches[rows].astype(np.int64),  # packed there: sums are not
        schedule=variant.schedule, pp=pp, vpp=vpp, modes=variant.modes,
        pattern=space.stack,
        splits=stack_splits(space.model, space.legality, pp, vpp, space.apart),
        empty_ends=space.legality.layers_count_ends, columns=variant.columns,
        first=variant.first,
    )  # fmt: skip


def end_kib(same: SamePipeline) -> Ints:
    """[layout, rank] KiB of a rank that holds no layer."""
    c = same.prices
    least = least_along(c.transient_kib[:, list(same.modes)], 1)
    static = np.repeat(c.fixed_kib[:, None], same.pp, axis=1)
    transient = np.repeat(least[:, None], same.pp, axis=1)
    (first, at_first), (last, at_last) = same.ends
    held = same.vector_at(first, at_first)
    static[:, first] += c.embedding_state_kib + held * c.embedding_saved_kib
    held = same.vector_at(last, at_last)
    static[:, last] += c.head_state_kib + held * c.head_saved_kib
    transient[:, last] = np.maximum(transient[:, last], c.head_transient_kib)
    found: Ints = static + transient
    return found
