"""Lower bounds of the simulated step by the whole layers that ranks can hold, however they are cut.

There is a step below which ranks cannot hold all of the model's layers; it is found by halving.
"""

from functools import cached_property

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.bounds.rank_layers import RankLayers

HALVINGS = 14  # of the interval between a known bound and the limit


class PackedCuts(FreeCuts):
    """The cuts of layouts alike, with what whole layers prove of them."""

    @cached_property
    def _rank_layers(self) -> RankLayers:
        shape = self.same.schedule, self.same.pp, self.same.vpp, int(self.same.m[0])
        return RankLayers(self, first_lines(*shape))

    def most_layers(self, limits_s: Floats) -> Floats:
        """[row, rank] the most layers that a rank holds in steps below the limits; below 0 where
        there are none.
        """
        return self._rank_layers.held(limits_s)[0]

    def packed(self, limits_s: Floats) -> Bools:
        """[row] whether ranks can hold all layers in steps below the limits."""
        (most, holds), own = self._rank_layers.held(limits_s), np.zeros(self.same.pp)
        np.add.at(own, self.rank_of, self.fewest)
        found: Bools = (most >= own).all(axis=1) & holds
        return found

    def packing_bounds_s(self, known_s: Floats, limit_s: float) -> Floats:
        """[row] a lower bound of every cut's step by whole layers of ranks, not below the known;
        the limit where no cut is below it.
        """
        low = np.minimum(known_s, limit_s)
        low[~self.packed(np.full(len(low), limit_s))] = limit_s
        if len(self.kinds) > 1:
            low = np.maximum(low, self._rank_layers.of_kinds_s(self.counts, limit_s))
        high = np.full(len(low), limit_s)
        for _ in range(HALVINGS if (low < limit_s).any() else 0):
            middle = (low + high) / 2
            packed = self.packed(middle)
            low, high = np.where(packed, low, middle), np.where(packed, middle, high)
        return low
