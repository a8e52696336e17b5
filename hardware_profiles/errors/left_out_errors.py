"""Errors of left-out runs, how much each counts, and their percentile: the arithmetic of
`hardware_profiles.errors.intervals`, whose page has the equations.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.hardware_profiles.engines import fitted_as
from meshplan.hardware_profiles.errors.left_out_runs import Ratio

COVERAGE = 0.8
ENOUGH, BORROWED, SAME_ENGINE = 15.0, 4.0, 2.0
WITHIN = {"step_time": 0.35, "reserved": 0.02}
"""Correlation, within a source, of being farther off than 80 % of all runs. Of step times as first
predicted 0.34 over 127 sources of 23 to 28 November 2026 by analysis of variance, 0.37 over the 45
until the 26th and 0.34 over the others (`python -m benchmarks.accuracy.backtest`). No first
prediction of memory was kept: its figure is chosen so that 8 of 10 left-out runs are inside.
"""

Vector = NDArray[np.float64]


class Like(NamedTuple):
    """What of a prediction decides how much a run counts for it.

    narrow  in 8 bits or fewer
    other   how much runs count of the other precision or of another kind of model
    """

    engine: str
    gpu: str
    model: str
    narrow: bool
    other: float


def is_narrow(precision: str) -> bool:
    """Whether matrix products run in 8 bits or fewer."""
    return precision not in ("bf16", "fp16", "fp32")


class Spread(NamedTuple):
    """How the errors of a kind of model lie.

    skew   the slow side reaches its square as far as the fast side, in logarithms
    scale  how far errors reach, 1 for dense models
    """

    skew: float = 1.0
    scale: float = 1.0


ALIKE = Spread()


def errors_of(ratios: Sequence[float], skews: Sequence[float]) -> Vector:
    """|ln| of each, of those above 1 divided by its skew, of the others times it."""
    logs, by = np.log(np.array(ratios, dtype=np.float64)), np.array(skews, dtype=np.float64)
    return np.maximum(logs / by, -logs * by)


def first_errors(
    runs: Sequence[Ratio], what: str, first: Mapping[str, float], spreads: Mapping[str, Spread]
) -> Vector:
    """Of each run the first error where it is known, else today's."""
    ratios = [first.get(run.run, float(getattr(run, what))) for run in runs]
    return errors_of(ratios, [spreads.get(run.model, ALIKE).skew for run in runs])


def farther_of(runs: Iterable[Ratio], model: str, spreads: Mapping[str, Spread]) -> Vector:
    """How much farther off each would be if it were of this kind of model; none nearer."""
    reach = spreads.get(model, ALIKE).scale
    return np.array([max(reach / spreads.get(run.model, ALIKE).scale, 1.0) for run in runs])


def percentile(errors: Vector, weights: Vector, *, farther: bool = True) -> float:
    """The weighted 80th; `farther`: counting one more of weight 1 that is farther off than all."""
    order = np.argsort(errors)
    reached = np.cumsum(weights[order]) / (weights.sum() + farther)
    place = min(int(np.searchsorted(reached, COVERAGE - 1e-9)), len(errors) - 1)
    return float(errors[order][place])


def own_weights(own: Sequence[Ratio], what: str) -> Vector:
    """m runs of one source count together as m / (1 + r (m - 1)) (Kish's design effect), a run that
    was left out in two ways as one.
    """
    ways = Counter((ratio.suite, ratio.run) for ratio in own)
    runs = Counter(suite for suite, _ in ways)
    return np.array([
        1 / ways[ratio.suite, ratio.run] / (1 + WITHIN[what] * (runs[ratio.suite] - 1))
        for ratio in own
    ])  # fmt: skip


def lent_weights(sources: Sequence[Ratio], like: Like, own: float) -> Vector:
    """Each source on a GPU family alike but for those of the same engine or unlike; beside `own`
    runs together what they lack to `ENOUGH`, at least `BORROWED`; alone as many as there are.
    """
    name = fitted_as(like.engine)
    rows = Counter((ratio.suite, ratio.engine, ratio.gpu) for ratio in sources)
    weights = np.array([
        (SAME_ENGINE if fitted_as(ratio.engine) == name else 1.0)
        / rows[ratio.suite, ratio.engine, ratio.gpu]
        for ratio in sources
    ])  # fmt: skip
    total = max(BORROWED, ENOUGH - own) if own else len(rows)
    return scaled(weights * alike(sources, like), total)


def alike(runs: Iterable[Ratio], like: Like) -> Vector:
    """1 of each, `other` where the kind of model differs, and again where the precision does."""
    return np.array([
        (1.0 if run.model == like.model else like.other)
        * (1.0 if is_narrow(run.precision) == like.narrow else like.other)
        for run in runs
    ])  # fmt: skip


def sources_alike(sources: Sequence[Ratio]) -> Vector:
    """Each source as 1."""
    rows = Counter(ratio.suite for ratio in sources)
    return np.array([1 / rows[ratio.suite] for ratio in sources])


def scaled(weights: Vector, total: float) -> Vector:
    """Adding up to `total`."""
    scale = total / float(weights.sum()) if len(weights) else 1.0
    return weights * scale
