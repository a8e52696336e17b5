"""Bounds of any split: what ranks must recompute, of all covers and ranks of a row at once."""

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.any_split import _paid_ns
from meshplan.planner.bounds.split import BoundedLayouts


@pytest.mark.parametrize("engine", ["generic", "native"])
def test_what_covers_pay_together_is_what_each_pays_alone(engine: str) -> None:
    """`BoundedLayouts.paid_ns`, which sorts each rank's segments, of one chunk that holds all."""
    compared = finite = infinite = 0
    draw = np.random.default_rng(1)
    for _, _, _, same in listed_layouts(engine, range(12)):
        bounded, (in_flight, which) = BoundedLayouts(same), same.most_covered
        layers = draw.uniform(0, 4, (*in_flight.shape[:2], len(same.kind_counts), same.pp))
        lacks = abs(bounded.room) * draw.uniform(0, 1, bounded.room.shape) ** 4
        lacks[draw.random(lacks.shape) < 0.2] = 0.0
        most = layers * in_flight[:, :, None]
        found = _paid_ns(bounded.hulls, lacks, most, which) / in_flight[which]
        expected = _each_alone(bounded, lacks, layers, in_flight[which], which)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        compared += found.size
        finite += int(np.isfinite(found[lacks > 0]).sum())
        infinite += int(np.isinf(found).sum())
    assert compared > 500
    assert finite > 50
    assert infinite > 50


def _each_alone(
    bounded: BoundedLayouts, lacks: Floats, layers: Floats, held: Floats, which: Ints
) -> Floats:
    row, cover, rank = np.nonzero(lacks > 0)
    found = np.zeros(lacks.shape)
    at = row, cover, rank
    found[at] = bounded.paid_ns(
        row, layers[which[row], cover, :, rank][:, :, None], held[at][:, None], lacks[at]
    )
    return found
