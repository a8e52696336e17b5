"""No verdict without sense, and each at its line."""

import re
from pathlib import Path

from hand_priced import (
    GIVEN,
    SCRIPT,
    a_plan,
    check_plan,
    check_text,
    price,
    tools_of,
)
from random_plans import CLUSTER

from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import Prediction, write_plan
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths


def test_an_mfu_above_one_is_no_verdict(tmp_path: Path) -> None:
    """A price above the hardware's peak is a defect of ours, and is said to be."""

    def too_fast(case: Case) -> Prediction:
        return price(case).model_copy(update={"mfu": 1.2})

    path = tmp_path / "plan.yaml"
    write_plan(a_plan(), path)
    (finding,) = check_paths([path], tools_of(too_fast))
    assert finding.verdict == "incomplete"
    assert "MFU of 1.20" in finding.text
    assert "defect of meshplan" in finding.text
    assert finding.step_time_s is None


def test_a_zero_stage_that_does_not_exist_is_illegal(tmp_path: Path) -> None:
    """A plan with zero_stage 7 breaks a rule, at its line."""
    path = tmp_path / "plan.yaml"
    write_plan(a_plan(), path)
    text = re.sub(r"zero_stage: 1", "zero_stage: 7", path.read_text())
    finding = check_text(path, text)
    assert (finding.verdict, finding.line) == (
        "illegal",
        text[: text.index("zero_stage")].count("\n") + 1,
    )
    assert "zero_stage 7; it is 0, 1, 2 or 3" in finding.text
    assert check_plan(path, a_plan()).verdict == "fits"


def test_a_model_in_the_settings_fills_in_and_never_replaces(tmp_path: Path) -> None:
    """A script that states 16 layers keeps them; only the vocabulary comes from the settings."""
    settings = f'cluster = "{CLUSTER}"\nmodel = "llama-3.1-405b"\n'
    (tmp_path / "meshplan.toml").write_text(settings)
    seen: list[Case] = []

    def noted(case: Case) -> Prediction:
        seen.append(case)
        return price(case)

    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.replace("--vocab-size 128256 ", ""))
    (finding,) = check_paths([path], tools_of(noted))
    assert finding.verdict == "fits"
    assert (seen[0].model.num_layers, seen[0].model.hidden) == (16, 2048)
    assert seen[0].model.vocab == 128256


def test_what_is_not_understood_makes_a_file_incomplete_at_its_line(tmp_path: Path) -> None:
    """The flag, its reason and what else is missing stand in one line."""
    text = SCRIPT.rstrip() + " \\\n    --window-size 128,0\n"
    finding = check_text(tmp_path / "train.sh", text, GIVEN)
    assert (finding.verdict, finding.line) == ("incomplete", 6)
    assert finding.text == "not understood: --window-size (another attention is not modelled)"
    both = check_text(tmp_path / "train.sh", text, Settings())
    assert "not understood: --window-size" in both.text
    assert "missing: cluster" in both.text


def test_each_case_of_a_file_has_its_finding(tmp_path: Path) -> None:
    """A loop over a degree gives a finding for each value."""
    body = SCRIPT.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size $TP")
    path = tmp_path / "sweep.sh"
    path.write_text(f"for TP in 1 2 3; do\n{body}\ndone\n")
    found = check_paths([path], tools_of(price), GIVEN)
    assert [each.verdict for each in found] == ["fits", "fits", "illegal"]
    assert [each.text[:11] for each in found] == ["case 1 of 3", "case 2 of 3", "case 3 of 3"]


def test_mfu_of_fp32_is_of_the_units_that_multiply() -> None:
    """fp32 training multiplies in TF32 on an H100: utilisation is of 494.5e12, never above 1."""
    arguments = Arguments(
        model="llama-3.2-1b", gpus=8, cluster="dgx-h100", seq_len="2048", global_batch=512,
        precision="fp32", engine="native", pins={"micro_batch_size": "8"},
    )  # fmt: skip
    asked = ask(arguments)
    prediction = plan_of(asked, solve(asked.question, 1)).prediction
    assert prediction is not None
    assert prediction.mfu is not None
    assert 0.1 < prediction.mfu < 1
