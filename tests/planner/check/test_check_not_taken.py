"""Options that a file takes nothing of."""

from pathlib import Path

import pytest
from hand_priced import TOOLS, a_plan, check_text
from random_plans import CLUSTER

from meshplan.planner.case.plan_file import write_plan
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths


@pytest.mark.parametrize(
    ("option", "given"),
    [
        pytest.param("--launched-by", {"launched_by": "/not/there.yaml"}, id="a launcher"),
        pytest.param("--joined-with", {"joined_with": ("/not/there.yml",)}, id="a part"),
    ],
)
def test_a_file_that_takes_no_other_says_so(
    tmp_path: Path, option: str, given: dict[str, str | tuple[str, ...]]
) -> None:
    """Of the options alone: settings are for a folder whose files differ."""
    path = tmp_path / "ds.json"
    text = '{"zero_optimization": {"stage": 3}, "train_batch_size": 16}'
    told = Settings(cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048)
    said = check_text(path, text, told.model_copy(update=given))
    plain = check_text(path, text, told)
    assert f"{option} changes nothing of what this file says" in said.notes
    assert not any(option in note for note in plain.notes)
    assert said.label == plain.label
    write_plan(a_plan(), tmp_path / "plan.yaml")
    (of_plan,) = check_paths([tmp_path / "plan.yaml"], TOOLS, Settings.model_validate(given))
    assert f"{option} is for configs: this plan says everything itself" in of_plan.notes
