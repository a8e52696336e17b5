"""One number of layers that recompute in full in every virtual stage: the fewest that fit."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Stage
from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.stage_problem import End, StageProblem, evaluate
from meshplan.planner.stages.first_plan import first_plan

Problems = Callable[..., StageProblem]


@pytest.mark.parametrize(("cap_kib", "full"), [
    pytest.param(360, (0, 0), id="rank 0: 60 of states + 2 x 3 x 50 = 360"),
    pytest.param(359, (1, 1), id="rank 0: 60 + 2 x (10 + 2 x 50) + 5 = 285, and rank 1 as many"),
    pytest.param(284, (2, 2), id="rank 0: 60 + 2 x (2 x 10 + 50) + 5 = 205"),
    pytest.param(204, (3, 2), id="rank 0: 60 + 2 x 3 x 10 + 5 = 125: all, and all of rank 1"),
    pytest.param(124, None, id="nothing less"),
])  # fmt: skip
def test_the_fewest_layers_by_hand(cap_kib: int, full: tuple[int, ...] | None) -> None:
    """Stages of 3 and 2 layers, of which rank 0 holds two micro-batches: a layer keeps 50 KiB of
    each, 10 recomputed, 20 of states, and 5 while it is replayed.
    """
    problem = problem_of(
        pattern=(0,) * 5, schedule="1f1b", pp=2, vpp=1, m=4, modes=(0, 2), first=True,
        splits=((3, 2),), layer_ns=((100, 110, 130),), saved_kib=((50, 40, 10),), state_kib=(20,),
        update_kib=(0,), step_ns=(0,), transient_kib=(0, 0, 5), embedding=End(), head=End(),
        send_ns=0, fixed_kib=0, cap_kib=cap_kib, fixed_step_ns=0, passes_ns=Passes(1, 1, 1),
    )  # fmt: skip
    stages = fewest_first(problem, (3, 2))
    assert (stages and tuple(stage.full_layers for stage in stages)) == full
    plan = first_plan(problem)[1]
    assert (plan and plan.stages) == stages


@pytest.mark.parametrize("vpp", [1, 2])
def test_no_other_number_fits_and_is_faster(vpp: int, problem: Problems) -> None:
    """Over 60 random problems and their even cut, against pricing every number layer by layer."""
    fitted = refused = 0
    for seed in range(60):
        drawn = problem(seed, vpp)
        each, more = divmod(len(drawn.pattern), drawn.chunks)
        counts = tuple(each + (j < more) for j in range(drawn.chunks))
        case = replace(drawn, modes=(0, 2), splits=(counts,), first=True)
        mixes = [
            tuple(Stage(n, full_layers=min(k, n)) for n in counts) for k in range(max(counts) + 1)
        ]
        plans = [plan for plan in (evaluate(case, stages) for stages in mixes) if plan]
        stages = fewest_first(case, counts)
        if not plans:
            assert stages is None, seed
            refused += 1
            continue
        assert stages is not None, seed
        found = evaluate(case, stages)
        assert found is not None
        assert found.objective == min(plan.objective for plan in plans), seed
        fitted += any(stage.full_layers for stage in stages)
    assert min(fitted, refused) >= 5
