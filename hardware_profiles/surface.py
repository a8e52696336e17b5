"""Matmul rate for any shape, interpolated between measured shapes.

    rate(x) = exp( sum_i w_i ln(rate_i) / sum_i w_i )        w_i = (d_i + 0.05)^-3

    x    log2 of (m, n, k), and of the number of groups for grouped products
    d_i  Euclidean distance of x to measured shape i, in octaves; the 6 nearest take part

A distance of 1 is one dimension twice as large. A shape farther than `REACH` octaves from every
measured one is not guessed: it gets the rate of the nearest shapes and `inside` is False for it, so
that the caller can use a fit instead or say that it extrapolates.

Leaves out: tile and wave quantisation between two measured shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardware_profiles.schema import Dtype, MatmulPoint

Floats = NDArray[np.float64]

NEIGHBOURS = 6
POWER = 3
SOFTENING = 0.05  # octaves: shapes closer than this are one shape
REACH = 2.0  # octaves
SAME_RATE: dict[Dtype, Dtype] = {"bf16": "fp16", "fp16": "bf16"}  # same tensor-core pipe


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP/s of each shape asked for, and whether measured shapes surround it closely enough."""

    flops_per_s: Floats
    inside: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MatmulSurface:
    """Measured shapes in log2, and the natural logarithm of their rates."""

    shapes: Floats
    log_rates: Floats

    def __call__(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, groups: ArrayLike = 1) -> Rates:
        """Rates of (m x k) @ (k x n) products, `groups` of them at once; arrays broadcast."""
        asked = np.stack(np.broadcast_arrays(m, n, k, groups), axis=-1).astype(np.float64)
        flat = np.log2(asked).reshape(-1, asked.shape[-1])
        distance = np.sqrt(((flat[:, None, :] - self.shapes[None]) ** 2).sum(axis=-1))
        nearest = np.argsort(distance, axis=1)[:, :NEIGHBOURS]
        close = np.take_along_axis(distance, nearest, axis=1)
        weights = (close + SOFTENING) ** -POWER
        log_rate = (weights * self.log_rates[nearest]).sum(axis=1) / weights.sum(axis=1)
        shape = asked.shape[:-1]
        return Rates(np.exp(log_rate).reshape(shape), (close[:, 0] <= REACH).reshape(shape))


def matmul_surface(
    points: Sequence[MatmulPoint], dtype: Dtype, *, layout: str | None = None, grouped: bool = False
) -> MatmulSurface | None:
    """The surface through the points of `dtype`, or None when there are too few to interpolate.

    layout   only these transpositions ("TN" forward, "NN" dgrad, "NT" wgrad); when fewer than
             `NEIGHBOURS` shapes have it, or by default, all of them
    grouped  only products of several groups, or (default) only single ones

    bf16 and fp16 count as one format: the tensor cores run both at one rate.
    """
    usable = [point for point in points if (point.groups > 1) == grouped]
    chosen = [point for point in usable if point.dtype in (dtype, SAME_RATE.get(dtype))]
    of_layout = [point for point in chosen if point.layout == layout]
    if len(of_layout) >= NEIGHBOURS:
        chosen = of_layout
    if len(chosen) < NEIGHBOURS:
        return None
    rates: dict[tuple[int, int, int, int], list[float]] = {}
    for point in chosen:
        rates.setdefault((point.m, point.n, point.k, point.groups), []).append(point.flops_per_s)
    medians = [float(np.median(values)) for values in rates.values()]
    return MatmulSurface(np.log2(np.array(list(rates), dtype=np.float64)), np.log(medians))


def matmul_efficiency(
    points: Sequence[MatmulPoint],
    dtype: Dtype,
    peak_flops_per_s: float,
    *,
    layout: str | None = None,
) -> MatmulSurface | None:
    """As `matmul_surface`, in fractions of `peak_flops_per_s` instead of FLOP/s."""
    surface = matmul_surface(points, dtype, layout=layout)
    if surface is None:
        return None
    return MatmulSurface(surface.shapes, surface.log_rates - np.log(peak_flops_per_s))
