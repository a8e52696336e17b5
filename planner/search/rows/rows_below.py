"""The rows that a proof looks at: those whose bound is below a limit, with their passes."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from meshplan.costmodels.elementwise import least_along
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.prices.passes import PassSeconds, pass_seconds
from meshplan.costmodels.seconds.chunk_traffic import beside_chunks
from meshplan.costmodels.setting import Setting
from meshplan.planner.bounds.late import mean_update_s, reduce_lines
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.processes.free_pages import give_back_freed
from meshplan.planner.processes.second_core import blocks, done_of_each
from meshplan.planner.search.rows.dominated import dominated
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.search.rows.priced_space import as_simulated
from meshplan.planner.search.rows.row_prices import GLANCE
from meshplan.planner.space.legal_layouts import Space
from meshplan.planner.space.legal_schedules import most_chunks

NEARLY = 1.05  # times the best step: runners-up up to here are looked for, as the budget goes
BLOCK = 32_768  # rows that are priced and bounded together
BOUNDED = 8_192  # that are bounded together once they are priced


class RowsBelow(NamedTuple):
    """Rows, their passes, and their prices with the seconds of these passes."""

    rows: Ints
    passes: PassSeconds
    prices: Coefficients

    def take(self, places: Ints) -> "RowsBelow":
        """Some of them."""
        return RowsBelow(self.rows[places], self.passes.take(places), self.prices.take(places))


class Source(Protocol):
    """What rows are looked for among."""

    def below(self, limit_s: float) -> Ints:
        """The rows that may be faster, by what costs little."""
        ...

    def that_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may fit."""
        ...

    def of_each(self, rows: Ints) -> Coefficients:
        """The prices of `rows`, which may fit."""
        ...


class Given(NamedTuple):
    """Just these rows."""

    rows: Ints
    prices: Priced

    def below(self, limit_s: float) -> Ints:
        """All of them."""
        return self.rows

    def that_fit(self, rows: Ints) -> Ints:
        """All of `rows`."""
        return rows

    def of_each(self, rows: Ints) -> Coefficients:
        """Their prices."""
        return self.prices.take(rows)


def rows_below(
    space: Space, source: Source, setting: Setting, limit_s: float, planned: Iterable[int] = ()
) -> RowsBelow:
    """The rows of `source` whose bound is below the limit: in blocks, so that what is not kept
    takes no memory. Of rows of one kind in a block those stay that no other one of them beats
    (`planner.search.rows.dominated`), and those that are `planned`.
    """
    known = np.array(sorted(set(planned)), np.int64)
    rows = source.below(limit_s)
    is_long = len(rows) > 2 * BLOCK
    if is_long:  # few of them may fit, and a block of prices has a cost of its own
        many = blocks(len(rows), GLANCE)
        parts = [rows[first : first + many.step] for first in many]
        rows = np.concatenate(done_of_each(source.that_fit, parts))
        give_back_freed()
    firsts = blocks(len(rows), BLOCK)

    def block(first: int) -> RowsBelow:
        some = rows[first : first + firsts.step]
        some = some if is_long else source.that_fit(some)
        part, prices = space.take(some), source.of_each(some)
        passes = pass_seconds(part.layouts, setting)
        below = np.flatnonzero(bounds_of_rows(part, passes) < limit_s)
        passes = passes.take(below)
        found = RowsBelow(some[below], passes, as_simulated(prices.take(below), passes))
        beaten = _beaten_in_kind(space.take(found.rows), found, setting)
        return found.take(np.flatnonzero(~beaten | np.isin(found.rows, known, kind="table")))

    done = done_of_each(block, firsts)
    kept = np.concatenate([each.rows for each in done])
    passes, priced = [each.passes for each in done], [each.prices for each in done]
    done.clear()  # `joined` lets go what it has joined
    joined = Coefficients.joined(_each_released(priced)).packed()
    found = RowsBelow(kept, PassSeconds.joined(passes), joined)
    if is_long:
        give_back_freed()
    return found


def _beaten_in_kind(space: Space, found: RowsBelow, setting: Setting) -> Bools:
    """Which rows of `found`, those of `space`, another one of the same kind beats."""
    layouts, rows = space.layouts, np.arange(len(space.layouts))
    kind = (layouts.tensor_parallel, layouts.context_parallel, layouts.expert_parallel)
    prices: Priced = found.prices
    if setting.has_several_kinds:
        prices = LeastOfKinds(prices, layouts, setting, rows)
    return dominated(space, found.passes, prices, rows, kind)


def _each_released(parts: list[Coefficients]) -> Iterator[Coefficients]:
    """Each of `parts`, which is let go."""
    while parts:
        yield parts.pop(0)


def bounds_of_each(
    space: Space, passes: PassSeconds, some: Ints, columns: list[int] | None = None
) -> Floats:
    """[row] `bounds_of_rows` of `some` of them, of others infinite: in blocks, because what is made
    of a row meanwhile is more than what is kept of it.
    """
    found = np.full(len(space.layouts), np.inf)
    for first in range(0, len(some), BOUNDED):
        rows = some[first : first + BOUNDED]
        found[rows] = bounds_of_rows(space.take(rows), passes.take(rows), columns)
    return found


def bounds_of_rows(space: Space, passes: PassSeconds, columns: list[int] | None = None) -> Floats:
    """A lower bound of every variant and cut of each row: the mean over the ranks of the mean work
    and the way down to them, on which each rank before does the first forward of a layer at least;
    `columns` of recomputation that layers may be in, if not those of all variants.
    """
    p, layouts, counts = passes, space.layouts, np.array(space.kind_counts)
    modes = columns or space.mode_columns
    rows, pp, m = np.arange(len(layouts)), layouts.pipeline_parallel, layouts.num_micro_batches
    layer = least_along(p.layer_s[:, :, modes].sum(axis=3), 2)
    work = layer @ counts + p.embedding_s.sum(axis=1) + p.head_s.sum(axis=1)
    each = work / pp + 2 * p.blocking_s + p.micro_batch_s
    hides = most_passes_beside(space, passes)
    late = reduce_lines(p, rows, modes, (layer, m), hides).mean_s(counts, pp)
    bounds: Floats = m * each + late + mean_update_s(p, rows, counts, pp, hides) + p.step_s
    forward = p.layer_s[:, :, modes, 0].min(axis=(1, 2))
    later = (pp - 1) / 2  # the ranks before the mean rank
    first = later * 2 / pp  # the ranks behind the first, of all
    layers = later - first * space.legality.layers_count_ends
    bounds += layers * forward + later * (p.blocking_s + p.hop_s) + first * p.embedding_s[:, 0]
    return bounds


def most_passes_beside(space: Space, passes: PassSeconds) -> Floats:
    """[row] `Beside.passes` under any of its variants, at most: with the most chunks."""
    layouts, interleaved = space.layouts, "interleaved_1f1b"
    pp, m = layouts.pipeline_parallel.astype(float), layouts.num_micro_batches.astype(float)
    legal = interleaved in space.legality.schedules and space.pins.allows("schedule", interleaved)
    most = most_chunks(space.model, space.legality, layouts.pipeline_parallel.astype(np.int64))
    beside = beside_chunks(passes.beside_chunks and legal, interleaved, pp, most, m)
    return np.where(layouts.virtual_stages == 1, 1.0, beside.passes)
