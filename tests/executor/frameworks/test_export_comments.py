"""Comments of an exported file: which of them wait, which are notes, and where they stand."""

from dataclasses import replace
from pathlib import Path

import pytest
from random_plans import plan_of

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.beside_export import commented, settings_text
from meshplan.planner.case.plan_file import Plan, PlanModel
from meshplan.planner.case.reading import CannotSay, Exported, IllegalConfig
from meshplan.planner.case.resolve import Case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.case.unsaid import LeftToCode, check_left, comment_of, noted, notes_of
from meshplan.planner.case.unsaid import unsaid_in as comments

TEXT = '{"zero_optimization": {"stage": 1}, "train_batch_size": 64}'
GIVEN = Settings(cluster="dgx-h100", gpus=8, model="llama-3.1-8b", seq_len=4096)
NEVER = [
    CannotSay("layout.shard_group", 4, "a"),
    CannotSay("numerics.rotary_scaling", "x", "b"),
    CannotSay("model", "llama-3.1-8b", "c"),
    CannotSay("model", "qwen3-8b", "d"),
]
LEFT = [
    CannotSay("layout.pipeline_parallel", 4, "e", left=True),
    CannotSay("training.lora", "rank 16", "f", left=True),
]
BESIDE = "\n".join(f"# {comment_of(each)}" for each in (*NEVER, *LEFT))


def _case() -> Case:
    return resolve(read_config(TEXT, "ds.json"), GIVEN, Settings())


def _plan() -> Plan:
    layout = Layout(data_parallel=8, stages=even_stages(32, 1))
    return plan_of("llama-3.1-8b", layout, Training(seq_len=4096, global_batch_size=64))


def _exported(files: dict[str, str], cannot_say: list[CannotSay]) -> Exported:
    return Exported(framework="x", files=files, launch="", cannot_say=tuple(cannot_say))


def test_notes_are_of_what_nothing_can_mend() -> None:
    """Not of numerics, which have no price, nor of the model that is priced, nor of the code's."""
    notes = notes_of(comments(BESIDE), _case())
    assert [each.partition(", without ")[2] for each in notes] == [
        "layout.shard_group = 4: a", "model = qwen3-8b: d",
    ]  # fmt: skip


def test_what_the_code_may_add_waits() -> None:
    """Where no layout follows at all, what the code may add to the layout alone."""
    with pytest.raises(LeftToCode, match=r"pipeline_parallel = 4.*lora = rank 16"):
        check_left(comments(BESIDE), _case(), GIVEN)
    with pytest.raises(LeftToCode) as refused:
        check_left(comments(BESIDE), None, GIVEN)
    assert "training.lora" not in str(refused.value)


def test_beside_another_plan_all_but_settings_and_numerics_is_told() -> None:
    """A pipeline is a setting, adapters are none."""
    notes = " ".join(noted(read_config(TEXT, "ds.json"), BESIDE).notes)
    assert "training.lora" in notes
    assert "layout.shard_group" in notes
    assert "numerics" not in notes
    assert "pipeline_parallel" not in notes


def test_comments_stand_below_the_shebang() -> None:
    """The kernel reads the first line."""
    exported = _exported({"a.sh": "#!/bin/bash\nrun\n"}, NEVER[:1])
    text = commented(lambda *_: exported)(_plan(), 8).files["a.sh"]
    assert text == f"#!/bin/bash\n# {comment_of(NEVER[0])}\nrun\n"


def test_settings_state_what_the_files_leave_open() -> None:
    """The pipeline only where it is left; no rule for some layers; a changed model is a file."""
    plan, exported = _plan(), _exported({}, [])
    assert "pipeline_parallel" not in settings_text(plan, exported, "", Path())
    left = replace(exported, cannot_say=tuple(LEFT))
    assert "pipeline_parallel = 1" in settings_text(plan, left, "", Path())
    some = replace(plan.layout, stages=(Stage(32, full_layers=3),))
    assert "recompute" not in settings_text(
        plan.model_copy(update={"layout": some}), exported, "", Path()
    )
    model = PlanModel.of(plan.model.name, {**plan.model.config, "vocab_size": 1024})
    text = settings_text(plan.model_copy(update={"model": model}), exported, "", Path())
    assert 'model = "./' in text


def test_degrees_of_a_file_that_leaves_none_are_denied_by_the_gpus() -> None:
    """One replica of one GPU is not 8 GPUs, and no code explains the other 7."""
    reading = replace(read_config(TEXT, "ds.json"), left_to_code=frozenset())
    reading = replace(
        reading, facts={**reading.facts, "data_parallel": reading.facts["zero_stage"]}
    )
    with pytest.raises(IllegalConfig):
        resolve(reading, GIVEN, Settings())
