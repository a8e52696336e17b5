"""What of each kind (tp, cp, pp, ep) may be faster than the layout that was found for it.

A runner-up is the best of its kind that a search found. Whether it is the best that there is says
the least bound of what of its kind is open, which is a bound of the whole kind:

    bound(K) = min( step(K), least(K), rest(K) )

step  of the layout that was found; least  of what was looked at and is still below it; rest  of
what was not looked at, since its bound was not below the step of K and of the slowest runner-up.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import field, replace

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints, Layouts, distinct
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.search.found import (
    KIND_AXES,
    SETTLED,
    Kind,
    Timed,
    kind_of_layout,
    own_s,
)
from meshplan.planner.search.result import SearchResult, Solution

MOST_OPEN = 20  # kinds that are told
MOST_ROWS = 16_384  # rows that are looked through for kinds


@dataclass(slots=True)
class OpenKinds:
    """What a search leaves open of each kind.

    rest_s   a bound of what was not looked at
    least_s  of some kinds the least bound of what is open
    every_cut_s  of some kinds a bound of the cuts that no list has, infinite where none is faster
    settled_s  the best of each kind that was looked at further, when that had ended
    """

    rest_s: float = 0.0
    least_s: dict[Kind, float] = field(default_factory=dict)
    every_cut_s: dict[Kind, float] = field(default_factory=dict)
    settled_s: dict[Kind, float] = field(default_factory=dict)
    _rests_s: dict[Kind, float] = field(default_factory=dict)

    def add(self, best: Mapping[Kind, Timed], layouts: Layouts, rows: Ints, bounds: Floats) -> None:
        """Of these rows some layout is open, with these bounds: what may be faster than the best
        of its own kind counts.
        """
        below = bounds < own_s(best, layouts, rows)
        rows, bounds = rows[below], bounds[below]
        for kind, bound_s in least_of_kinds(layouts, rows, bounds).items():
            self.least_s[kind] = min(bound_s, self.least_s.get(kind, math.inf))

    def settle(self, kind: Kind, rest_s: float, open_s: float) -> None:
        """Of a kind that was looked at further only this is open."""
        self._rests_s[kind], self.least_s[kind] = rest_s, open_s

    def with_cuts(self, cuts_s: Mapping[Kind, float]) -> "OpenKinds":
        """The same where of some kinds cuts that no list has are bounded by no less than that."""
        found = deepcopy(self)
        for kind, bound_s in cuts_s.items():
            cut_s = max(bound_s, found.every_cut_s.get(kind, 0.0))
            found.least_s[kind] = min(cut_s, found.least_s.get(kind, math.inf))
        return found

    @property
    def least_of_all_s(self) -> float:
        """Nothing is faster that is not the best that was found of its kind."""
        return min([self.rest_s, *self.least_s.values()])

    def bound_s(self, kind: Kind) -> float:
        """No layout of the kind is faster, but for the one that was found."""
        return min(self._rests_s.get(kind, self.rest_s), self.least_s.get(kind, math.inf))


def least_of_kinds(layouts: Layouts, rows: Ints, bounds: Floats) -> dict[Kind, float]:
    """The least bound of each kind that some of the rows are of."""
    columns = [getattr(layouts, axis)[rows] for axis in KIND_AXES]
    first, place = distinct(columns)
    least = np.full(len(first), math.inf)
    np.minimum.at(least, place, bounds)
    found = zip(np.stack(columns)[:, first].T.tolist(), least.tolist(), strict=True)
    return {(tp, cp, pp, ep): bound_s for (tp, cp, pp, ep), bound_s in found}


def bounded(
    solutions: Sequence[Solution], known: OpenKinds, bound_s: float
) -> tuple[Solution, ...]:
    """The solutions, each with the bound of its kind; nothing at all is faster than `bound_s`."""

    def of_kind_s(each: Solution) -> float:
        step_s = each.step_time_s
        least_s = known.bound_s(kind_of_layout(each.layout))
        return step_s if least_s >= step_s * SETTLED else max(bound_s, least_s)

    first, *others = solutions
    best = replace(first, kind_bound_s=min(bound_s, first.step_time_s))
    return best, *(replace(each, kind_bound_s=of_kind_s(each)) for each in others)


def not_shown(
    solutions: Sequence[Solution],
    known: OpenKinds,
    bound_s: float,
    others: Callable[[Collection[Kind]], bool] = lambda _: True,
) -> tuple[tuple[tuple[Kind, float], ...], float]:
    """Kinds of which none is among `solutions` but that may be faster than the slowest of them,
    the smallest bound first, each with it; and a bound of all other kinds, which says nothing of
    what is slower, nor of anything if there are no `others` than some kinds.
    """
    shown = {kind_of_layout(each.layout) for each in solutions}
    most_s = solutions[-1].step_time_s
    rest_s = min(most_s, max(bound_s, known.rest_s))
    left = sorted(
        (max(each_s, bound_s), kind) for kind, each_s in known.least_s.items()
        if each_s < rest_s * SETTLED and kind not in shown
    )  # fmt: skip
    if rest_s < most_s and not others(shown.union(kind for _, kind in left)):
        rest_s = most_s
    return _fewer(left, rest_s)


def has_others(layouts: Layouts, kinds: Collection[Kind], that_fit: Callable[[Ints], Ints]) -> bool:
    """Whether a row that may fit is of none of these kinds: of very many, one is taken to be."""
    if len(layouts) > MOST_ROWS:
        return True
    columns = [getattr(layouts, axis) for axis in KIND_AXES]
    other = np.ones(len(layouts), bool)
    for kind in kinds:
        axes = zip(columns, kind, strict=True)
        other &= ~np.logical_and.reduce([column == degree for column, degree in axes])
    return len(that_fit(np.flatnonzero(other))) > 0


def of_shown(result: SearchResult, shown: Sequence[Solution]) -> SearchResult:
    """The same where only these of its solutions are shown, the plan before the runners-up: of the
    others other layouts may be faster than the slowest runner-up.
    """
    most_s = max(each.step_time_s for each in shown[1:] or shown)
    if len(shown) < len(result.solutions) and result.kinds_bound_s is not None:
        result = replace(result, kinds_bound_s=min(most_s, result.kinds_bound_s))
    if result.open_kinds is None or result.rest_bound_s is None:
        return result
    kinds = {kind_of_layout(each.layout) for each in shown}
    others = ((kind_of_layout(each.layout), each.kind_bound_s) for each in result.solutions)
    left = sorted(
        (bound_s, kind) for kind, bound_s in (*result.open_kinds, *others)
        if bound_s is not None and bound_s < most_s * SETTLED and kind not in kinds
    )  # fmt: skip
    open_kinds, rest_s = _fewer(left, min(most_s, result.rest_bound_s))
    return replace(result, open_kinds=open_kinds, rest_bound_s=rest_s)


def _fewer(
    left: Sequence[tuple[float, Kind]], rest_s: float
) -> tuple[tuple[tuple[Kind, float], ...], float]:
    """Those that are told, and the least bound of the others and of the rest."""
    rest_s = min([rest_s, *(each_s for each_s, _ in left[MOST_OPEN:])])
    return tuple((kind, each_s) for each_s, kind in left[:MOST_OPEN]), rest_s
