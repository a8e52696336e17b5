"""A plan runs on its own engine; on another it is priced anew, and what cannot start says so."""

from dataclasses import replace
from pathlib import Path

import pytest
from called import executed
from tiny_runs import CLUSTER, DP2, tiny_plan, tiny_prediction

from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.engine.step.legality import check_engine_layout
from meshplan.executor.launch.plan_engine import engine_of, for_engine, repriced_line
from meshplan.executor.launch.preflight import CannotRun
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.plan_file import Plan, read_plan, write_plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.resolve import Case, model_from_config
from meshplan.planner.space.exchange_rules import with_kinds_of


def _made_for(engine: str) -> Plan:
    return tiny_plan(prediction=tiny_prediction(7.0)).model_copy(update={"engine": engine})


def _case(plan: Plan) -> Case:
    return Case(
        model=model_from_config(plan.model.config, "tiny"), layout=plan.layout,
        training=plan.training, cluster=CLUSTER, engine=load_engine(plan.engine),
    )  # fmt: skip


def test_the_engine_is_the_plans_unless_another_is_asked_for() -> None:
    """--engine wins over the plan."""
    assert engine_of(_made_for("nanotron"), None) == "nanotron"
    assert engine_of(_made_for("nanotron"), "native") == "native"


def test_an_own_plan_is_left_as_it_is() -> None:
    """Nothing is priced anew for the engine that the plan was made for, nor without a profile."""
    plan = _made_for("native")
    own = plan.model_copy(update={"prediction": predicted(_case(plan))})
    assert for_engine(own, "native", CLUSTER) is own
    assert for_engine(plan, "native", None) is plan


def test_an_edited_plan_is_compared_with_its_layout_as_it_is() -> None:
    """Twice the micro-batch under the prediction of one: time and memory are those of the layout
    in the file, memory before anything starts too, and the user is told.
    """
    made = tiny_plan(prediction=tiny_prediction(7.0))
    own = made.model_copy(update={"prediction": predicted(_case(made))})
    larger = replace(DP2, micro_batch_size=2 * DP2.micro_batch_size)
    edited = own.model_copy(update={"layout": larger})
    after = for_engine(edited, "native", CLUSTER)
    assert after.prediction == predicted(_case(edited))
    assert own.prediction is not None
    assert after.prediction.memory[0].activations > own.prediction.memory[0].activations
    assert "the file predicts" in repriced_line(edited, after)


def test_another_engine_is_priced_anew() -> None:
    """The prediction is what the cost model says of the same layout on that engine."""
    before = _made_for("megatron-bridge")
    after = for_engine(before, "native", CLUSTER)
    assert (after.engine, after.layout) == ("native", DP2)
    assert after.prediction == predicted(_case(after))
    assert after.runners_up[0].step_time_s != before.runners_up[0].step_time_s


def test_another_engine_has_its_own_kinds_of_exchanges() -> None:
    """What it does not choose is left to it, in every layout; what it has stays."""
    layout = replace(DP2, context_parallel=2, context_kind="ring", dispatcher="deepep")
    before = _made_for("megatron-bridge").model_copy(update={"layout": layout})
    kinds = {
        name: with_kinds_of(load_engine(name), layout) for name in ("native", "torchtitan", "nemo")
    }
    assert for_engine(before, "native", None).layout == kinds["native"]
    found = {name: (each.context_kind, each.dispatcher) for name, each in kinds.items()}
    assert found == {"native": ("", ""), "torchtitan": ("", "deepep"), "nemo": ("ring", "")}


@pytest.mark.parametrize(("field", "kind"), [("context_kind", "ring"), ("dispatcher", "deepep")])
def test_native_refuses_kinds_that_it_has_not(field: str, kind: str) -> None:
    """A plan file that states them is not run as something else."""
    model = model_from_config(tiny_plan().model.config, "tiny")
    layout = replace(DP2, context_parallel=2, expert_parallel=2, **{field: kind})
    with pytest.raises(InvalidLayout, match=f"{field} {kind} is not built"):
        check_engine_layout(layout, model, tiny_plan().training)


def test_without_a_profile_nothing_is_predicted() -> None:
    """The other engine's seconds are never set beside this one's."""
    after = for_engine(_made_for("megatron-bridge"), "native", None)
    assert (after.prediction, after.runners_up) == (None, ())


def test_a_layout_that_the_engine_does_not_run_is_refused() -> None:
    """torchtitan shards with ZeRO-2 and 3: a layout of ZeRO-1 is not run as something else."""
    with pytest.raises(CannotRun, match=r"torchtitan does not cover zero_stage 1; plan with"):
        for_engine(_made_for("native"), "torchtitan", CLUSTER)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("megatron-bridge", "megatron-bridge is not launched by execute"),
        ("nanotron", "nanotron trains on GPUs only (it calls torch.cuda.set_device and takes"),
    ],
)
def test_an_engine_that_cannot_start_exits_2(tmp_path: Path, engine: str, said: str) -> None:
    """One line that names --engine native, and nothing is started."""
    write_plan(_made_for(engine), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml")])
    assert answer.exit_code == 2
    assert answer.output.startswith(f"error: {said}")
    assert "--engine native" in answer.output
    assert len(answer.output.strip().splitlines()) == 1
    assert not (tmp_path / "plan.run").exists()


def test_the_run_of_another_engine_says_so(tmp_path: Path) -> None:
    """`--engine native` of a plan for another: a note with both predictions, and the plan file of
    the run is of the engine that runs it.
    """
    write_plan(_made_for("megatron-bridge"), tmp_path / "plan.yaml")
    starter = ["--launcher", "skypilot", "--set", "setup=true"]  # writes the run, starts nothing
    asked = [str(tmp_path / "plan.yaml"), "--engine", "native", *starter]
    answer = executed(asked)
    assert answer.exit_code == 0, answer.output
    assert "planned for megatron-bridge, run by native: priced anew, " in answer.output
    assert "where megatron-bridge takes 7 s" in answer.output
    ran = read_plan(tmp_path / "plan.run" / "plan.yaml")
    assert ran == for_engine(_made_for("megatron-bridge"), "native", CLUSTER)


@pytest.mark.parametrize(("made_for", "advised"), [("native", False), ("generic", True)])
def test_nobody_is_sent_to_the_engine_that_he_planned_with(made_for: str, advised: bool) -> None:
    """What native does not run: a plan of another engine is to be made for native, one of its own
    was.
    """
    plan = _made_for(made_for)
    layout = replace(DP2, optimizer_offload=0.5)
    with pytest.raises(CannotRun, match="optimizer_offload") as refused:
        for_engine(plan.model_copy(update={"layout": layout}), "native", CLUSTER)
    assert ("; plan with --engine native" in str(refused.value)) == advised
