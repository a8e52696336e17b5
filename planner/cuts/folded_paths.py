"""The cuts of whole layers of a V shape as paths, rank after rank, and means of chains over them.

`planner.bounds.folded.cuts` finds the ways of each rank that are below a limit by the chains that
every step has. A cut is a path through these ways, and a mean of chains is a sum along it. So its
least sum is a bound of every cut, for any weights of the chains (`planner.cuts.path_game`).
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.path_game import PathGame

AT_ONCE = 1_500_000  # ways of one rank that are looked at
TOGETHER = 50_000  # sums of ways that are compared at once: no array is large, nor are there many


class Sums(NamedTuple):
    """Of means of chains: of each rank [mean, edge] seconds, and [mean, place] the least behind it;
    and [mean] the rest.
    """

    seconds: list[Floats]
    ahead: list[Floats]
    fixed: Floats


class FoldedPaths(PathGame):
    """Those of the only layout of `program`; `mean`: chains with prices of memory.

    work   ways that were looked at
    """

    def __init__(self, program: FreeCutProgram, folded: FoldedCuts, mean: MeanOfRows) -> None:
        super().__init__(program, mean)
        self.folded, self.edges = folded, folded.edges()
        self.work = sum(len(edge.of) for edge in self.edges)
        self._first = [np.flatnonzero(np.diff(edge.of, prepend=-1)) for edge in self.edges]

    def sums(self, mean: MeanOfRows) -> Sums:
        """The sums of means of chains, of which each is a row."""
        seconds, rows = self._seconds_of(mean), len(mean.fixed)
        left = [np.zeros((rows, self.edges[-1].many))]
        self.work += rows * sum(len(edge.of) for edge in self.edges)
        for before, edge, first, each in zip(
            self.edges[-2::-1], self.edges[:0:-1], self._first[:0:-1], seconds[:0:-1], strict=True
        ):
            least = np.full((rows, before.many), np.inf)
            every = each + left[-1][:, edge.to]
            least[:, edge.of[first]] = np.minimum.reduceat(every, first, axis=1)
            left.append(least)
        return Sums(seconds, left[::-1], mean.fixed)

    def _seconds_of(self, mean: MeanOfRows) -> list[Floats]:
        """Of each rank [mean, edge] seconds."""
        return self.folded.seconds_of(self.edges, mean)

    def shortest(self, mean: MeanOfRows) -> tuple[float, Ints]:
        """The least sum of a mean of chains, and [chunk] the layers of its path."""
        total, ways = self._least(self.sums(mean))
        return total, self.layers(np.array([ways]))[0]

    def _least(self, sums: Sums) -> tuple[float, list[int]]:
        """The least sum of the first mean, and of each rank the edge of its path."""
        at, total, ways = 0, 0.0, list[int]()
        for edge, each, ahead in zip(self.edges, sums.seconds, sums.ahead, strict=True):
            first, last = np.searchsorted(edge.of, [at, at + 1])
            left = each[0, first:last] + ahead[0, edge.to[first:last]]
            way = first + int(left.argmin())
            total, at = total + float(each[0, way]), int(edge.to[way])
            ways.append(way)
        return total + float(sums.fixed[0]), ways

    def below(self, every: Sums, limit_s: float, most: int) -> Ints | None:
        """[cut, rank] the edges of all cuts whose sums are below a limit; None where there are more
        than `most`.
        """
        room = limit_s / SAFETY - every.fixed
        at, edges = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
        sums = np.zeros((len(room), 1))
        for rank, edge in enumerate(self.edges):
            first, last = (np.searchsorted(edge.of, at, side=s) for s in ("left", "right"))
            many = last - first
            if many.sum() > AT_ONCE:
                return None
            before = np.repeat(np.arange(len(at)), many)
            way = np.arange(len(before)) - np.repeat(np.cumsum(many) - many - first, many)
            seconds = every.seconds[rank]
            least = seconds + every.ahead[rank].take(edge.to, axis=1)  # from each edge on
            before, way = self._kept(before, way, sums, least, room)
            if len(way) > most:
                return None
            sums = sums[:, before] + seconds[:, way]
            at, edges = edge.to[way], np.concatenate([edges[before], way[:, None]], axis=1)
        return edges

    def _kept(
        self, before: Ints, way: Ints, sums: Floats, least: Floats, room: Floats
    ) -> tuple[Ints, Ints]:
        """Those ways, and what is before them, that leave room in every mean."""
        done = 0
        while done < len(room) and len(way):
            few = slice(done, done + max(1, TOGETHER // len(way)))
            length = sums[few].take(before, axis=1) + least[few].take(way, axis=1)
            self.work += length.size
            some = np.flatnonzero((length < room[few, None]).all(axis=0))
            before, way, done = before.take(some), way.take(some), done + len(length)
        return before, way

    def places(self, edges: Ints) -> list[Ints]:
        """Of each rank [4, cut] where its chunks begin and end, as in `Edges`."""
        return [edge.places[:, way] for edge, way in zip(self.edges, edges.T, strict=True)]

    def layers(self, edges: Ints) -> Ints:
        """[cut, chunk] layers."""
        held = [(each[[1, 3]] - each[[0, 2]]).T for each in self.places(edges)]
        return _in_order(np.stack(held, axis=1))


def _in_order(held: Ints) -> Ints:
    """[cut, chunk] of layers [cut, rank, chunk of the rank]."""
    return np.hstack([held[:, :, 0], held[:, ::-1, 1]])
