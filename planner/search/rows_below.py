"""The rows that a proof looks at: those whose bound is below a limit, with their passes."""

from dataclasses import replace

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.step.price_passes import PassSeconds, pass_seconds
from meshplan.costmodels.step.setting import Setting
from meshplan.planner.bounds.late import mean_update_s, reduce_lines
from meshplan.planner.search.priced_space import busy_below
from meshplan.planner.search.second_core import blocks, done_of_each
from meshplan.planner.space.legal_layouts import Space

NEARLY = 1.05  # times the best step: runners-up up to here are found surely
BLOCK = 16_384  # rows that are priced and bounded together


def passes_below(
    space: Space, rows: Ints, setting: Setting, limit_s: float
) -> tuple[Ints, PassSeconds]:
    """Those of `rows` whose bound is below the limit, with their passes: in blocks, so that what is
    not kept takes no memory. Most are busy for longer, and their passes are not priced.
    """
    rows = busy_below(space, rows, setting, limit_s)
    firsts = blocks(len(rows), BLOCK)

    def block(first: int) -> tuple[Ints, PassSeconds]:
        some = rows[first : first + firsts.step]
        layouts = space.layouts.take(some)
        passes = pass_seconds(layouts, setting)
        below = np.flatnonzero(bounds_of_rows(replace(space, layouts=layouts), passes) < limit_s)
        return some[below], passes.take(below)

    done = done_of_each(block, firsts)
    kept, parts = np.concatenate([rows for rows, _ in done]), [each for _, each in done]
    done.clear()  # `joined` lets go what it has joined
    return kept, PassSeconds.joined(parts)


def bounds_of_rows(space: Space, passes: PassSeconds) -> Floats:
    """A lower bound of every variant of each row: each rank busy with the mean work."""
    p, layouts, counts = passes, space.layouts, np.array(space.kind_counts)
    modes = sorted({mode for modes in space.mode_classes for mode in space.columns_of(modes)})
    rows, pp, m = np.arange(len(layouts)), layouts.pipeline_parallel, layouts.num_micro_batches
    layer = p.layer_s[:, :, modes].sum(axis=3).min(axis=2)
    work = layer @ counts + p.embedding_s.sum(axis=1) + p.head_s.sum(axis=1)
    each = work / pp + 2 * p.blocking_s + p.micro_batch_s
    late = reduce_lines(p, rows, modes, (layer, m)).mean_s(counts, pp)
    bounds: Floats = m * each + late + mean_update_s(p, rows, counts, pp) + p.step_s
    return bounds
