"""The ways to recompute layers of one chunk, and what they save as parts of what a rank lacks."""

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.problem.coefficients import ABSENT
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StageProblem

GRAINS = 512  # savings are rounded up to such a part, so that a bound is a little low, never high
Counts = tuple[int, ...]


def choices_of(problem: StageProblem, kinds: Counts, allowed: Counts) -> Ints:
    """The ways to run a chunk's layers of `kinds` that save more than all that are faster.

    Rows are ns beyond the fastest, KiB saved beside it, layers recomputed in full, selectively.
    """
    ns, saved = (np.array(table)[list(kinds)] for table in (problem.layer_ns, problem.saved_kib))
    modes = list(problem.modes)
    least = ns[:, modes].min(axis=1, keepdims=True)
    kept = np.where(ns[:, modes] == least, saved[:, modes], ABSENT).min(axis=1, keepdims=True)
    full, selective, _ = mixes(len(kinds), allowed, problem.transient_kib)
    more_ns, less_kib = (
        mixed(prefix(table), 0, full, full + selective, len(kinds))
        for table in (ns - least, kept - saved)
    )
    ways = np.stack([more_ns, np.maximum(0, less_kib), full, selective])
    ways = ways[:, np.lexsort((-ways[1], ways[0]))]
    better = np.diff(np.maximum.accumulate(ways[1]), prepend=-1) > 0
    found: Ints = ways[:, better]
    return found


def grains_of(saved_kib: Floats, lack_kib: float) -> Ints:
    """`GRAINS`-ths of what a rank lacks, rounded up."""
    if lack_kib <= 0:
        return np.full(saved_kib.shape, GRAINS)
    grains: Ints = np.ceil(np.minimum(1.0, saved_kib / lack_kib) * GRAINS).astype(np.int64)
    return grains
