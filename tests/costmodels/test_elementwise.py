"""Functions that take a single number or a column."""

import numpy as np
import pytest

from meshplan.costmodels.elementwise import FEW, least_along, most_along


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_least_and_the_most_along_an_axis_are_numpys(axis: int) -> None:
    """Of whole and real numbers, few and many; what comes back is no view, so it may be changed."""
    draw = np.random.default_rng(0)
    for values in (
        draw.random((5, 1, 4)), np.arange(60).reshape(5, 3, 4) % 7,
        draw.random((FEW + 1, FEW + 1, FEW)), draw.random((3, FEW, FEW + 1)),
    ):  # fmt: skip
        assert np.array_equal(least_along(values, axis), values.min(axis=axis))
        assert np.array_equal(most_along(values, axis), values.max(axis=axis))
        assert not np.shares_memory(least_along(values, axis), values)
