"""What each rank holds at most under mixes of recomputation of one split: `peak_kib` of all ranks
at once, where only the mix changes.
"""

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.problem.recompute_mixes import mixed, prefix
from meshplan.planner.problem.stage_problem import StageProblem


class SplitPeaks:
    """Of a split whose chunks begin with the layers `starts`; the last entry is the end."""

    def __init__(self, problem: StageProblem, starts: list[int]) -> None:
        self.problem = p = problem
        self.first, self.end = np.array(starts[:-1]), np.array(starts[1:])
        self.chunks = np.array(p.chunks_of_rank)
        pattern = list(p.pattern)
        self._saved = prefix(np.array(p.saved_kib)[pattern])
        self._static = p.fixed_kib + self._of_ranks(p.state_kib, p.embedding.state_kib,
                                                    p.head.state_kib)  # fmt: skip
        self._update = self._of_ranks(p.update_kib, p.embedding.update_kib, p.head.update_kib)
        self._ends_transient = np.zeros(p.chunks, np.int64)
        self._ends_transient[0] = p.embedding.transient_kib
        self._ends_transient[-1] = max(self._ends_transient[-1], p.head.transient_kib)
        most = max(len(each) for each in p.shape.matrices)
        self._in_flight = np.stack([
            each[np.minimum(np.arange(most), len(each) - 1)] for each in p.shape.matrices
        ])  # fmt: skip

    def _of_ranks(self, of_kind: tuple[int, ...], embedding: int, head: int) -> Ints:
        """[rank] what its layers and the ends that it holds add up to."""
        sums = prefix(np.array(of_kind)[list(self.problem.pattern)][:, None])[:, 0]
        of_chunk = sums[self.end] - sums[self.first]
        of_chunk[0] += embedding
        of_chunk[-1] += head
        found: Ints = of_chunk[self.chunks].sum(axis=1)
        return found

    def peaks_kib(self, full: Ints, selective: Ints) -> Ints:
        """[.., rank] with so many layers of each chunk, [.., chunk], recomputed in full and
        selectively.
        """
        p, second = self.problem, self.first + full + selective
        kept = mixed(self._saved, self.first, self.first + full, second, self.end)
        kept[..., 0] += p.embedding.saved_kib
        kept[..., -1] += p.head.saved_kib
        transient = self._ends_transient
        for mode, layers in ((2, full), (1, selective), (0, self.end - second)):
            transient = np.maximum(transient, (layers > 0) * p.transient_kib[mode])
        held = np.einsum("rtv,...rv->...rt", self._in_flight, kept[..., self.chunks]).max(axis=-1)
        held += transient[..., self.chunks].max(axis=-1)
        found: Ints = self._static + np.maximum(held, self._update)
        return found
