"""Rate of a kernel at any shape, from measured shapes: matmuls and attention.

    ln rate(x) = ln trend(x) + sum_i a_i k(x, x_i)

    x      log2 of the shape: (m, n, k, groups) of a matrix product, of attention
           (batch x heads, seq_len, head_dim)
    trend  FLOPs / seconds, with seconds a sum of products of the sides, each with a rate >= 0. Of
           a matmul: its volume (arithmetic), its three faces (bytes of the operands), its groups
           and a constant (launch)
    k      exp(-|x - x_i| / RANGE), distance in octaves; two transpositions of one product have
           TRANSPOSED of it in common
    a      solves (k(x_i, x_j) + noise_i) a = ln rate_i - ln trend(x_i): kriging, a smooth surface
           near the points rather than through them, because points are noisy. noise_i is the one
           of NOISES with which every point is predicted best by all others, and more for a point
           that they contradict

The further from measured shapes, the more of it is trend; it never exceeds the fastest rate that
was measured. RANGE, TRANSPOSED and NOISES predict held-out halves well over profiles of a shared
2-core host and the published tables of A100, B200 and GH200; none of them needs more than its first
digit.

Leaves out: tile and wave quantisation between two measured shapes; key/value heads of attention.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.robust import DEVIATION, fit_relative
from meshplan.hardware_profiles.schema import AttentionKernel, AttentionPoint, Dtype, MatmulPoint

Floats = NDArray[np.float64]

FEWEST = 4  # shapes
RANGE = 3.0  # octaves
TRANSPOSED = 0.6
NOISES = (0.01, 0.1)  # fractions of the residuals' variance: quiet and shared machines
REWEIGHTINGS = 3
SMALLEST_RESIDUAL = 1e-4
SAME_RATE: dict[Dtype, Dtype] = {"bf16": "fp16", "fp16": "bf16"}  # same tensor-core pipe

# Powers of the sides: the FLOPs first, then the other terms of the seconds.
MATMUL_TERMS = ((1, 1, 1, 1), (0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (0, 0, 0, 1), (0, 0, 0, 0))
# scores, with and without the head's width; operands, with and without it; launch
ATTENTION_TERMS = ((1, 2, 1), (1, 2, 0), (1, 1, 1), (1, 1, 0), (0, 0, 0))


@dataclass(frozen=True, slots=True)
class Trend:
    """ln rate = -ln(sum of costs x terms / first term), terms being powers of the sides."""

    powers: Floats
    costs: Floats

    def __call__(self, shapes: Floats) -> Floats:
        """The logarithm of the rate at shapes in log2."""
        return np.asarray(-np.log(_per_flop(shapes, self.powers) @ self.costs))


@dataclass(frozen=True, slots=True)
class Surface:
    """Measured shapes in log2 with their transpositions, the trend, and what each point adds."""

    shapes: Floats
    layouts: NDArray[np.str_]
    trend: Trend
    additions: Floats
    fastest: float

    def __call__(self, *sides: ArrayLike, layout: str | None = None) -> Floats:
        """FLOP/s at the shapes with these sides, in the order that the surface was made of.

        Sides are numbers or arrays, which broadcast; a matmul's `groups` may be left out.
        layout  transposition ("TN", "NN", "NT") that is asked for, None for no matter which
        """
        missing = self.shapes.shape[1] - len(sides)
        asked = np.stack(np.broadcast_arrays(*sides, *[1] * missing), axis=-1).astype(np.float64)
        shape = asked.shape[:-1]
        # A search asks for many layouts and few shapes.
        rows, back = np.unique(asked.reshape(-1, asked.shape[-1]), axis=0, return_inverse=True)
        rows, back = np.log2(rows), back.reshape(-1)
        distance = _distance(rows, self.shapes)
        same = np.array([layout is None]) if layout is None else self.layouts == layout
        log_rate = self.trend(rows) + _likeness(distance, same) @ self.additions
        rates = np.minimum(np.exp(log_rate), self.fastest)
        return np.asarray(rates[back].reshape(shape))


def _per_flop(shapes: Floats, powers: Floats) -> Floats:
    """Each term over the first one, at shapes in log2."""
    return np.asarray(2.0 ** (shapes @ (powers - powers[0]).T))


def _distance(left: Floats, right: Floats) -> Floats:
    """Octaves between all pairs of shapes in log2."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _likeness(distance: Floats, same_layout: NDArray[np.bool_]) -> Floats:
    return np.asarray(np.exp(-distance / RANGE) * np.where(same_layout, 1.0, TRANSPOSED))


