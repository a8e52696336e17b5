"""How a search ended, in files of today and of before bounds were of every cut."""

import pytest

from meshplan.planner.case.search_report import SearchReport

OLDER = {
    "status": "OPTIMAL", "price": "event simulation", "cuts": "listed", "bound_s": 10.0, "gap": 0.0,
    "candidates": 1, "priced": 1, "cpsat_solves": 0, "wall_s": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "gap"),
    [
        pytest.param({"every_cut_bound_s": 9.5}, 0.05, id="1 - 9.5 / 10"),
        pytest.param({"every_cut_bound_s": 7.2, "bound_s": 9.0, "gap": 0.1, "status": "FEASIBLE"},
                     0.28, id="best 9 / 0.9: 1 - 7.2 / 10"),
        pytest.param({}, 1.0, id="nothing was bounded"),
    ],
)  # fmt: skip
def test_an_older_proof_of_listed_cuts_is_none_of_all(told: dict[str, float], gap: float) -> None:
    """It is FEASIBLE, with the bound of every cut; what was proved of the list stands beside it."""
    read = SearchReport.model_validate(OLDER | told)
    assert (read.status, read.gap) == ("FEASIBLE", pytest.approx(gap))
    assert read.listed_bound_s == told.get("bound_s", 10.0)
    assert SearchReport.model_validate(read.model_dump()) == read


def test_an_older_proof_of_all_cuts_stays_one() -> None:
    """Its bound was that of every cut too."""
    read = SearchReport.model_validate(OLDER | {"cuts": "all", "every_cut_bound_s": 10.0})
    assert (read.status, read.bound_s, read.gap) == ("OPTIMAL", 10.0, 0.0)
    assert "every_cut_bound_s" not in read.model_dump()
