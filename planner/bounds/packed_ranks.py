"""How many layers each rank holds in steps below a limit, however a layout is cut.

Of every rank r some lines are known (`rank_lines`): the step is at least

    fixed[r] + sum over kinds of layer[r, kind] x (its layers of the kind)

of each chain through the rank, alone or with a price of memory, whatever the other ranks hold.

    whole    a rank holds at most floor((t - fixed) / layer) layers, of the kind that takes least;
             below the t at which these are as many as the model's there is no step
    kinds    where kinds differ that says little. Count a layer of a kind as b[kind]. With any line
             of each rank, and s[r] the most that one second of it is worth,
             s[r] = max over kinds of b / layer,

                 sum of all b  <=  sum over r of s[r] (t - fixed[r])

             so t is at least (sum of all b + sum s fixed) / sum s. The lines that bind most at some
             t are a Newton step, since their minimum is concave in t
"""

from functools import cached_property
from itertools import combinations, product

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.first_chains import Line, first_lines
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.bounds.late import SHOWN
from meshplan.planner.bounds.simulated import SAFETY

HALVINGS = 14  # of the interval between a known bound and the limit
NEWTON = 3  # steps of it
COVERS = 2  # of a rank whose layers are counted: its fullest moment, and a mean of all
ALL_MEMORY = 1e3  # seconds of a KiB
TINY, WHOLE = 1e-30, 1e-9  # seconds of a layer at least; rounding of a number of layers


