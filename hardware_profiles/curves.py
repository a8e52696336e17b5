"""Seconds of one collective by message size: a broken line, fitted robustly.

    seconds(x) = latency_s[i] + x / bandwidth_bytes_per_s[i]        in regime i

    x        bytes of the whole array
    regimes  small (all latency), middle, large; neighbours meet where their lines cross, so the
             lines alone are the fit. A line's latency_s is its value at zero bytes, of which only
             the first regime's has a meaning: it is never negative
    fit      least absolute *relative* error (`robust`) over all pairs of knots among the sizes;
             slopes are never negative: more bytes are never faster

Beyond the largest size the last line goes on, below the smallest the first one.
Leaves out: the noise between two runs (the `spread` of a point), and sizes where NCCL changes its
algorithm back and forth.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshplan.hardware_profiles.network_schema import CurveFit, CurvePoint
from meshplan.hardware_profiles.robust import fit_relative

Floats = NDArray[np.float64]

REGIMES = 3  # lines of a curve: latency, a middle, bandwidth
MAX_SIZES = 32  # sizes are pooled into so many medians before knots are tried
FLAT_S_PER_BYTE = 1e-15  # a slope below 1 PB/s is flat; keeps bandwidths finite
SAME_SLOPE = 1e-6  # relative; lines this close have no crossing worth the name


def fit_curve(points: Sequence[CurvePoint]) -> CurveFit:
    """The broken line through `points`, all of one collective and group shape.

    Fewer distinct sizes than `REGIMES` + 1 give fewer lines; one size gives a pure bandwidth.
    `residual` is the median of |fit / measured - 1| over the points. Raises `ValueError` when the
    points are of several kinds or shapes, or there are none.
    """
    shapes = {(point.kind, point.ranks_per_node, point.nodes) for point in points}
    if len(shapes) != 1:
        raise ValueError(f"a curve is of one collective and group shape, got {sorted(shapes)}")
    kind, ranks_per_node, nodes = shapes.pop()
    sizes = np.array([point.size_bytes for point in points])
    seconds = np.array([point.seconds for point in points])
    latencies, slopes = _best_lines(*_pooled(sizes, seconds), REGIMES)
    fitted = _broken_line(latencies, slopes, sizes)
    apart = [point.apart for point in points if point.apart is not None]
    return CurveFit(
        kind=kind,
        ranks_per_node=ranks_per_node,
        nodes=nodes,
        latency_s=tuple(float(x) for x in latencies),
        bandwidth_bytes_per_s=tuple(float(1 / s) for s in slopes),
        residual=float(np.median(np.abs(fitted / seconds - 1))),
        apart=float(np.mean(apart)) if apart else None,
    )


def fit_curves(points: Sequence[CurvePoint]) -> tuple[CurveFit, ...]:
    """One fit for each collective and group shape among `points` that has two sizes or more."""
    groups: dict[tuple[str, int, int], list[CurvePoint]] = {}
    for point in points:
        groups.setdefault((point.kind, point.ranks_per_node, point.nodes), []).append(point)
    return tuple(
        fit_curve(group)
        for _, group in sorted(groups.items())
        if len({point.size_bytes for point in group}) > 1
    )


def curve_seconds(fit: CurveFit, size_bytes: ArrayLike) -> Floats:
    """Seconds that `fit` gives for arrays of `size_bytes` (any shape of array)."""
    latencies = np.array(fit.latency_s)
    slopes = 1 / np.array(fit.bandwidth_bytes_per_s)
    return _broken_line(latencies, slopes, np.asarray(size_bytes, dtype=np.float64))


def _broken_line(latencies: Floats, slopes: Floats, sizes: Floats) -> Floats:
    """The line of the regime that each size falls in; regimes end where consecutive lines cross."""
    knots = np.diff(latencies) / (slopes[:-1] - slopes[1:])
    regime = np.zeros(sizes.shape, np.int8)
    for knot in knots:  # a few: a search takes ten times as long
        regime += (sizes > knot).view(np.int8)
    return np.asarray(latencies[regime] + slopes[regime] * sizes, dtype=np.float64)


def _pooled(sizes: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Median size and time of at most `MAX_SIZES` bins, equal in the logarithm of the size."""
    unique, index = np.unique(sizes, return_inverse=True)
    if len(unique) > MAX_SIZES:
        edges = np.geomspace(unique[0], unique[-1], MAX_SIZES + 1)[1:-1]
        index = np.searchsorted(edges, sizes)
    bins = np.unique(index)
    medians = [(np.median(sizes[index == b]), np.median(seconds[index == b])) for b in bins]
    return np.array([m[0] for m in medians]), np.array([m[1] for m in medians])


def _best_lines(sizes: Floats, seconds: Floats, regimes: int) -> tuple[Floats, Floats]:
    """Latency and slope of each regime, for the knots with the smallest relative error."""
    if len(sizes) == 1:
        return np.zeros(1), seconds / sizes
    inner = sizes[1:-1]
    count = min(regimes - 1, len(inner))
    best_error, best = np.inf, (np.zeros(1), np.ones(1))
    for knots in combinations(inner, count):
        corners = np.array([0.0, *knots, sizes[-1]])
        values = _corner_values(sizes, seconds, corners)
        error = float(np.mean(np.abs(np.interp(sizes, corners, values) / seconds - 1)))
        if error < best_error:
            best_error, best = error, _lines(corners, values)
    return best


def _lines(corners: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Latency and slope between corners; neighbours of one slope become one line."""
    slopes = np.maximum(np.diff(values) / np.diff(corners), FLAT_S_PER_BYTE)
    turns = np.append(True, ~np.isclose(slopes[1:], slopes[:-1], rtol=SAME_SLOPE, atol=0.0))
    slopes, starts = slopes[turns], corners[:-1][turns]
    # Each line begins where the one before it ends, so that they cross at the corner itself.
    rises = np.append(0.0, (slopes[:-1] - slopes[1:]) * starts[1:])
    return values[0] + np.cumsum(rises), slopes


def _corner_values(sizes: Floats, seconds: Floats, corners: Floats) -> Floats:
    """Seconds at each corner: at zero bytes, then rises; none of them is ever negative."""
    rises = np.clip((sizes[:, None] - corners[:-1]) / np.diff(corners), 0.0, 1.0)
    columns = np.column_stack([np.ones(len(sizes)), rises])
    return np.asarray(np.cumsum(fit_relative(columns, seconds)), dtype=np.float64)
