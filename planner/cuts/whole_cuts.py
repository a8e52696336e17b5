"""The least step of some cuts of whole layers of one layout, by cutting planes.

The cut whose longest known chain is shortest is played; its longest chain is known then. Where it
is no longer than what was known, no cut is faster: the known chains bound all others. Chains have
each layer in its fastest mode, so where cuts must recompute this is a bound alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram

ROUNDS, AT_ONCE = 200, 2_000_000  # cuts that are played at most; layers times chains looked at


class WholeCuts:
    """`layers`: [cut, chunk]."""

    def __init__(self, program: FreeCutProgram, layers: Ints) -> None:
        self.program, same = program, program.cuts.same
        kind_at = np.array([[kind == each for each in same.pattern] for kind in program.cuts.kinds])
        until = np.zeros((len(kind_at), len(same.pattern) + 1))
        np.cumsum(kind_at, axis=1, out=until[:, 1:])
        ends = np.cumsum(layers, axis=1)
        counts = until[:, ends] - until[:, ends - layers]
        self.layers = np.moveaxis(counts, 0, 2)  # [cut, chunk, kind]
        self._longest = np.zeros(len(layers))
        self._learn(program.lines)

    def bounds_s(self, limit_s: float) -> Iterator[float]:
        """Lower bounds of all cuts, each by one more that is played; the limit where none is below
        it. The last one is the least step, or what is known of cuts that must recompute.
        """
        for _ in range(ROUNDS):
            at = int(self._longest.argmin())
            known_s = float(self._longest[at])
            yield min(known_s * SAFETY, limit_s)
            if known_s * SAFETY >= limit_s:
                return
            lines = self.program.learnt(self._fastest(at))
            self.program.add(lines)
            self._learn(lines)
            if self._longest[at] <= known_s * (1 + 1e-9):
                return

    def _fastest(self, at: int) -> Floats:
        """[chunk, kind, mode] layers of a cut, each in the mode whose passes take least."""
        cuts, row = self.program.cuts, self.program.row
        passes = np.where(cuts.runs[row], cuts.seconds[row].sum(axis=2), np.inf)
        modes = np.arange(passes.shape[1])
        which = (passes.argmin(axis=1)[:, None] == modes).astype(float)  # [kind, mode]
        fastest: Floats = self.layers[at][:, :, None] * which
        return fastest

    def _learn(self, lines: Sequence[Line]) -> None:
        """The chains of `lines` are known."""
        cuts, row = self.program.cuts, self.program.row
        seconds, fixed = cuts.seconds_of_each(lines)
        least = np.where(cuts.runs[row], seconds[:, row], np.inf).min(axis=3)  # [line, chunk, kind]
        flat, few = self.layers.reshape(len(self.layers), -1), max(1, AT_ONCE // len(lines))
        for first in range(0, len(flat), few):
            some = slice(first, first + few)
            each = flat[some] @ least.reshape(len(lines), -1).T + fixed[:, row]
            self._longest[some] = np.maximum(self._longest[some], each.max(axis=1))
