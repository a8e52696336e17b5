"""Columns of many layouts: the distinct ones."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layouts import distinct, each_once, numbered, one_of


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


@pytest.mark.parametrize("seed", range(40))
def test_distinct_rows_are_those_that_sorting_finds(seed: int) -> None:
    """Columns of few and of many values, in 8 and in 64 bits: the numbers are
    in the order of the rows' values, and each number's first row is like it.
    """
    draw = np.random.default_rng(seed)
    rows, most = int(draw.integers(1, 60)), draw.choice([1, 2, 5, 100, 10**9], 8)
    columns = [draw.integers(0, each, rows) for each in most]
    if seed % 2:
        columns = [(column % 100).astype(np.int8) for column in columns]
    first, which = distinct(columns)
    found = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1]
    assert (which == found.reshape(-1)).all()
    assert all((column[first][which] == column).all() for column in columns)


@given(st.lists(st.integers(-3, 2**40)))
def test_values_are_numbered_as_numpy_numbers_them(values: list[int]):
    """None, equal ones and such as are far apart."""
    each, which = numbered(np.array(values, np.int64))
    known, places = np.unique(np.array(values, np.int64), return_inverse=True)
    assert each.tolist() == known.tolist()
    assert which.tolist() == places.tolist()
    assert which.dtype == np.int64


def test_shares_that_are_far_apart_are_told_apart_by_number() -> None:
    """Parts of 10^9, as the table of work has them, beside a column that no row differs in."""
    shares = np.array([0, 10**9, 333_333_333, 10**9, 0], np.int64)
    first, which = distinct((shares, np.full(5, 10**12), np.array([1, 0, 0, 0, 1], np.int64)))
    assert which.tolist() == [0, 2, 1, 2, 0]
    assert first.tolist() == [0, 2, 1]


@pytest.mark.parametrize(("values", "few"), [([], [3]), ([4, 2**40, 3], []), ([9, 3, 9], [3, 7])])
def test_what_is_one_of_a_few_numbers(values: list[int], few: list[int]):
    """As said of each number, also where nothing is asked of, or there is no number."""
    found = one_of(np.array(values, np.int64), few)
    assert found.tolist() == [value in few for value in values]


def test_that_needs_no_masked_arrays():
    """Sorting would import `numpy.ma`, a hundredth of a second, where values are few."""
    code = "import numpy, sys; from meshplan.costmodels.layouts import one_of\n"
    code += "one_of(numpy.array([], numpy.int64), [3]); sys.exit('numpy.ma' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
