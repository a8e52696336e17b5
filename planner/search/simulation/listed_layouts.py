"""The layouts whose cuts a list limits, in groups that the bound of every cut looks at together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Bools, Floats, Ints, each_once
from meshplan.planner.bounds.free_cuts import ENDLESS_S
from meshplan.planner.bounds.packed_cuts import PackedCuts
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.bounds.whole_kinds import can_hold_whole, dearer
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.pipeline_shape import pipeline_shape
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, modes_of
from meshplan.planner.search.rows.least_held import LeastHeld
from meshplan.planner.search.rows.rows_below import bounds_of_each
from meshplan.planner.search.simulation.alike_layouts import Alike, alone
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.stage_splits import lists_all

BLOCK = 1_024  # rows whose memory is looked at together
MOST_ROWS = 32_768  # that are looked at
LET_GO, EACH = 15_000, 4  # units of work of layouts whose work is looked at, and of each rank


def looked_at(proof: Simulated, rows: Ints) -> Ints:
    """Those of `rows` with the smallest bounds: as many as memory allows, none once it is late, and
    none that keeps activations on the host, whose memory is priced alone.
    """
    if proof.tally.late:
        return rows[:0]
    some = rows[proof.space.layouts.activation_offload[rows] == 0]
    order = np.argsort(proof.open.row_bounds[some], kind="stable")
    return np.sort(some[order[:MOST_ROWS]])


class ListedLayouts:
    """Those of some `rows` of `proof`."""

    def __init__(self, proof: Simulated, rows: Ints) -> None:
        self.proof, self.rows = proof, rows
        self._prices = self._least_held()

    def groups(self, below_s: float) -> Iterator[Alike]:
        """Those below a limit by the bounds of their rows, which are alike together."""
        space, bounds = self.proof.space, dict[tuple[int, ...], Floats]()
        layers = sum(space.kind_counts)
        for variant, same in space.by_variant(self.rows):
            modes = tuple(variant.columns[mode] for mode in variant.modes)
            if modes not in bounds:
                bounds[modes] = bounds_of_each(space, self.proof.passes, self.rows, list(modes))
            same = same[bounds[modes][same] < below_s]
            if not len(same):
                continue
            pp, vpp = int(space.layouts.pipeline_parallel[same[0]]), variant.virtual_stages
            if vpp == 1 or lists_all(space.model, space.legality, pp, vpp):
                continue
            m = space.layouts.num_micro_batches[same]
            for number in each_once(m).tolist():
                some, shape = same[m == number], (variant.schedule, pp, vpp, int(number))
                yield Alike(variant, shape, some, bounds[modes][some], layers)

    def below(self, every: Sequence[Alike], below_s: float) -> Iterator[Alike]:
        """Of `every` what is below a limit, and may hold all layers."""
        for each in every:
            rows = each.rows[each.bounds < below_s]
            if len(rows):
                parts = [rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK)]
                rows = rows[np.concatenate([self._holds(part, each, below_s) for part in parts])]
            if len(rows):
                bounds = each.bounds[np.searchsorted(each.rows, rows)]
                yield Alike(each.variant, each.shape, rows, bounds, each.layers)

    def let_go(self, every: Sequence[Alike], below_s: float) -> int:
        """Bound what ranks cannot do below a limit, counted in whole layers, by that limit; the
        units of work that it took. It is the same in all schedules and chunks that have the ends of
        the model on the same ranks.
        """
        alike, work = dict[tuple[object, ...], list[Alike]](), 0
        for each in every:
            (first, _), (last, _) = pipeline_shape(*each.shape).ends
            modes = tuple(each.variant.columns[mode] for mode in each.variant.modes)
            key = modes, each.shape[1], each.shape[3], first, last
            if (each.bounds < below_s).any():
                alike.setdefault(key, []).append(each)
        for same in alike.values():
            rows = np.unique(np.concatenate([x.rows[x.bounds < below_s] for x in same]))
            can = self._can_work(rows, same[0], below_s)
            for each in same:
                none = np.isin(each.rows, rows[~can])
                each.bounds[none] = np.maximum(each.bounds[none], below_s)
                each.changed()
            work += LET_GO + EACH * len(rows) * same[0].shape[1]
        return work

    def _can_work(self, rows: Ints, like: Alike, below_s: float) -> Bools:
        """Whether the ranks of layouts can do the work of whole layers below a limit."""
        shape, p, every = like.shape, self.proof.passes, self.proof.space.kind_counts
        kinds = [kind for kind, count in enumerate(every) if count]
        modes = [like.variant.columns[mode] for mode in like.variant.modes]
        layer_s = p.layer_s[rows][:, kinds][:, :, modes].sum(axis=3).min(axis=2) * shape[3]
        layer_s = np.minimum(layer_s, ENDLESS_S)
        room_s = np.repeat((below_s / SAFETY - p.step_s[rows])[:, None], shape[1], axis=1)
        ends = pipeline_shape(*shape).ends
        for (rank, _), end_s in zip(ends, (p.embedding_s, p.head_s), strict=True):
            room_s[:, rank] -= (end_s[rows].sum(axis=1) + p.blocking_s[rows]) * shape[3]
        return can_hold_whole(layer_s, np.array([every[kind] for kind in kinds]), room_s)

    def of_the_best(self, every: Sequence[Alike]) -> Alike | None:
        """The best plan's layout alone, where a list limits its cuts."""
        best = self.proof.ranked()[0]
        return alone(every, best.variant, self.proof.row_of(best))

    def cuts(self, variant: Variant, rows: Ints, vpps: Ints | None = None) -> PackedCuts:
        """The cuts of some rows that are run as one variant; or but for the chunks of each rank."""
        same = replace(run_as(self.proof.space, self._prices, rows, variant), vpps=vpps)
        return PackedCuts(same, self.proof.passes, rows)

    def _holds(self, rows: Ints, like: Alike, below_s: float) -> Bools:
        """Whether the ranks of layouts hold all layers if each keeps them in the chunk that holds
        the fewest micro-batches, with no room for passes; and do their work below a limit.
        """
        variant, shape = like.variant, like.shape
        held, c, space = pipeline_shape(*shape), self._prices.take(rows), self.proof.space
        modes = [variant.columns[mode] for mode in variant.modes]
        kinds = [kind for kind, count in enumerate(space.kind_counts) if count]
        saved = c.layer_saved_kib[:, kinds][:, :, modes].min(axis=2).astype(float)
        room = np.repeat((c.cap_kib - c.fixed_kib)[:, None].astype(float), shape[1], axis=1)
        (first, _), (last, _) = held.ends
        room[:, first] -= c.embedding_state_kib
        room[:, last] -= c.head_state_kib
        fewest = held.covers.min(axis=2)  # [cover, rank]
        each = saved[:, :, None, None] * fewest + c.layer_state_kib[:, kinds, None, None]
        work_s = self.proof.passes.layer_s[rows][:, kinds][:, :, modes].sum(axis=3).min(axis=2)
        each, room = np.maximum(np.moveaxis(each, 1, 3), 1e-9), room[:, None]
        counts = np.array([space.kind_counts[kind] for kind in kinds])
        found = np.ones(len(rows), bool)
        for some, number in dearer(each, counts):
            most = np.floor(room / each[..., some].min(axis=3)).min(axis=1)
            in_time = np.floor(below_s / SAFETY / (work_s[:, some].min(axis=1) * shape[3]))
            most = np.minimum(most, in_time[:, None])
            found &= (most >= 0).all(axis=1) & (np.clip(most, 0, number).sum(axis=1) >= number)
        return found

    def _least_held(self) -> Priced:
        """Prices whose memory is not above what ranks hold."""
        proof = self.proof
        if not proof.setting.engine.kernels.counts_passes:
            return proof.open.prices
        return LeastHeld(proof.prices, proof.space.layouts, proof.setting, self.rows)


def plan_of(problem: StageProblem, layers: Floats | Ints) -> StagePlan | None:
    """The plan of a cut, [chunk, mode] layers; None where it does not fit."""
    of_mode = dict(zip(problem.modes, layers.T.tolist(), strict=True))
    none = [0] * len(layers)
    each = zip(layers.sum(axis=1).tolist(), *(of_mode.get(x, none) for x in (1, 2)), strict=True)
    return evaluate(problem, tuple(Stage(*map(int, stage)) for stage in each))


def layers_of(stages: tuple[Stage, ...], modes: tuple[int, ...]) -> Ints:
    """[chunk, mode] layers of a cut: what `plan_of` takes."""
    each = [[modes_of(stage).count(mode) for mode in modes] for stage in stages]
    return np.array(each)
