"""What a running search tells of itself."""

import pytest

from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.cli.progress import describe
from meshplan.planner.search.progress import Progress


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param(20_000_000, id="enough", marks=pytest.mark.nightly),
        pytest.param(300_000, id="ended by the budget"),
    ],
)
def test_no_bound_is_told_that_is_not_proved(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is told of the simulation is nearer to the best than what the answer proves of
    what the search looks through: listed cuts, as several chunks per rank may be faster.
    """
    monkeypatch.setattr("meshplan.planner.search.progress.PROGRESS_S", 0.0)
    monkeypatch.setattr("meshplan.planner.cuts.budget.BUDGET", budget)
    monkeypatch.setattr("meshplan.planner.cuts.budget.BEYOND", 0)
    asked = Arguments(
        model="qwen3-30b-a3b", gpus=32, cluster="dgx-h100", seq_len="32768", global_batch=96,
        engine="native", pins={},
    )  # fmt: skip
    seen: list[Progress] = []
    result = solve(ask(asked).question, 3, progress=seen.append)
    best_s = result.solutions[0].step_time_s
    assert (result.listed_bound_s >= best_s) == (budget > 1_000_000)
    told = [each for each in seen if each.simulated is not None]
    assert len(told) > 2
    assert all(each.bound_s <= result.listed_bound_s * (1 + 1e-6) for each in told)
    assert all(each.best_s is None or each.best_s >= each.bound_s for each in told)


@pytest.mark.parametrize(
    ("simulated", "said"),
    [
        pytest.param(None, "(closed form), 7 layouts, 3 CP-SAT solves"),
        pytest.param(12, "(event simulation), 7 layouts, 12 simulated"),
    ],
)
def test_the_line_says_what_best_and_bound_are_of(simulated: int | None, said: str) -> None:
    """1 - 9.8 / 10 is 2 %."""
    line = describe(Progress(10.0, 9.8, 7, 3, simulated), 2.0)
    best = "best step 10.00 s, the search may find one up to 2.0% shorter"
    assert line == f"searching 2 s: {best} {said}; Ctrl-C keeps the best"
