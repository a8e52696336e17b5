"""Cuts that may be faster than the plan, looked for where its gap stays wide.

From the answers of programs of layouts that are open layers are moved
(`planner.search.simulation.climbed_answers`), and near the fastest cut of several chunks layers are
shaken (`planner.search.simulation.shaken_cuts`). Both have budgets of their own. Nothing is proved.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshplan.costmodels.layouts import Ints
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.cuts.free_cut_program import CELL, PROGRAM, FreeCutProgram
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.climbed_answers import climbed, layers_of
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.search.simulation.shaken_cuts import shaken
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

CLIMBS, CLIMBED = 4, 12_000_000  # layouts from whose answers layers are moved; units for all
SHAKEN = 10_000_000  # units to look near the fastest cut


class NearCut(NamedTuple):
    """[chunk, mode] layers of a layout, which may not fit."""

    row: int
    variant: Variant
    layers: Ints


def near_answers(
    proof: Simulated, layouts: ListedLayouts, groups: Sequence[Alike], limit_s: float
) -> Iterator[NearCut]:
    """Where climbs end from the answers of programs of what is open, of each group the layout with
    the smallest bound, of which steps below the limit are asked for.
    """
    left = CLIMBED
    for alike in sorted(groups, key=lambda each: float(each.bounds.min()))[:CLIMBS]:
        if left <= 0 or proof.tally.late:
            return
        at = int(alike.bounds.argmin())
        row, cuts = int(alike.rows[at]), layouts.cuts(alike.variant, alike.rows[[at]])
        program = FreeCutProgram(cuts, limit_s, first_lines(*alike.shape))
        left -= PROGRAM + CELL * program.size
        layers, spent = climbed(proof, row, alike.variant, program, left)
        left -= spent
        if layers is not None:
            yield NearCut(row, alike.variant, layers)


def near_the_fastest(proof: Simulated) -> Iterator[NearCut]:
    """What is faster near the fastest plan's cut, if that has several chunks, whose layout a list
    cuts.
    """
    best = proof.ranked()[0]
    if best.variant.virtual_stages == 1 or best.row not in proof.kept:
        return
    stages, step_s = shaken(proof, best, SHAKEN)
    if step_s < best.step_s * SETTLED:
        layers = layers_of(stages, tuple(best.variant.modes))
        yield NearCut(proof.row_of(best), best.variant, layers)
