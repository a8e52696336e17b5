"""Sums of positive costs fitted to measured times: least absolute *relative* error.

    time ~ columns @ costs, costs >= 0

by iteratively reweighted least squares, so that one wild measurement moves nothing. More work is
never faster, whatever was measured.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

REWEIGHTINGS = 4
DEVIATION = 1.48  # a normal distribution's standard deviation over its median absolute one
SMALLEST_RELATIVE_ERROR = 1e-3  # below it, errors weigh as in least squares


def fit_relative(columns: Floats, times: Floats) -> Floats:
    """The cost of each column, for positive `times` and columns without negative numbers."""
    scale = columns.max(axis=0)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    weights, costs = 1 / times, np.zeros(columns.shape[1])
    for _ in range(REWEIGHTINGS):
        costs = _least_squares(scaled * weights[:, None], times * weights)
        relative = np.abs(scaled @ costs / times - 1)
        weights = 1 / times / np.sqrt(np.maximum(relative, SMALLEST_RELATIVE_ERROR))
    return np.asarray(costs / np.where(scale > 0, scale, 1.0))


def _least_squares(columns: Floats, target: Floats) -> Floats:
    """Least squares with unknowns >= 0: those that come out negative are dropped, worst first."""
    free = np.ones(columns.shape[1], dtype=bool)
    values = np.zeros(columns.shape[1])
    while free.any():
        solution = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
        if (solution >= 0).all():
            values[free] = solution
            break
        free[np.flatnonzero(free)[np.argmin(solution)]] = False
    return values
