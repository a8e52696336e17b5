"""Many knapsacks at once: of each chunk of a rank one way is chosen, so that enough is saved.

    least over one way w of each chunk v of     sum over v of weight[v] ns[v, w]
    such that                                   sum over v of grains[v, w] >= GRAINS

Each is a dynamic programme over what is still to be saved, in `GRAINS` equal parts. All of them
take a chunk in the same step, so that a step is a few array operations however many there are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.recompute import GRAINS, grains_of


class Knapsack(NamedTuple):
    """One knapsack, [.., chunk, way]: the ways of each chunk from the fastest to the one that saves
    most, the last repeated where a chunk has fewer ways than others.

    ways    what `choices_of` says of each way, row by row
    grains  what each way saves, never less than the way before it
    """

    ways: Ints
    grains: Ints

    @classmethod
    def of(cls, ways: Ints, held: Floats, lack_kib: float) -> "Knapsack":
        """The knapsack that saves `lack_kib` where each chunk is `held` for so many micro-batches;
        ways that save no more than a faster one are dropped.
        """
        grains = grains_of(held[:, None] * ways[1], lack_kib)
        more = np.ones(grains.shape, bool)
        np.greater(grains[:, 1:], grains[:, :-1], out=more[:, 1:])
        count = more.sum(axis=1)
        first = np.argsort(~more, axis=1, kind="stable")  # those that save more, in their order
        chunk = np.arange(len(grains))[:, None]
        at = first[chunk, np.minimum(np.arange(count.max()), count[:, None] - 1)]
        return cls(ways[:, chunk, at], grains[chunk, at])


class Knapsacks:
    """Knapsacks of equally many chunks."""

    def __init__(self, every: Sequence[Knapsack]) -> None:
        self.every = every
        most = max((each.grains.shape[1] for each in every), default=0)
        self.ns = np.array([_widened(each.ways[0], most) for each in every], float)
        self.shift = GRAINS - np.array([_widened(each.grains, most) for each in every], np.int64)

    def least(self, weights: Floats) -> "Solved":
        """Under `weights` [knapsack, chunk]."""
        number = np.arange(len(self.every))[:, None]
        paid = weights[:, :, None] * self.ns
        known = np.zeros((len(self.every), 2 * GRAINS + 1))
        known[:, GRAINS + 1 :] = np.inf
        tables = [known[:, GRAINS:].copy()]
        if weights.shape[1] > 1:
            tables.append(self._of_first(paid[:, 0]))
            known[:, GRAINS:], known[:, :GRAINS] = tables[-1], tables[-1][:, :1]
        row, cell = known.strides
        # [knapsack, shift, wanted] what is known of wanted parts less `GRAINS` - shift
        windows = as_strided(
            known, (len(known), GRAINS + 1, GRAINS + 1), (row, cell, cell), writeable=False
        )
        for chunk in range(1, weights.shape[1] - 1):
            costs = windows[number, self.shift[:, chunk]]
            costs += paid[:, chunk, :, None]
            tables.append(costs.min(axis=1))
            known[:, GRAINS:] = tables[-1]
            known[:, :GRAINS] = tables[-1][:, :1]
        # With the last chunk all is to be saved.
        all_ = known[number, self.shift[:, -1] + GRAINS] + paid[:, -1]
        return Solved(self.every, weights, tables, all_.min(axis=1))

    def _of_first(self, paid: Floats) -> Floats:
        """[knapsack, parts] what the first chunk alone pays to save so many: the least of the ways
        that save as many or more.
        """
        found = np.full((len(paid), GRAINS + 1), np.inf)
        number = np.arange(len(paid))
        for way in range(paid.shape[1]):
            grains = GRAINS - self.shift[:, 0, way]
            found[number, grains] = np.minimum(found[number, grains], paid[:, way])
        least: Floats = np.minimum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
        return least


def _widened(of_ways: Ints, most: int) -> Ints:
    """The last way again, up to so many."""
    found: Ints = of_ways[:, np.minimum(np.arange(most), of_ways.shape[1] - 1)]
    return found


class Solved(NamedTuple):
    """The answers.

    tables    [knapsack, parts] least ns to save so many with the chunks before each
    least_ns  [knapsack] infinite where too little can be saved
    """

    every: Sequence[Knapsack]
    weights: Floats
    tables: list[Floats]
    least_ns: Floats

    def chosen(self, number: int) -> Ints:
        """[.., chunk] of a knapsack that has an answer the ways chosen, of equals the fastest."""
        (ways, grains), wanted, chosen = self.every[number], GRAINS, list[int]()
        for chunk in reversed(range(len(grains))):
            left = np.maximum(0, wanted - grains[chunk])
            before = self.tables[chunk][number, left]
            chosen.append(int((before + self.weights[number, chunk] * ways[0, chunk]).argmin()))
            wanted = int(left[chosen[-1]])
        found: Ints = ways[:, np.arange(len(grains)), chosen[::-1]]
        return found
