"""Cuts that the bound of every cut met on layouts of V shapes, tried on others like them.

A list of whole layers (`planner.cuts.folded_bound`) ends with its fastest cuts by chains. Some of
these do not fit on the layout that is solved but on another one, of another row or under another
schedule, that is solved much later or never. Layouts with as many ranks and micro-batches are about
as fast by the same cut, as in `planner.search.simulation.carried_cuts`: a step is expected to be to
the bound of its row what the cut's chains are to that of its own. What may be faster so is played.
Nothing is proved.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import plan_of
from meshplan.planner.search.simulation.shaken_cuts import NearCut
from meshplan.planner.search.simulation.simulated import Simulated

LOOKED_AT, PLAYED = 400, 8  # cuts that are asked whether they fit; of these that are played


class MetCut(NamedTuple):
    """A cut of a layout of some shape, and the longest of its chains."""

    step_s: float
    shape: Shape
    near: NearCut


def cuts_elsewhere(
    proof: Simulated, every: Sequence[Alike], met: Sequence[MetCut], limit_s: float
) -> Iterator[NearCut]:
    """Those of `met` that fit on another layout of `every` and are expected to be below the limit
    there, the fastest first.
    """
    once = {(x.shape, x.near.layers.tobytes()): x for x in sorted(met, key=lambda x: -x.step_s)}
    likely = [each for cut in once.values() for each in _elsewhere(proof, every, cut, limit_s)]
    likely.sort(key=lambda each: each[0])
    fit = (
        near for _, near in likely[:LOOKED_AT]
        if plan_of(proof.problem(near.row, near.variant)[0], near.layers)
    )  # fmt: skip
    return islice(fit, PLAYED)


def _elsewhere(
    proof: Simulated, every: Sequence[Alike], cut: MetCut, limit_s: float
) -> Iterator[tuple[float, NearCut]]:
    """A cut on the other layouts that are like its own, with the step that is expected of it."""
    (_, *own), row, variant, layers = cut.shape, *cut.near
    bounds_s = proof.open.row_bounds
    for each in every:
        _, *others = each.shape
        if others != own or each.variant.modes != variant.modes:
            continue
        steps_s = cut.step_s * bounds_s[each.rows] / bounds_s[row]
        for at in np.flatnonzero((steps_s < limit_s) & (each.bounds < limit_s)).tolist():
            other = NearCut(int(each.rows[at]), each.variant, layers)
            if (other.row, other.variant) != (row, variant):
                yield float(steps_s[at]), other
