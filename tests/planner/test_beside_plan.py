"""What stands beside a plan is that of the plan, of whichever layout it was begun."""

import pytest

from meshplan.planner.answer.answer import chosen_plan, solve
from meshplan.planner.answer.full_plan import Beside
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.progress import Fastest, Progress


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_begun_of_another_layout_is_found_anew(rank: int) -> None:
    """30 sequences on 16 GPUs, begun of the plan itself and of a runner-up."""
    pins = {"pipeline_parallel": "1", "context_parallel": "1,2"}
    asked = ask(
        Arguments(model="llama-3.1-8b", gpus=16, cluster="dgx-h100", global_batch=30, pins=pins)
    )
    told = list[Progress]()
    result = solve(asked.question, 2, progress=told.append)
    chosen = chosen_plan(asked, result)
    with Beside(asked) as plainly:
        expected = plainly.found(chosen)
    assert expected["better_batch"].global_batch_size == 32
    (fastest,) = (each.fastest for each in told if each.fastest)
    assert fastest.layout == chosen.plan.layout == result.solutions[0].layout
    assert (fastest.step_s, fastest.proved) == (result.solutions[0].step_time_s, True)
    other = result.solutions[1]
    with Beside(asked) as beside:
        beside.begin((fastest, Fastest(other.layout, other.step_time_s, False))[rank])
        assert beside.found(chosen) == expected
