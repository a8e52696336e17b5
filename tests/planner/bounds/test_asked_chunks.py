"""A few chunks of a rank stand for all: against multipliers asked of each number of chunks."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds import asked_prices
from meshplan.planner.bounds.asked_chunks import MOST, AskedChunks, Group
from meshplan.planner.bounds.asked_prices import AskedPrices
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as

CHUNKS = (3, 2, MOST, 4, 9)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["generic", "native"])
def test_layouts_of_many_chunks_are_bounded_together(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the multipliers: with few chunks as alone, with many no higher and hardly lower.
    Chunks may be more than layers here, and gradients hide beside them in one of the engines.
    """
    monkeypatch.setattr(asked_prices, "TRIED", [])  # the same factor of prices for both
    draw, ratios = random.Random(engine), list[float]()
    for proof, variant, rows, same in listed_layouts(engine, range(4)):
        if same.schedule != "interleaved_1f1b":
            continue
        every = run_as(proof.space, proof.prices, np.tile(rows, len(CHUNKS)), variant)
        vpps = np.repeat(CHUNKS, len(rows))
        together = FreeCuts(replace(every, vpps=vpps), proof.passes, np.tile(rows, len(CHUNKS)))
        groups = [Group(vpp, int(m), 1) for vpp, m in zip(vpps, every.m, strict=True)]
        weights, price = multipliers(together, draw)
        found = AskedChunks(together, groups, weights, price).bounds_s(math.inf)
        for vpp, own in zip(CHUNKS, found.reshape(len(CHUNKS), -1), strict=True):
            cuts = FreeCuts(replace(same, vpp=vpp), proof.passes, rows)
            alone = AskedPrices(cuts, weights, price).bounds_s(math.inf)
            if vpp < MOST:
                assert own == pytest.approx(alone, rel=1e-9)
            else:
                assert (own <= alone + 1e-9 * abs(alone)).all()
                ratios += (own / alone).tolist()
    assert len(ratios) > 20
    assert np.median(ratios) > 0.999
    assert min(ratios) < 0.9999, "of those between some recompute and some do not"


def multipliers(cuts: FreeCuts, draw: random.Random) -> tuple[Floats, Floats]:
    """Of some of the first lines, and prices of memory at which some layers recompute."""
    same: SamePipeline = cuts.same
    lines = len(first_lines(same.schedule, same.pp, same.vpp, int(same.m[0])))
    weights = np.array([draw.random() * (draw.random() < 0.5) for _ in range(lines)])
    unit = cuts.seconds.max() / max(1.0, cuts.saved_kib[cuts.saved_kib < 2**40].max())
    shape = cuts.room_kib.shape[1:]
    price = np.array([draw.random() for _ in range(math.prod(shape))]).reshape(shape)
    return weights + 1e-3, unit * draw.choice((0.1, 0.3, 1.0)) * price
