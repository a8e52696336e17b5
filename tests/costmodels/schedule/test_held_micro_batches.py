"""What a rank holds at each moment of a schedule, by hand."""

import pytest

from meshplan.costmodels.schedule.held_micro_batches import Moment, Moments, moments


def test_gradients_wait_beside_what_does_not_complete_them() -> None:
    """Beside a forward on either chunk, beside a backward on the other; none where none is
    deferred.
    """
    held, nothing = (1, 0), (0, 0)
    found = Moments.of((
        Moment("F", 0, False, False, held, (1, 2)), Moment("I", 0, False, False, held, (1, 2)),
        Moment("W", 1, False, False, held, (1, 2)), Moment("F", 0, False, True, held, nothing),
    ))  # fmt: skip
    assert found.waits.tolist() == [[True, True], [False, True], [True, False], [False, False]]
    assert found.deferred.tolist() == [[1, 2], [1, 2], [1, 2], [0, 0]]


@pytest.mark.parametrize("m", [3, 9, 40])
def test_gpipe_holds_all_micro_batches(m: int) -> None:
    """Beside the first backward all but its own, however many there are."""
    for rank in moments("gpipe", 2, 1, m):
        assert max(moment.held[0] for moment in rank if moment.kind == "B") == m - 1


@pytest.mark.parametrize("m", [9, 40])
def test_1f1b_holds_as_many_as_ranks_are_left(m: int) -> None:
    """Of four ranks, beside a backward: 3, 2, 1 and none more."""
    ranks = moments("1f1b", 4, 1, m)
    assert [max(each.held[0] for each in rank if each.kind == "B") for rank in ranks] == [
        3,
        2,
        1,
        0,
    ]
