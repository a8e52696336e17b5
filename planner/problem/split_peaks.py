"""What each rank holds at most under mixes of recomputation of one split: `peak_kib` of all ranks
at once, where only the mix changes.
"""

from collections.abc import Sequence

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.problem.recompute_mixes import mixed, prefix
from meshplan.planner.problem.stage_problem import StageProblem


class SplitPeaks:
    """Of a split whose chunks begin with the layers `starts`, or of several, [.., chunk]; the last
    entry is the end.

    static_kib, update_kib   [.., rank] held always; held besides in the optimizer step
    ends_transient_kib       [chunk] of the head; an embedding has none
    """

    def __init__(self, problem: StageProblem, starts: Sequence[int] | Ints) -> None:
        self.problem, each = problem, np.array(starts)
        p, self.first, self.end = problem, each[..., :-1], each[..., 1:]
        self.chunks = np.array(p.chunks_of_rank)
        pattern = list(p.pattern)
        self._saved = prefix(np.array(p.saved_kib)[pattern])
        self.static_kib = p.fixed_kib + self._of_ranks(p.state_kib, p.embedding.state_kib,
                                                    p.head.state_kib)  # fmt: skip
        self.update_kib = self._of_ranks(p.update_kib, p.embedding.update_kib, p.head.update_kib)
        self.ends_transient_kib = np.zeros(p.chunks, np.int64)
        self.ends_transient_kib[-1] = p.head.transient_kib
        most = max(len(each) for each in p.shape.matrices)
        self._in_flight = np.stack([
            each[np.minimum(np.arange(most), len(each) - 1)] for each in p.shape.matrices
        ])  # fmt: skip

    def _of_ranks(self, of_kind: tuple[int, ...], embedding: int, head: int) -> Ints:
        """[.., rank] what its layers and the ends that it holds add up to."""
        sums = prefix(np.array(of_kind)[list(self.problem.pattern)][:, None])[:, 0]
        of_chunk = sums[self.end] - sums[self.first]
        of_chunk[..., 0] += embedding
        of_chunk[..., -1] += head
        found: Ints = of_chunk[..., self.chunks].sum(axis=-1)
        return found

    def kept_kib(self, chunk: Ints, full: Ints, selective: Ints) -> Ints:
        """What each `chunk` keeps of a micro-batch with so many layers recomputed."""
        first = self.first[..., chunk]
        cut = first + full
        kept = mixed(self._saved, first, cut, cut + selective, self.end[..., chunk])
        kept += (chunk == 0) * self.problem.embedding.saved_kib
        kept += (chunk == self.problem.chunks - 1) * self.problem.head.saved_kib
        return kept

    def peaks_kib(self, full: Ints, selective: Ints) -> Ints:
        """[.., rank] with so many layers of each chunk, [.., chunk], recomputed in full and
        selectively.
        """
        p, chunks = self.problem, np.arange(self.first.shape[-1])
        kept, second = self.kept_kib(chunks, full, selective), self.first + full + selective
        transient = self.ends_transient_kib
        for mode, layers in ((2, full), (1, selective), (0, self.end - second)):
            transient = np.maximum(transient, (layers > 0) * p.transient_kib[mode])
        held = np.einsum("rtv,...rv->...rt", self._in_flight, kept[..., self.chunks]).max(axis=-1)
        held += transient[..., self.chunks].max(axis=-1)
        found: Ints = self.static_kib + np.maximum(held, self.update_kib)
        return found