def _surface(
    sides: Sequence[tuple[int, ...]],
    layouts: Sequence[str],
    flops_per_s: Sequence[float],
    terms: tuple[tuple[int, ...], ...],
) -> Surface | None:
    """The surface near measured shapes; None when they are fewer than `FEWEST`."""
    if len(set(sides)) < FEWEST:
        return None
    shapes, kinds = np.log2(np.array(sides, dtype=np.float64)), np.array(layouts)
    rates, powers = np.array(flops_per_s), np.array(terms, dtype=np.float64)
    trend = Trend(powers, fit_relative(_per_flop(shapes, powers), 1 / rates))
    likeness = _likeness(_distance(shapes, shapes), kinds[:, None] == kinds)
    additions = _kriged(likeness, np.log(rates) - trend(shapes))
    return Surface(shapes, kinds, trend, additions, float(rates.max()))


def _kriged(likeness: Floats, residuals: Floats) -> Floats:
    """What each point adds, with the noise that leaves the smallest errors."""
    tried = [_with_noise(likeness, residuals, noise) for noise in NOISES]
    return min(tried, key=lambda found: found[0])[1]


def _with_noise(likeness: Floats, residuals: Floats, least: float) -> tuple[float, Floats]:
    """Median error of a point when all others predict it, and what each point adds."""
    noise = np.full(len(residuals), least)
    usual, additions = 0.0, residuals
    for _ in range(REWEIGHTINGS):
        inverse = np.linalg.inv(likeness + np.diag(noise))
        additions = inverse @ residuals
        left_out = np.abs(additions / np.diag(inverse))
        usual = float(np.median(left_out))
        noise = least * (1 + (left_out / (DEVIATION * usual + SMALLEST_RESIDUAL)) ** 2)
    return usual, np.asarray(additions)


def matmul_surface(
    points: Sequence[MatmulPoint], dtype: Dtype, *, grouped: bool = False
) -> Surface | None:
    """The surface over (m, n, k, groups) of `dtype`, or None when too few shapes were measured.

    grouped  only products of several groups, or (default) only single ones

    bf16 and fp16 count as one format: the tensor cores run both at one rate.
    """
    chosen = [
        point
        for point in points
        if (point.groups > 1) == grouped and point.dtype in (dtype, SAME_RATE.get(dtype))
    ]
    return _surface(
        [(p.m, p.n, p.k, p.groups) for p in chosen],
        [p.layout for p in chosen],
        [p.flops_per_s for p in chosen],
        MATMUL_TERMS,
    )


def attention_surface(
    points: Sequence[AttentionPoint],
    dtype: Dtype,
    direction: Literal["forward", "backward"],
    *,
    causal: bool = True,
    kernel: AttentionKernel | None = None,
) -> Surface | None:
    """The surface over (batch x heads, seq_len, head_dim) of `dtype`, or None when too few.

    Rates count the FLOPs of the kernel's own mask: of the causal half if `causal`. When only the
    other mask was measured its rates stand in: about right when long, too fast below 2,048 tokens.
    So do those of other kernels where `kernel` was not measured. bf16 and fp16 count as one format.
    """
    chosen = [
        point
        for point in points
        if point.direction == direction and point.dtype in (dtype, SAME_RATE.get(dtype))
    ]
    of_kernel = [point for point in chosen if point.kernel == kernel]
    chosen = of_kernel if len(of_kernel) >= FEWEST else chosen
    of_mask = [point for point in chosen if point.causal == causal]
    chosen = of_mask if len(of_mask) >= FEWEST else chosen
    return _surface(
        [(p.batch * p.heads, p.seq_len, p.head_dim) for p in chosen],
        [""] * len(chosen),
        [p.flops_per_s for p in chosen],
        ATTENTION_TERMS,
    )