class PackedRanks:
    """The ranks of the layouts of `cuts`."""

    def __init__(self, cuts: FreeCuts) -> None:
        self.cuts = cuts

    @cached_property
    def rank_lines(self) -> tuple[Floats, Floats]:
        """([row, rank, line], [row, rank, line, kind]) seconds fixed and for each layer of a rank:
        by each of `first_lines` alone, and with prices of memory for which modes cost as much. The
        first line of each rank is its own work, then its prices of memory come.
        """
        cuts, same = self.cuts, self.cuts.same
        shape = same.schedule, same.pp, same.vpp, int(same.m[0])
        found: list[list[tuple[Floats, Floats]]] = [[] for _ in range(same.pp)]
        each_held, each_late = cuts.held()
        for line in first_lines(*shape):
            rank = _busiest(line, cuts.rank_of)
            own = cuts.rank_of == rank
            seconds, fixed = cuts.seconds_of([line], np.ones(1))
            fixed = fixed + self._others_s(seconds, own)
            found[rank].append(self._line(own, seconds, 0.0 * seconds, fixed, 0.0 * fixed))
            if line.late != SHOWN or line.rank != rank:
                continue
            for cover in range(min(COVERS, len(each_held))):
                kib = cuts.kib_of(each_held[cover] * own, each_late[cover] * own, 1.0 * own)
                room = cuts.room_kib[:, cover, rank]
                for price in self._prices(seconds[:, own], kib[:, own]):
                    priced = price[:, None, None, None] * kib
                    found[rank].append(self._line(own, seconds, priced, fixed, price * room))
        most = max(map(len, found))
        for of_rank in found:
            of_rank += of_rank[:1] * (most - len(of_rank))
        fixed = np.array([[line[0] for line in of_rank] for of_rank in found])
        layer = np.array([[line[1] for line in of_rank] for of_rank in found])
        return fixed.transpose(2, 0, 1), layer.transpose(2, 0, 1, 3)

    def _others_s(self, seconds: Floats, own: Bools) -> Floats:
        """[row] the least that the chunks of other ranks add to a chain."""
        cuts = self.cuts
        least = np.where(cuts.runs[:, None], seconds, np.inf).min(axis=(2, 3))[:, ~own]
        added: Floats = np.maximum(least, 0) @ cuts.fewest[~own]
        added += np.minimum(least, 0).sum(axis=1) * cuts.counts.sum()
        return added

    def _line(
        self, own: Bools, seconds: Floats, priced: Floats, fixed: Floats, room_s: Floats
    ) -> tuple[Floats, Floats]:
        each = np.where(self.cuts.runs[:, None], seconds + priced, np.inf)[:, own].min(axis=3)
        least = each.min(axis=1)
        beyond = (each - least[:, None]).min(axis=2)
        return fixed - room_s + beyond @ self.cuts.fewest[own], least

    def _prices(self, seconds: Floats, kib: Floats) -> list[Floats]:
        """[row] seconds of a KiB at which two modes of a kind cost as much, on the first chunk; and
        one at which memory alone counts.
        """
        cuts, found, at = self.cuts, list[Floats](), (slice(None), 0)
        for kind, (a, b) in product(range(len(cuts.kinds)), combinations(range(kib.shape[3]), 2)):
            slower = seconds[*at, kind, b] - seconds[*at, kind, a]
            saved = kib[*at, kind, a] - kib[*at, kind, b]
            runs = cuts.runs[:, kind, a] & cuts.runs[:, kind, b] & (slower * saved > 0)
            found.append(np.where(runs, slower / np.where(runs, saved, 1.0), 0.0))
        return [*found, np.full(len(kib), ALL_MEMORY * cuts.passes.once.mean() + ALL_MEMORY)]

    def most_layers(self, limits_s: Floats) -> Floats:
        """[row, rank] the most layers that a rank holds in steps below the limits; below 0 where
        there are none.
        """
        return self._most(limits_s, slice(None))

    def _most(self, limits_s: Floats, some: Ints | slice) -> Floats:
        fixed, layer = self.rank_lines[0][some], self._least_layer[some]
        beyond = limits_s[:, None, None] / SAFETY - fixed
        most = np.floor(beyond / layer + WHOLE).min(axis=2)
        return np.where((beyond > 0).all(axis=2), np.minimum(most, self.cuts.counts.sum()), -1.0)

    @cached_property
    def _least_layer(self) -> Floats:
        least: Floats = np.maximum(self.rank_lines[1].min(axis=3), TINY)
        return least

    def packed(self, limits_s: Floats) -> Bools:
        """[row] whether ranks can hold all layers in steps below the limits."""
        return self._packed(limits_s, slice(None))

    def _packed(self, limits_s: Floats, some: Ints | slice) -> Bools:
        most, own = self._most(limits_s, some), np.zeros(self.cuts.same.pp)
        np.add.at(own, self.cuts.rank_of, self.cuts.fewest)
        found: Bools = (most >= own).all(axis=1) & (most.sum(axis=1) >= self.cuts.counts.sum())
        return found

    def bounds_s(self, known_s: Floats, limit_s: float) -> Floats:
        """[row] a lower bound of every cut's step, not below the known; the limit where no cut is
        below it.
        """
        low = np.minimum(known_s, limit_s)
        low[~self.packed(np.full(len(low), limit_s))] = limit_s
        if len(self.cuts.kinds) > 1:
            low = np.maximum(low, self.of_kinds_s(limit_s))
        some = np.flatnonzero(low < limit_s)
        high = np.full(len(some), limit_s)
        for _ in range(HALVINGS if len(some) else 0):
            middle = (low[some] + high) / 2
            packed = self._packed(middle, some)
            low[some], high = np.where(packed, low[some], middle), np.where(packed, middle, high)
        return low

    def of_kinds_s(self, limit_s: float) -> Floats:
        """[row] a lower bound of every cut's step, at most the limit: layers of each kind count as
        they do in one line of the mean rank, the line for which that says most.
        """
        fixed, layer = self.rank_lines
        layer, found = np.maximum(layer, TINY), np.zeros(len(fixed))
        for line in range(self._priced_lines):
            worth = layer[:, :, line].mean(axis=1)  # [row, kind]
            rate = (worth[:, None, None] / layer).max(axis=3)  # [row, rank, line]
            step_s = np.full(len(fixed), limit_s)
            for _ in range(NEWTON):
                beyond = (step_s[:, None, None] / SAFETY - fixed) * rate
                at = beyond.argmin(axis=2)[..., None]
                rates = np.take_along_axis(rate, at, 2)[..., 0]
                fixed_s = np.take_along_axis(fixed, at, 2)[..., 0]
                step_s = (worth @ self.cuts.counts + (rates * fixed_s).sum(axis=1)) * SAFETY
                step_s = np.minimum(step_s / rates.sum(axis=1), limit_s)
                found = np.maximum(found, step_s)
        return found

    @cached_property
    def _priced_lines(self) -> int:
        modes = int(self.cuts.runs.shape[2])
        prices = len(self.cuts.kinds) * (modes * (modes - 1) // 2) + 1
        covers: int = min(COVERS, len(self.cuts.held()[0]))
        return 1 + covers * prices


def _busiest(line: Line, rank_of: Ints) -> int:
    """The rank of which a chain has most passes."""
    passes = np.zeros(int(rank_of.max()) + 1)
    np.add.at(passes, rank_of, line.often.sum(axis=1))
    return int(passes.argmax())
