"""V > 1: the least time of all rows together, one whole layer at a time.

A row of S chunks lasts X: each of its chunks holds the whole layers that fit into X, the first of
all besides the embedding, the last besides the head. The engine's own splits say how many each
holds; any split is bounded by the best choice of X for the first row and the last, and equal
layers in all others:

    rows >= X_first + X_last + t max(V - 2, (L - held in both) / S rounded up)

`planner.packing` bounds whole ranks, where a rank with a long end holds fewer layers in its other
chunks; a row cannot make up for its end elsewhere. Memory is left to it. Letters as in
`planner.closed_form`; t is the fastest layer. Several kinds are bounded by the same two stacks of
equal layers as there.
"""

import math

import numpy as np

from costmodels.grid import Ints
from planner.packing import SAFETY, stacks
from planner.split_bound import rows_of_splits
from planner.stage_problem import StageProblem


def chunk_bound(problem: StageProblem, below: int | None) -> float:
    """A lower bound of the objective with several chunks; infinite: no plan (below `below`)."""
    form = problem.form
    rest = int(form.share_ns(problem.least_work_ns)) + problem.least_end_ns
    limit_ns = math.inf if below is None else (below - rest) / form.weight
    known = problem.splits is not None
    slowest = rows_of_splits(problem, limit_ns) if known else _rows_of_any(problem)
    return (form.weight * slowest + rest) * SAFETY


def _rows_of_any(problem: StageProblem) -> int:
    if len(problem.shape.waits) == 1:
        return 0  # V shapes wait for whole ranks
    return max(_rows_of_equal(problem, kinds) for kinds in stacks(problem.kind_counts))


def _rows_of_equal(problem: StageProblem, kinds: list[int]) -> int:
    """The same of equal layers, each as fast as the fastest of `kinds`."""
    layer = max(1, min(problem.layer_ns[k][r] for k in kinds for r in problem.modes))
    layers, pp, others = sum(problem.kind_counts[k] for k in kinds), problem.pp, problem.vpp - 2
    first, held_first = _row_with_end(problem.embedding.ns, layer, layers, pp)
    last, held_last = _row_with_end(problem.head.ns, layer, layers, pp)
    left = np.maximum(0, layers - held_first[:, None] - held_last[None, :])
    middle = -(-left // pp)
    total = first[:, None] + last[None, :] + layer * middle
    if others == 0:
        total = total[middle == 0]
    elif len(kinds) == len(problem.kind_counts):  # no row of these layers alone is empty
        total = np.maximum(total, first[:, None] + last[None, :] + layer * others)
    return int(total.min()) + problem.vpp * problem.send_ns


def _row_with_end(end_ns: int, layer: int, layers: int, pp: int) -> tuple[Ints, Ints]:
    """How long a row with an end may last, and the layers that it then holds."""
    n = np.arange(layers // (pp - 1) + 2)
    longest = np.unique(np.concatenate([n * layer, end_ns + n * layer]))
    longest = longest[longest >= end_ns]
    held: Ints = (pp - 1) * (longest // layer) + (longest - end_ns) // layer
    return longest, held
