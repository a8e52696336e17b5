"""Bounds of any split: what ranks must recompute, of all covers and ranks of a row at once; and of
any cut of a row.
"""

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from listed_layouts import listed_layouts
from nightly import cases
from simulated_oracle import every_kind
from small_cuts import cuts, every_layout, small_question

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.setting import Setting
from meshplan.planner.bounds import any_split
from meshplan.planner.bounds.any_split import _paid_ns, bounds_of_any_split
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split import BoundedLayouts
from meshplan.planner.cuts.balanced_counts import least_recomputed
from meshplan.planner.search.rows.rows_below import bounds_of_rows


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["generic", "native"])
def test_what_covers_pay_together_is_what_each_pays_alone(engine: str) -> None:
    """`BoundedLayouts.paid_ns`, which sorts each rank's segments, of one chunk that holds all."""
    compared = finite = infinite = 0
    draw = np.random.default_rng(1)
    for _, _, _, same in listed_layouts(engine, range(cases(8, nightly=12))):
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


def test_bounds_of_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows must recompute is found some rows at a time, where that is one as where it is all
    of them.
    """
    several = 0
    for proof, _, rows, same in listed_layouts("generic", range(cases(8, nightly=12))):
        whole = Passes.of(proof.passes, rows, same)
        passes = whole.in_chunks(proof.passes.take(rows), same)
        monkeypatch.setattr(any_split, "CELLS", 10**9)
        together = bounds_of_any_split(same, passes)
        monkeypatch.setattr(any_split, "CELLS", 1)
        np.testing.assert_allclose(bounds_of_any_split(same, passes), together, rtol=1e-12)
        several += len(same) > 2
    assert several > 3


def test_passes_in_other_chunks_are_those_of_these_chunks() -> None:
    """`native` sends weights and gradients beside chunks, so that what shows of them depends on how
    many a rank has.
    """
    differ = 0
    for proof, _, rows, same in listed_layouts("native", range(cases(4, nightly=6))):
        others = Passes.of(proof.passes, rows, replace(same, vpp=same.vpp + 1))
        passes = others.in_chunks(proof.passes.take(rows), same)
        alone = Passes.of(proof.passes, rows, same)
        for name in ("layer", "longer", "extra", "hop", "update", "once", "replays"):
            np.testing.assert_array_equal(getattr(passes, name), getattr(alone, name))
        for name in ("layer", "ends", "fixed"):
            np.testing.assert_array_equal(getattr(passes.late, name), getattr(alone.late, name))
        differ += bool((others.late.layer != alone.late.layer).any())
    assert differ > 0


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


@pytest.mark.few(1)
@pytest.mark.parametrize(("chunks", "every", "close"), [("1", 1, 0.75), ("2..", 7, 0.9)])
def test_no_cut_is_faster_than_the_bound_of_its_row(chunks: str, every: int, close: float) -> None:
    """Cuts of one chunk per rank and of several, played; some are close to it."""
    closest, asked, draw = 0.0, 0, random.Random(1)
    schedules = set[str]()
    for seed in range(cases(8, nightly=12)):
        question = small_question(seed, chunks=chunks)
        space, layouts = every_kind(question), list(every_layout(question))
        if not layouts:
            continue
        bounds = bounds_of_rows(space, layouts[0][0].passes)
        for times, problem in draw.sample(layouts, min(6, len(layouts))):
            schedules.add(problem.schedule)
            for cut in islice(cuts(problem), 0, None, every):
                step_s = times.step_s(least_recomputed(problem, cut))
                assert bounds[times.row] <= step_s * (1 + 1e-9)
                closest, asked = max(closest, bounds[times.row] / step_s), asked + 1
    assert asked > 100
    assert closest > close
    assert len(schedules) > 1


@pytest.mark.parametrize("seed", [0, 1, 3, 8, 11])
def test_the_way_down_to_the_mean_rank(seed: int) -> None:
    """A second more of each hop, of the embedding's and of each layer's forward delays it by what
    lies before it, beside the work of its own micro-batches: (0 + 1 + 2 + 3) / 4 hops of 4 ranks.
    """
    question = small_question(seed, chunks="1..")
    space = every_kind(question)
    layouts = space.layouts
    setting = Setting.fitted(question.model, question.training, question.cluster, question.engine)
    passes = pass_seconds(layouts, setting)
    pp, m = layouts.pipeline_parallel, layouts.num_micro_batches
    hops = np.array([np.arange(int(ranks)).mean() for ranks in pp])
    behind = (pp - 1) / pp  # the share of ranks that wait for the embedding
    ends = behind if question.engine.legality.layers_count_ends else 0.0
    forward = np.array([1.0, 0.0, 0.0])
    slower = {
        "hop_s": (passes.hop_s + 1.0, hops),
        "embedding_s": (passes.embedding_s + forward, m / pp + behind),
        "layer_s": (passes.layer_s + forward, m * sum(space.kind_counts) / pp + hops - ends),
    }
    before = bounds_of_rows(space, passes)
    for name, (changed, later_s) in slower.items():
        after = bounds_of_rows(space, replace(passes, **{name: changed}))
        assert after - before == pytest.approx(np.broadcast_to(later_s, before.shape)), name
