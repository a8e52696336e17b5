"""What stages and ranks that hold the same share is what each has, reckoned on its own."""

from collections.abc import Callable
from functools import reduce
from operator import add

from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.seconds.cost import NOTHING
from meshplan.costmodels.step.memory import _constant
from meshplan.costmodels.step.seconds import reduce_s, update_s
from meshplan.costmodels.step.step import StepModel


def costs(step: StepModel, index: int):
    """Layer by layer, then the ends that are there."""
    total = NOTHING
    for key, count in step.stage_counts[index].items():
        total = total + step.layer_cost(*key) * count
    apart = step.setting.places_modules
    for part in [(0,), (1,), (2,)] if apart else [(0,), (1, 2)]:
        held = [e for e in part if e < len(step.stage_of_end) and step.stage_of_end[e] == index]
        total = total + step.ends_cost(held) if held else total
    return total


def parameters(step: StepModel, index: int) -> RankParameters:
    """The same of parameters."""
    total = RankParameters(dense=0.0)
    for (kind, _), count in step.stage_counts[index].items():
        total = total + step.layer_parameters(kind) * count
    for end, stage in enumerate(step.stage_of_end):
        total = total + step.end_parameters[end] if stage == index else total
    return total


@settings(max_examples=60)
@given(data=st.data())
def test_each_rank_has_what_its_own_stages_add_up_to(
    data: st.DataObject, cases: Callable[..., st.SearchStrategy]
) -> None:
    """Costs and parameters of a rank are the sums of its stages, also where ranks share them."""
    step = data.draw(cases()).step
    stages = range(len(step.layout.stages))
    assert step.stage_costs == tuple(costs(step, index) for index in stages)
    assert step.stage_parameters == tuple(parameters(step, index) for index in stages)
    for rank in range(step.layout.pipeline_parallel):
        held = [index for index in stages if step.rank_of(index) == rank]
        assert step.rank_costs[rank] == reduce(add, [step.stage_costs[i] for i in held])
        whole = reduce(add, [step.stage_parameters[i] for i in held])
        assert step.rank_parameters[rank] == whole


@settings(max_examples=60)
@given(data=st.data())
def test_ranks_that_hold_the_same_share_what_no_micro_batch_changes(
    data: st.DataObject, cases: Callable[..., st.SearchStrategy]
) -> None:
    """Found once for ranks that are alike, it is what each rank alone would get."""
    step = data.draw(cases(pipelined=True)).step
    for function in (reduce_s, update_s, _constant):
        each = [function(step, rank) for rank in range(step.layout.pipeline_parallel)]
        assert step.by_rank(lambda rank, of=function: of(step, rank)) == tuple(each)
