"""Changes of one and two layers, as arrays, worked by hand and counted."""

from collections.abc import Sequence

import numpy as np
import pytest

from meshplan.costmodels.layouts import Ints
from meshplan.planner.cuts.layer_changes import SINGLE, all_pairs, applied, double, single


def kept(
    cut: Ints, changes: Sequence[object] | Ints, *, keeps: bool = True
) -> set[tuple[int, ...]]:
    """What is left of a cut that must hold a layer in each chunk."""
    fewest = np.ones(len(cut), int)
    found = applied(cut, np.asarray(changes), fewest, keeps=keeps)
    return {tuple(each.ravel().tolist()) for each in found}


def test_one_layer_moved_out_of_each_mode_or_recomputed_otherwise() -> None:
    """Chunks of 2 layers, one of which recomputes in full, and of 1: a kept or a full layer of the
    first goes to the second, which keeps it or not; or one layer changes its mode.
    """
    cut = np.array([[2, 0, 1], [1, 0, 0]])
    moved = {(1, 0, 1, 2, 0, 0), (1, 0, 1, 2, 0, 1), (1, 0, 0, 2, 0, 0), (1, 0, 0, 2, 0, 1)}
    changed = {(2, 0, 0, 1, 0, 0), (2, 0, 2, 1, 0, 0), (2, 0, 1, 1, 0, 1)}
    assert kept(cut, single(2, (0, 2), all_pairs(2))) == moved | changed


def test_where_every_layer_recomputes_none_is_kept() -> None:
    """Modes selective and full: a move changes both chunks, and no layer keeps everything."""
    cut = np.array([[2, 1, 1], [1, 1, 0]])
    for found in kept(cut, single(2, (1, 2), all_pairs(2)), keeps=False):
        layers, selective, full = np.array(found).reshape(2, 3).T
        assert (selective + full == layers).all()
        assert layers.sum() == 3


@pytest.mark.parametrize("modes", [(0, 2), (0, 1, 2)])
def test_two_layers_are_two_changes_after_each_other(modes: tuple[int, ...]) -> None:
    """Each change of two is one of one layer, and another one of it, among the first and the last
    mode; those that lead back are not asked for.
    """
    ones = {each.tobytes() for each in single(3, (0, 2), all_pairs(3))}
    for both in double(3, modes, all_pairs(3)):
        rest = (both - np.frombuffer(one, np.int8).reshape(3, 3) for one in ones)
        assert any(each.tobytes() in ones for each in rest)


def test_of_many_chunks_two_layers_are_not_tried() -> None:
    """They would be millions."""
    assert len(double(64, (0, 2), all_pairs(64)[: SINGLE // 64])) == 0
