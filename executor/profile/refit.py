"""How well a profile's own points predict each other: fit on half of them, predict the other half.

    python -m meshplan.executor.profile.refit my-cluster.toml

matmul       every second shape by FLOPs is held out, by number format; points of one shape in
             several layouts stay together
collectives  every second message size is held out, by kind and group shape; the ends are kept
error        |predicted / measured - 1|

Exit 1 when a median error is above what a trustworthy profile keeps: 10 % for matmuls on a CPU and
5 % on a GPU, 15 % for collectives.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from rich.table import Table

from meshplan.hardware_profiles.curves import curve_seconds, fit_curve
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import Cluster, MatmulPoint
from meshplan.hardware_profiles.surface import matmul_surface
from meshplan.planner.report.terminal import as_written

MATMUL_LIMIT = {"cpu": 0.10}
GPU_MATMUL_LIMIT = 0.05
COLLECTIVE_LIMIT = 0.15
FEWEST = 4  # points of one curve: with fewer there is no half to fit


@dataclass(frozen=True, slots=True)
class Refit:
    """The errors of the held-out points of one kind, and the limit of their median."""

    name: str
    errors: tuple[float, ...]
    limit: float

    @property
    def median(self) -> float:
        """Half of the held-out points are predicted better than this."""
        return median(self.errors)

    @property
    def trustworthy(self) -> bool:
        """Whether the median is within the limit."""
        return self.median <= self.limit


def refits(cluster: Cluster) -> tuple[Refit, ...]:
    """Matmuls by number format, then collectives by kind."""
    points = cluster.kernels.matmul_points if cluster.kernels else ()
    limit = MATMUL_LIMIT.get(cluster.gpu.name, GPU_MATMUL_LIMIT)
    formats = dict.fromkeys(point.dtype for point in points)
    found = [
        Refit(
            f"matmul {dtype}", tuple(matmul_errors([p for p in points if p.dtype == dtype])), limit
        )
        for dtype in formats
    ]
    for kind in dict.fromkeys(point.kind for point in cluster.collective_points):
        own = [point for point in cluster.collective_points if point.kind == kind]
        found.append(Refit(kind, tuple(collective_errors(own)), COLLECTIVE_LIMIT))
    return tuple(refit for refit in found if refit.errors)


def matmul_errors(points: Sequence[MatmulPoint]) -> Iterator[float]:
    """Errors of the held-out single products of one number format."""
    single = [point for point in points if point.groups == 1]
    shapes = sorted({(p.m, p.n, p.k) for p in single}, key=lambda s: (s[0] * s[1] * s[2], s))
    held_out = set(shapes[1::2])
    fitted = [point for point in single if (point.m, point.n, point.k) not in held_out]
    surface = matmul_surface(fitted, fitted[0].dtype) if fitted else None
    for point in single if surface else ():
        assert surface is not None
        if (point.m, point.n, point.k) in held_out:
            rate = surface(point.m, point.n, point.k, layout=point.layout)
            yield abs(float(rate) / point.flops_per_s - 1)


def collective_errors(points: Sequence[CurvePoint]) -> Iterator[float]:
    """Errors of the held-out sizes of one kind, group shape by group shape."""
    for shape in dict.fromkeys((p.ranks_per_node, p.nodes) for p in points):
        curve = [p for p in points if (p.ranks_per_node, p.nodes) == shape]
        curve.sort(key=lambda point: point.size_bytes)
        held_out = curve[1:-1:2]
        if len(curve) < FEWEST:
            continue
        fit = fit_curve([point for point in curve if point not in held_out])
        for point in held_out:
            yield abs(float(curve_seconds(fit, point.size_bytes)) / point.seconds - 1)


def main() -> int:
    """Print the table; 0 when every median is within its limit, 1 otherwise, 2 for no profile."""
    if len(sys.argv) != 2:
        print("error: give one profile, as in: refit my-cluster.toml", file=sys.stderr)
        return 2
    try:
        cluster = load_cluster(Path(sys.argv[1]))
    except UnknownProfile as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = refits(cluster)
    table = Table(title=f"{cluster.title}: half of the points predict the other half", box=None)
    for name in ("", "held out", "median error", "90th percentile", "limit", ""):
        table.add_column(name, justify="right")
    for refit in found:
        tail = quantiles(refit.errors, n=10)[-1] if len(refit.errors) > 1 else refit.median
        table.add_row(
            refit.name, str(len(refit.errors)), f"{refit.median:.1%}", f"{tail:.1%}",
            f"{refit.limit:.0%}", "" if refit.trustworthy else "above",
        )  # fmt: skip
    as_written().print(table)
    return 0 if all(refit.trustworthy for refit in found) else 1


if __name__ == "__main__":
    sys.exit(main())
