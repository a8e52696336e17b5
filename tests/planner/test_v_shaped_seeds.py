"""V shapes that the closed form's steps do not reach."""

import pytest

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.branch_and_bound import BranchAndBound
from meshplan.planner.search.likely_seeds import seed_likely
from meshplan.planner.search.priced_space import closed_form, space_of
from meshplan.planner.search.row_prices import RowPrices
from meshplan.planner.search.v_shaped_seeds import seed_v_shapes

ASKED = Arguments(
    model="llama-3.1-405b", gpus=512, cluster="dgx-h100", engine="torchtitan", seq_len="8192",
    global_batch=512,
)  # fmt: skip


@pytest.fixture
def run() -> BranchAndBound:
    """A search that has its first plans, of one chunk per rank, and nothing else."""
    question = ask(ASKED).question
    space = space_of(question)
    run = BranchAndBound(space, RowPrices(question, space, closed_form))
    seed_likely(run)
    return run


def schedules(run: BranchAndBound) -> set[str]:
    """Those of the best plans of each kind."""
    return {found.variant.schedule for found in run.best.values()}


def test_far_from_the_bound_each_v_shape_gets_a_plan(run: BranchAndBound) -> None:
    """The best plan is not slower for it."""
    before = run.cutoff
    assert before is not None
    assert not V_SHAPED & schedules(run)
    seed_v_shapes(run)
    assert V_SHAPED & schedules(run)
    assert run.cutoff is not None
    assert run.cutoff <= before


def test_near_the_bound_nothing_is_looked_at(run: BranchAndBound) -> None:
    """After the closed form's own proof there is nothing to find."""
    run.prove(None)
    solved = run.best.copy()
    seed_v_shapes(run)
    assert run.best == solved
