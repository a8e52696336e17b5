"""What stands beside a plan is that of the plan, of whichever layout it was begun."""

from dataclasses import replace

from meshplan.planner.answer.answer import chosen_plan, solve
from meshplan.planner.answer.full_plan import Beside, as_fastest
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.progress import Progress

PINS = {"pipeline_parallel": "1", "context_parallel": "1,2"}


def test_what_was_begun_of_another_layout() -> None:
    """30 sequences on 16 GPUs. Of a tie of the fastest all is found anew but the batches nearby,
    which stay compared with the fastest; of a faster layout all of it.
    """
    asked = ask(
        Arguments(model="llama-3.1-8b", gpus=16, cluster="dgx-h100", global_batch=30, pins=PINS)
    )
    told = list[Progress]()
    result = solve(asked.question, 2, progress=told.append)
    (fastest,) = (each.fastest for each in told if each.fastest)
    assert fastest.layout == result.solutions[0].layout
    assert (fastest.step_s, fastest.proved) == (result.solutions[0].step_time_s, True)
    first, other = (
        chosen_plan(asked, replace(result, solutions=some))
        for some in (result.solutions, result.solutions[1:])
    )
    with Beside(asked) as of_first, Beside(asked) as of_other:
        expected, plainly = of_first.found(first), of_other.found(other)
    assert expected["better_batch"].global_batch_size == 32
    for begun, chosen, alone in (
        (fastest, first, expected),
        (fastest, other, plainly | {"better_batch": expected["better_batch"]}),
        (as_fastest(other.plan), first, expected),
    ):
        with Beside(asked) as beside:
            beside.begin(begun)
            assert beside.found(chosen) == alone
    assert plainly["reasons"] != expected["reasons"]
    assert plainly["evidence"] != expected["evidence"]
    assert plainly["better_batch"] != expected["better_batch"]
