"""Columns of many layouts: the distinct ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layouts import distinct, each_once


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**40)), min_size=1))
def test_distinct_rows(rows: list[tuple[int, int]]):
    """Each row finds itself among the distinct ones, of which no two are equal."""
    columns = tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))
    first, of_row = distinct(columns)
    found = [rows[i] for i in first]
    assert len(set(found)) == len(found) == len(set(rows))
    assert [found[i] for i in of_row] == rows


@given(st.lists(st.integers(-3, 3)))
def test_different_values_each_once(values: list[int]):
    """As Python's own sets, of none too."""
    assert each_once(np.array(values, np.int64)).tolist() == sorted(set(values))


def test_the_largest_number_of_a_byte_is_told_apart() -> None:
    """One more than 127 is no byte."""
    columns = [np.array([127, 1, 127, 127], np.int8), np.array([127, 0, 127, 126], np.int8)]
    first, which = distinct(columns)
    assert which[0] == which[2]
    assert len(first) == len({*which.tolist()}) == 3
