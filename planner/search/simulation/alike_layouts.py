"""Layouts that a bound of every cut looks at together, and multipliers to ask of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.free_cuts import Multipliers
from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.space.legal_layouts import Variant


class Alike:
    """Layouts with the same ways to run, ranks and micro-batches, each with its bound; `most` are
    the layers that each rank holds at most in steps below the limit, [row, rank].
    """

    def __init__(
        self, variant: Variant, shape: Shape, rows: Ints, bounds: Floats, layers: int
    ) -> None:
        self.variant, self.shape, self.rows, self.bounds = variant, shape, rows, bounds
        self.layers = layers
        self.most = np.full((len(rows), shape[1]), float(layers))
        self.begun: Bools = np.zeros(len(rows), bool)
        self.packed: Bools = np.zeros(len(rows), bool)
        self.folded: Bools = np.zeros(len(rows), bool)
        self.solved: Bools = np.zeros(len(rows), bool)
        self.looked = np.zeros(len(rows))  # what the last look proved that the budget ended
        self.changed()

    def again(self, least_s: float, below_s: float) -> None:
        """What is bounded between these is looked at anew."""
        new = (self.bounds >= least_s) & (self.bounds < below_s)
        for done in (self.begun, self.packed, self.folded, self.solved):
            done[new] = False
        self.most[new], self.looked[new] = float(self.layers), 0.0
        self.changed()

    def changed(self) -> None:
        """Find the least bounds of what is not packed and of what is not solved anew."""
        self.unpacked_s, self.open_s = (
            float(np.where(done, np.inf, self.bounds).min(initial=math.inf))
            for done in (self.packed, self.solved)
        )


class Asked(NamedTuple):
    """Multipliers of chains of `shape`, in units of the limit."""

    lines: list[Line]
    by: Multipliers
    shape: Shape
    limit_s: float


def alone(every: Sequence[Alike], variant: Variant, row: int) -> Alike | None:
    """One layout of `every` by itself, if it is there."""
    for each in every:
        if each.variant == variant and row in each.rows:
            own = each.rows == row
            return Alike(variant, each.shape, each.rows[own], each.bounds[own], each.layers)
    return None


def know(every: Sequence[Alike], solved: Alike) -> None:
    """What was solved alone is solved among those that are like it."""
    for each in every:
        if each.variant == solved.variant and solved.rows[0] in each.rows:
            at = np.searchsorted(each.rows, solved.rows)
            each.bounds[at], each.solved[at] = solved.bounds, solved.solved
            each.packed[at] = each.folded[at] = True
            each.changed()
