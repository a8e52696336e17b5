"""Cuts of whole layers near an answer of real numbers, by hand and for any answer."""

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.planner.search.simulation.climbed_answers import layers_of, rounded_cuts


def test_an_answer_is_rounded_where_chunks_end() -> None:
    """2.4 and 2.8 layers end at 2 and 5, so the chunks hold 2 and 3. Of the first one half
    recomputes in full, so 1; of the second one a seventh, rounded up 1. Then one more each; then
    all.
    """
    answer = np.array([[1.2, 0.0, 1.2], [2.4, 0.0, 0.4]])
    least, more, every = (each.tolist() for each in rounded_cuts(answer, (0, 1, 2)))
    assert least == [[1, 0, 1], [2, 0, 1]]
    assert more == [[0, 0, 2], [1, 0, 2]]
    assert every == [[0, 0, 2], [0, 0, 3]]


def test_rounded_cuts_hold_all_layers_and_recompute_no_smaller_part() -> None:
    """Of any answer, with two modes or three; empty chunks too."""
    draw = np.random.default_rng(5)
    for modes in ((0, 2), (0, 1, 2)) * 50:
        answer = draw.random((6, len(modes))) * (draw.random((6, 1)) > 0.2) + 1e-12
        answer *= 20 / answer.sum()
        part = answer[:, -1] / answer.sum(axis=1)
        fewer = None
        for cut in rounded_cuts(answer, modes):
            assert cut.sum() == 20
            assert (cut >= 0).all()
            assert (cut[:, -1] >= part * cut.sum(axis=1) - 1e-4).all()
            assert fewer is None or (cut[:, -1] >= fewer).all()
            fewer = cut[:, -1]


def test_layers_of_a_cut_in_each_mode() -> None:
    """Of 5 layers 1 recomputes selectively and 2 in full."""
    stages = Stage(5, 1, 2), Stage(3, 0, 3)
    assert layers_of(stages, (0, 1, 2)).tolist() == [[2, 1, 2], [0, 0, 3]]
    assert layers_of((Stage(3, 0, 1),), (0, 2)).tolist() == [[2, 1]]
