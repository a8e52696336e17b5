"""Plans whose activations wait on the host fit by what their ranks hold."""

from dataclasses import replace

import pytest
from judged_questions import with_memory
from own_layouts import layout_bytes

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import simulation_of, solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.footprint import fewest
from meshplan.planner.search.held_memory import less_than_priced
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows import least_of_kinds
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import parse_pins

QUARTER = Layout(data_parallel=2, zero_stage=1, stages=(Stage(8),), activation_offload=0.25)


def hybrid(engine: str, **pins: str) -> Question:
    """Eight layers of Nemotron-H on two GPUs, a quarter of what they save on the host."""
    model = read_model("nemotron-h-8b")[1]
    return Question(
        model=replace(model, pattern=model.pattern[:8]), gpus=2, engine=load_engine(engine),
        training=Training(seq_len=4096, global_batch_size=4), cluster=load_cluster("dgx-h100"),
        pins=parse_pins({"activation_offload": "0.25", "micro_batch_size": "1", **pins}),
    )  # fmt: skip


@pytest.mark.parametrize("spare_bytes", [0, -(2**20)])
def test_layers_of_several_kinds_are_held_as_they_are(spare_bytes: int) -> None:
    """Priced as two of the largest kind on their way, a layout that just fits was left out: OPTIMAL
    was a slower one.
    """
    ample = hybrid("megatron", zero_stage="1", data_parallel="2")
    question = with_memory(ample, layout_bytes(ample, QUARTER) + spare_bytes)
    if spare_bytes < 0:
        with pytest.raises(NoLayoutFits) as refused:
            solve(question, 1)
        assert refused.value.proved
        return
    found = solve(question, 1)
    assert found.status == "OPTIMAL"
    assert found.solutions[0].layout == QUARTER
    assert found.solutions[0].step_time_s == simulation_of(question)(QUARTER)
    held = fewest(question).fit
    assert held is not None
    assert held.gpus == 2


def test_a_pipeline_is_cut_by_what_each_stage_holds() -> None:
    """In full, of which two layers on their way are small; priced as two that keep all."""
    free = hybrid("generic", pipeline_parallel="2", virtual_stages="1", schedule="1f1b")
    cut = Stage(4, full_layers=4), Stage(4, full_layers=4)
    full = Layout(pipeline_parallel=2, stages=cut, activation_offload=0.25)
    question = with_memory(free, layout_bytes(free, full))
    found = solve(question, 1)
    assert found.status == "OPTIMAL"
    assert found.solutions[0].step_time_s <= simulation_of(question)(full)
    assert layout_bytes(question, found.solutions[0].layout) <= question.cluster.fillable_bytes


def test_a_refusal_of_many_rows_by_a_bound_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a large space are not looked at by what ranks hold. Where none may fit by that
    either the refusal is proved.
    """
    question = hybrid("megatron", zero_stage="1", data_parallel="2")
    need = layout_bytes(question, QUARTER)
    for module in (less_than_priced, least_of_kinds):
        monkeypatch.setattr(module, "MOST_REFUSED", 0)
    for usable_bytes, proved in ((need, False), (need / 2, True)):
        with pytest.raises(NoLayoutFits) as refused:
            solve(with_memory(question, usable_bytes), 1)
        assert refused.value.proved == proved
