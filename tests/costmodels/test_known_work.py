"""Entries of the table of work that an earlier question has found."""

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.known_work import KnownWork


def test_each_key_is_found_once_for_each_thing_that_is_asked() -> None:
    """Tens of three keys, then of three more, one of them known; hundreds are another thing."""
    known, asked = KnownWork(), list[list[int]]()

    def times(key: tuple[Ints, Ints], factor: float) -> Floats:
        rows = list[int]()
        asked.append(rows)

        def find(some: Ints) -> Floats:
            rows.extend(some.tolist())
            return factor * (key[0] + 0.1 * key[1])[some]

        return known.of(str(factor), key, find)

    first = np.array([1, 2, 3]), np.array([0, 0, 5])
    second = np.array([4, 3, 3]), np.array([0, 5, 6])
    assert times(first, 10.0).tolist() == [10.0, 20.0, 35.0]
    assert times(second, 10.0).tolist() == [40.0, 35.0, 36.0]
    assert times(second, 100.0).tolist() == [400.0, 350.0, 360.0]
    assert asked == [[0, 1, 2], [0, 2], [0, 1, 2]]
