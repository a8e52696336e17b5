"""Rate of a kernel at any shape, interpolated between measured shapes: matmuls and attention.

    rate(x) = exp( sum_i w_i ln(rate_i) / sum_i w_i )        w_i = (d_i + 0.05)^-3

    x    log2 of the shape: (m, n, k, groups) of a matrix product, of attention
         (batch x heads, seq_len, head_dim)
    d_i  Euclidean distance of x to measured shape i, in octaves; the 6 nearest take part

A distance of 1 is one dimension twice as large. A shape farther than `REACH` octaves from every
measured one is not guessed: it gets the rate of the nearest shapes and `inside` is False for it, so
that the caller can use a fit instead or say that it extrapolates.

Leaves out: tile and wave quantisation between two measured shapes; key/value heads of attention.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardware_profiles.schema import AttentionPoint, Dtype, MatmulPoint

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
class Surface:
    """Measured shapes in log2, and the natural logarithm of their rates."""

    shapes: Floats
    log_rates: Floats

    def __call__(self, *sides: ArrayLike) -> Rates:
        """Rates at the shapes with these sides, in the order that the surface was made of.

        Sides are numbers or arrays, which broadcast; a matmul's `groups` may be left out.
        """
        missing = self.shapes.shape[1] - len(sides)
        asked = np.stack(np.broadcast_arrays(*sides, *[1] * missing), axis=-1).astype(np.float64)
        shape = asked.shape[:-1]
        # A search asks for many layouts and few shapes.
        rows, back = np.unique(asked.reshape(-1, asked.shape[-1]), axis=0, return_inverse=True)
        distance = np.sqrt(((np.log2(rows)[:, None, :] - self.shapes[None]) ** 2).sum(axis=-1))
        nearest = np.argsort(distance, axis=1)[:, :NEIGHBOURS]
        close = np.take_along_axis(distance, nearest, axis=1)
        weights = (close + SOFTENING) ** -POWER
        log_rate = (weights * self.log_rates[nearest]).sum(axis=1) / weights.sum(axis=1)
        inside = close[:, 0] <= REACH
        back = back.reshape(-1)
        return Rates(np.exp(log_rate)[back].reshape(shape), inside[back].reshape(shape))


def _surface(measured: Iterable[tuple[tuple[int, ...], float]]) -> Surface | None:
    """The surface through shapes and their rates, medians of repeats; None when they are few."""
    rates: dict[tuple[int, ...], list[float]] = {}
    for sides, flops_per_s in measured:
        rates.setdefault(sides, []).append(flops_per_s)
    if len(rates) < NEIGHBOURS:
        return None
    medians = [float(np.median(values)) for values in rates.values()]
    return Surface(np.log2(np.array(list(rates), dtype=np.float64)), np.log(medians))


def matmul_surface(
    points: Sequence[MatmulPoint], dtype: Dtype, *, layout: str | None = None, grouped: bool = False
) -> Surface | None:
    """The surface over (m, n, k, groups) of `dtype`, or None when too few shapes were measured.

    layout   only these transpositions ("TN" forward, "NN" dgrad, "NT" wgrad); when fewer than
             `NEIGHBOURS` points have it, or by default, all of them
    grouped  only products of several groups, or (default) only single ones

    bf16 and fp16 count as one format: the tensor cores run both at one rate.
    """
    chosen = [
        point
        for point in points
        if (point.groups > 1) == grouped and point.dtype in (dtype, SAME_RATE.get(dtype))
    ]
    of_layout = [point for point in chosen if point.layout == layout]
    if len(of_layout) >= NEIGHBOURS:
        chosen = of_layout
    return _surface(((p.m, p.n, p.k, p.groups), p.flops_per_s) for p in chosen)


def attention_surface(
    points: Sequence[AttentionPoint],
    dtype: Dtype,
    direction: Literal["forward", "backward"],
    *,
    causal: bool = True,
) -> Surface | None:
    """The surface over (batch x heads, seq_len, head_dim) of `dtype`, or None when too few.

    Rates count the FLOPs of the kernel's own mask: of the causal half if `causal`. When only the
    other mask was measured its rates stand in: about right when long, too fast below 2,048 tokens.
    bf16 and fp16 count as one format.
    """
    chosen = [
        point
        for point in points
        if point.direction == direction and point.dtype in (dtype, SAME_RATE.get(dtype))
    ]
    of_mask = [point for point in chosen if point.causal == causal]
    if len(of_mask) >= NEIGHBOURS:
        chosen = of_mask
    return _surface(((p.batch * p.heads, p.seq_len, p.head_dim), p.flops_per_s) for p in chosen)


def matmul_efficiency(
    points: Sequence[MatmulPoint],
    dtype: Dtype,
    peak_flops_per_s: float,
    *,
    layout: str | None = None,
) -> Surface | None:
    """As `matmul_surface`, in fractions of `peak_flops_per_s` instead of FLOP/s."""
    surface = matmul_surface(points, dtype, layout=layout)
    if surface is None:
        return None
    return Surface(surface.shapes, surface.log_rates - np.log(peak_flops_per_s))
