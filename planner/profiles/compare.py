"""Two profiles compared: the same machine yesterday and today, or measured and datasheet.

    group    numbers of one kind: a collective among one group shape, matmuls of a number format,
             attention of a format and direction, memory bandwidth. Its change is the median of
             after / before over its points, as times: above 1 is slower
    range    95 % interval of that median, from how much the points scatter around it:
             +- 1.96 x 1.25 x s sqrt(4 / n), s = 1.48 x median |ln ratio - ln median ratio|, of the
             group or of all points, whichever is larger. Four, because a slow moment of a shared
             machine spans several points that were measured one after another (two profiles of
             one: their ratios correlate by 0.6, 0.5, 0.4, 0.3 at distances 1, 2, 3, 5)
    differs  a group whose whole range is beyond the tolerance: noise alone does not do that.
             A number by itself (a bandwidth, a launch time, or one point against its group) that
             is beyond the tolerance and beyond 8 standard deviations of what points scatter, its
             own spread included; their tails are heavy

Published numbers do not scatter, so there the tolerance alone decides. Of two measured profiles
those numbers are left out that were computed from their points: they would say the same twice.
How much others slowed the machine down is told beside the comparison, and is no part of it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.robust import DEVIATION
from meshplan.hardware_profiles.schema import AttentionPoint, Cluster, MatmulPoint

NOT_COMPARED = {"sources", "conditions", "collective_fits", "name", "title", "shared_slowdown"}
HIGHER_IS_WORSE = ("seconds", "latency_s", "launch_s", "context_bytes", "communicator_bytes",
                   "interference.compute", "interference.communication")  # fmt: skip
FROM_POINTS = ("node.", "network.", "gpu.", "kernels.matmul_efficiency", "kernels.attention_",
               "kernels.grouped_efficiency", "kernels.memory_efficiency",
               "kernels.optimizer_efficiency")  # fmt: skip
POINTWISE = "kernels.pointwise_bytes_per_s."
LARGE_BYTES = 2**20  # from here on a collective is bandwidth rather than latency
MEDIAN_ERROR = 1.25  # standard error of a median over that of a mean
QUARTILES = 1.35  # interquartile range over standard deviation
CONFIDENCE = 1.96
TOGETHER = 4  # points that a slow moment spans
SIGMAS = 8.0


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a profile; `groups` are those it counts in, `spread` is its own (IQR)."""

    field: str
    value: float
    groups: tuple[str, ...] = ()
    spread: float = 0.0

    @property
    def slower_when_higher(self) -> bool:
        """Whether more of it is worse."""
        return self.field.endswith(HIGHER_IS_WORSE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A number in both profiles."""

    before: Number
    after: Number

    @property
    def slowdown(self) -> float:
        """ln of after / before, as a time: positive is worse."""
        ratio = math.log(self.after.value / self.before.value)
        return ratio if self.before.slower_when_higher else -ratio

    @property
    def own_sigma(self) -> float:
        """Standard deviation of `slowdown` that the spreads of both numbers account for."""
        return math.hypot(self.before.spread, self.after.spread) / QUARTILES


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one kind: their median change as a time (0.1 is 10 % slower) and its range."""

    name: str
    points: int
    change: float
    low: float
    high: float
    scatter: float
    beyond: bool

    @property
    def worse(self) -> bool:
        """Slower than before."""
        return self.change > 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that two profiles give differently; `relative` is after / before - 1."""

    field: str
    before: float
    after: float
    relative: float
    worse: bool


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """All groups, single numbers that stand out (worst first), and how many were compared.

    shared_slowdown  before and after, by kind of work (`Kernels.shared_slowdown`)
    """

    before: str
    after: str
    tolerance: float
    num_compared: int
    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]
    shared_slowdown: dict[str, tuple[float, float]]

    @property
    def shared(self) -> bool:
        """Whether others slowed one of the machines down by more than the tolerance."""
        slowdowns = (max(pair) for pair in self.shared_slowdown.values())
        return max(slowdowns, default=1.0) > 1 + self.tolerance

    @property
    def agree(self) -> bool:
        """Whether nothing that decides is beyond the tolerance and the noise."""
        single = bool(self.differences) and not self.shared
        return not single and not any(group.beyond for group in self.groups)


def compare(before: Cluster, after: Cluster, tolerance: float) -> ProfileComparison:
    """Where `after` is away from `before` by more than `tolerance` (0.1 is 10 %) and the noise."""
    measured = all(each.is_measured and each.collective_points for each in (before, after))
    old, new = ({n.field: n for n in _numbers(each, measured)} for each in (before, after))
    pairs = [Pair(old[f], new[f]) for f in old if f in new and old[f].value and new[f].value]
    grouped: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        for name in pair.before.groups:
            grouped[name].append(pair)
    usual = _scatter(
        pair.slowdown - median(other.slowdown for other in members)
        for name, members in grouped.items()
        for pair in members
        if pair.before.groups[0] == name
    )
    groups = {name: _group(name, members, usual, tolerance) for name, members in grouped.items()}
    found = [_difference(p) for p in pairs if _stands_out(p, groups, usual, tolerance)]
    found.sort(key=lambda difference: (not difference.worse, -abs(difference.relative)))
    return ProfileComparison(
        before.name, after.name, tolerance, len(pairs), tuple(groups.values()), tuple(found),
        _shared_slowdown(before, after),
    )  # fmt: skip


def _shared_slowdown(before: Cluster, after: Cluster) -> dict[str, tuple[float, float]]:
    old, new = (each.kernels.shared_slowdown if each.kernels else {} for each in (before, after))
    return {kind: (old.get(kind, 1.0), new.get(kind, 1.0)) for kind in {**old, **new}}


def _group(name: str, members: list[Pair], usual: float, tolerance: float) -> Group:
    changes = [pair.slowdown for pair in members]
    middle = median(changes)
    scatter = max(usual, _scatter(change - middle for change in changes))
    error = scatter * MEDIAN_ERROR * math.sqrt(min(1.0, TOGETHER / len(changes)))
    reach = CONFIDENCE * error
    low, high = middle - reach, middle + reach
    return Group(
        name, len(changes), math.expm1(middle), math.expm1(low), math.expm1(high), scatter,
        beyond=low > math.log1p(tolerance) or high < -math.log1p(tolerance),
    )  # fmt: skip


def _scatter(deviations: Iterable[float]) -> float:
    """Robust standard deviation, 0 for nothing."""
    sizes = [abs(deviation) for deviation in deviations]
    return DEVIATION * median(sizes) if sizes else 0.0


def _stands_out(pair: Pair, groups: dict[str, Group], usual: float, tolerance: float) -> bool:
    """Whether a number differs by itself: from what it was, and from what its group does."""
    own = groups[pair.before.groups[0]] if pair.before.groups else None
    expected = math.log1p(own.change) if own else 0.0
    sigma = math.hypot(own.scatter if own else usual, pair.own_sigma)
    limit = max(math.log1p(tolerance), SIGMAS * sigma)
    return min(abs(pair.slowdown), abs(pair.slowdown - expected)) > limit


def _difference(pair: Pair) -> Difference:
    before, after = pair.before.value, pair.after.value
    return Difference(pair.before.field, before, after, after / before - 1, pair.slowdown > 0)


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Scalars of nested dicts; tables of points and prose about fields are not scalars."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "sources":
                yield from leaves(item, (*path, str(key)))
    elif not isinstance(value, (list, tuple)) and value is not None:
        yield path, value


def _numbers(cluster: Cluster, measured: bool) -> Iterator[Number]:
    for path, value in leaves(cluster.model_dump(exclude=NOT_COMPARED), ()):
        field = ".".join(path)
        computed = measured and field.startswith(FROM_POINTS)
        if isinstance(value, (int, float)) and not NOT_COMPARED & set(path) and not computed:
            groups = ("memory bandwidth",) if measured and field.startswith(POINTWISE) else ()
            yield Number(field, float(value), groups)
    yield from map(_of_curve, cluster.collective_points)
    if cluster.kernels:
        yield from map(_of_matmul, cluster.kernels.matmul_points)
        yield from map(_of_attention, cluster.kernels.attention_points)


def _of_curve(point: CurvePoint) -> Number:
    shape = f"{point.kind} {point.nodes}x{point.ranks_per_node}"
    part = "from 1 MiB" if point.size_bytes >= LARGE_BYTES else "below 1 MiB"
    field = f"collective_points[{shape} {point.size_bytes:.0f} B].seconds"
    return Number(field, point.seconds, (shape, f"{shape}, {part}"), point.spread or 0.0)


def _of_matmul(point: MatmulPoint) -> Number:
    groups = f"{point.groups} x " if point.groups > 1 else ""
    shape = f"{point.dtype} {point.layout} {groups}{point.m}x{point.n}x{point.k}"
    kind = f"matmul {point.dtype}{' grouped' if groups else ''}"
    field = f"kernels.matmul_points[{shape}].flops_per_s"
    return Number(field, point.flops_per_s, (kind,), point.spread or 0.0)


def _of_attention(point: AttentionPoint) -> Number:
    said = point.model_dump(exclude={"flops_per_s", "spread"}, exclude_none=True)
    shape = " ".join(f"{key}={value}" for key, value in said.items())
    field = f"kernels.attention_points[{shape}].flops_per_s"
    kind = f"attention {point.dtype} {point.kernel or 'usual'} {point.direction}"
    return Number(field, point.flops_per_s, (kind,), point.spread or 0.0)


def comparison_tables(found: ProfileComparison) -> Iterator[Table]:
    """The groups, parts of collectives only where they differ; what stands out; and how much others
    slowed both machines down.
    """
    shown = [group for group in found.groups if group.beyond or "," not in group.name]
    if shown:
        yield _group_table(found, shown)
    if found.differences:
        yield _difference_table(found)
    if found.shared_slowdown:
        yield _shared_table(found)


def _group_table(found: ProfileComparison, groups: Iterable[Group]) -> Table:
    table = Table(title=f"{found.after} against {found.before}, as times", title_justify="left")
    table.add_column("")
    for name in ("points", "median change", "95 % range", "scatter"):
        table.add_column(name, justify="right")
    table.add_column("")
    for group in groups:
        table.add_row(
            group.name, str(group.points), f"{group.change:+z.1%}",
            f"{group.low:+z.0%} to {group.high:+z.0%}", f"{group.scatter:.0%}",
            _verdict(worse=group.worse) if group.beyond else "",
        )  # fmt: skip
    return table


def _shared_table(found: ProfileComparison) -> Table:
    title = "not compared, as others used the machine: slowdown of work beside other work"
    table = Table("", title=title, title_justify="left")
    for name in (found.before, found.after):
        table.add_column(name, justify="right")
    for kind, (before, after) in found.shared_slowdown.items():
        table.add_row(kind, f"{before:.2f}x", f"{after:.2f}x")
    return table


def _difference_table(found: ProfileComparison) -> Table:
    title = f"single numbers beyond {found.tolerance:.0%} and the noise"
    if found.shared:
        title += ", not counted: others used the machine"
    table = Table(title=title, title_justify="left")
    table.add_column("field", overflow="fold")
    for name in (found.before, found.after, "change"):
        table.add_column(name, justify="right")
    table.add_column("")
    for difference in found.differences:
        table.add_row(
            difference.field,
            f"{difference.before:.4g}",
            f"{difference.after:.4g}",
            f"{difference.relative:+.1%}",
            _verdict(worse=difference.worse),
        )
    return table


def _verdict(*, worse: bool) -> Text:
    return Text("worse", style="red") if worse else Text("better")
