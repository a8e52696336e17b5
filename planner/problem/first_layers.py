"""The mixes with which a cut fits where every virtual stage recomputes equally many of its first
layers in full (`Pipelines.first`).

Such a rule leaves one mix for each number k: stage j recomputes its first min(k, layers of j). A
larger k makes no stage shorter, so of those that fit the least is the fastest, but where longer
backwards hide more of a gradient reduction. It need not be that all larger ones fit too: a layer
that is replayed has a transient of its own.
"""

from collections.abc import Iterator

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StageProblem, starts_of


def fewest_first(problem: StageProblem, counts: tuple[int, ...]) -> tuple[Stage, ...] | None:
    """The stages of `counts` layers in the mix of the rule that recomputes least of those that fit,
    None if none does.
    """
    return next(mixes_that_fit(problem, counts), None)


def mixes_that_fit(problem: StageProblem, counts: tuple[int, ...]) -> Iterator[tuple[Stage, ...]]:
    """The stages of `counts` layers in every mix of the rule that fits, the fewest first."""
    bare = tuple(map(Stage, counts))
    full = np.minimum(np.arange(max(counts) + 1)[:, None], np.array(counts))
    peaks = SplitPeaks(problem, starts_of(bare)).peaks_kib(full, np.zeros_like(full))
    fits = (peaks <= problem.cap_kib).all(axis=1)
    for chosen in full[fits].tolist():
        yield tuple(Stage(n, full_layers=k) for n, k in zip(counts, chosen, strict=True))
