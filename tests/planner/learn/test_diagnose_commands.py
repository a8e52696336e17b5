"""`diagnose` end to end: a log and its config in, what explains the difference, what is refused."""

import json
from pathlib import Path

import pytest
from called import answer
from random_plans import plan_of
from two_layouts import APART, PLANS, TRAINING, megatron_log, model_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.planner.case.plan_file import write_plan


def test_whose_config_is_not_clear(logs: list[str]) -> None:
    """A log that does not exist is called so; of many plans beside one a few are named."""
    log = Path(logs[0])
    missing = str(log.with_name("c.log"))
    assert answer("diagnose", missing)[2] == f"error: {missing}: cannot be read: no such file\n"
    for name in "abcdefg":
        log.with_name(f"plan_{name}.yaml").write_text(log.with_name("plan.yaml").read_text())
    said = "(beside it: plan.yaml, plan_a.yaml, plan_b.yaml, plan_c.yaml, plan_d.yaml, plan_e.yaml"
    assert f"{said} and 2 more); name it with --config" in answer("diagnose", logs[0])[2]
    folder = str(log.parent)
    assert answer("diagnose", folder)[2] == f"error: {folder}: not a file; name the log itself\n"
    log.write_text("\n")
    assert answer("diagnose", logs[0])[2] == f"error: {log}: empty\n"


def test_a_run_that_did_not_fit_is_said(logs: list[str]) -> None:
    """Its steps count, and what was expected of its memory stands beside the error."""
    log = Path(logs[0])
    log.write_text(log.read_text() + "torch.OutOfMemoryError: CUDA out of memory. Tried to\n")
    out = " ".join(answer("diagnose", logs[0])[1].split())
    assert "the run did not fit" in out
    assert "GiB reserved on the fullest rank" in out
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    code, _, error = answer("diagnose", logs[0])
    assert code == 2
    assert "no step times, and an out-of-memory error is in the log" in error


def test_a_run_that_cannot_be_as_its_config_says(tmp_path: Path) -> None:
    """70B on 8 GPUs needs more than they have: its log is of another run, or of one that recomputes
    more; 8B as planned needs no more.
    """
    layout = Layout(tensor_parallel=8, sequence_parallel=True, stages=even_stages(80, 1))
    for plan, lacks in ((plan_of("llama-3.1-70b", layout, TRAINING), True), (PLANS[0], False)):
        write_plan(plan, tmp_path / "plan.yaml")
        log = str(megatron_log(tmp_path / "a.log", 20.0))
        said = json.loads(answer("diagnose", log, "--json")[1])
        text = " ".join(answer("diagnose", log)[1].split())
        assert (said["expected_lacking_bytes"] is not None) == lacks
        assert ("the run keeps less than its config says" in text) == lacks


def test_diagnose(logs: list[str]) -> None:
    """The parts add up to the expected step; the document is JSON; the gap is a fifth."""
    code, out, _ = answer("diagnose", logs[0], "--json")
    said = json.loads(out)
    assert code in (0, 1)
    assert said["measured_over_expected"] == pytest.approx(1.2, rel=1e-3)
    assert sum(said["expected_parts_s"].values()) == pytest.approx(said["expected_step_time_s"])
    assert code == int(not said["inside_8_of_10"])
    assert said["reasons"]
    likely = [reason["probability"] for reason in said["reasons"]]
    assert likely == sorted(likely, reverse=True)
    assert 0 < sum(likely) < 1
    assert not any("is for configs" in note for note in said["notes"])
    otherwise = answer("diagnose", logs[0], "--json", "--gpus", "3", "--vocab-size", "77")[1]
    taken = [note for note in json.loads(otherwise)["notes"] if "is for configs" in note]
    assert [note.partition(" is ")[0] for note in taken] == ["--gpus 3", "--vocab-size 77"]
    code, out, _ = answer("diagnose", logs[0])
    assert "hypothesis" in out


def test_memory_in_use_on_the_device_is_no_reserved_peak(logs: list[str]) -> None:
    """As Primus logs it: held against what the allocator reserves and what is outside of it."""
    before = json.loads(answer("diagnose", logs[0], "--json")[1])
    with Path(logs[0]).open("a") as file:
        file.write("| hip mem usage/free/total/usage_ratio: 40.00GB/39.00GB/79.00GB/50.63% |\n")
    after = json.loads(answer("diagnose", logs[0], "--json")[1])
    *peaks, device = after["memory"]
    assert peaks == before["memory"]
    assert (device["kind"], device["measured_gib"]) == ("device", 40.0)
    stages = model_of(PLANS[0]).memory()
    reserved = max(float(model_of(PLANS[0]).reserved_bytes(stage)) for stage in stages)
    outside = device["expected_gib"] - reserved / 2**30
    assert outside == pytest.approx(model_of(PLANS[0]).context_bytes / 2**30)
    assert outside > 0.3
    assert [r["probability"] for r in after["reasons"]] != [
        r["probability"] for r in before["reasons"]
    ]
    assert "device memory: measured 40.0 GiB" in " ".join(answer("diagnose", logs[0])[1].split())


@pytest.mark.parametrize(("times", "said"), [(0.2, True), (0.8, False), (5.0, True)])
def test_a_run_that_is_far_off_may_be_of_another_config(
    logs: list[str], times: float, *, said: bool
) -> None:
    """A fifth and five times the expected step; nobody is told to learn from a fifth."""
    megatron_log(Path(logs[0]), times * model_of(PLANS[0]).time().step_time_s)
    out = " ".join(answer("diagnose", logs[0])[1].split())
    assert ("is the config that of this run" in out) == said
    assert ("`meshplan learn` can learn from it" in out) == (times == 0.8)


def test_an_unusual_factor_is_said_to_count_less(tmp_path: Path) -> None:
    """A run three times as long: what is 3 x as slow closes the gap and explains little of it, and
    the line below says why.
    """
    write_plan(PLANS[0], tmp_path / "plan.yaml")
    out = answer(
        "diagnose", str(megatron_log(tmp_path / "a.log", 3 * model_of(PLANS[0]).time().step_time_s))
    )[1]
    assert "explains less, the larger its factor is (1.6 x is one" in " ".join(out.split())
    assert "\\" not in out


def test_a_run_that_the_config_has_no_room_for_is_said(logs: list[str], tmp_path: Path) -> None:
    """8B whole on each of 8 GPUs of 80 GB, by AdamW: 16 bytes a parameter, 120 GiB alone; steps
    were logged all the same, so the config leaves something out.
    """
    whole = plan_of(
        "llama-3.1-8b", Layout(data_parallel=8, zero_stage=0, stages=even_stages(32, 1)), TRAINING
    )
    folder = tmp_path / "whole"
    folder.mkdir()
    write_plan(whole, folder / "plan.yaml")
    said = "more than the GPU's 79.2 GiB: either the run keeps less than its config says"
    assert said in " ".join(answer("diagnose", str(megatron_log(folder / "a.log", 9.0)))[1].split())
    assert said not in " ".join(answer("diagnose", logs[0])[1].split())


def test_a_learned_file_that_is_not_there_is_said_once(logs: list[str], tmp_path: Path) -> None:
    """The reason, not twice that there is one."""
    code, _, error = answer("diagnose", logs[0], "--learned", str(tmp_path / "none.yaml"))
    assert code == 2
    assert error.count("cannot be read") == 1


def test_a_run_of_execute_has_the_layout_of_its_plan(tmp_path: Path) -> None:
    """The same slow steps in a framework's log and in `execute`'s own result: of the latter no
    other recompute may be.
    """
    write_plan(APART[1], tmp_path / "plan.yaml")
    slow_s = 1.3 * model_of(APART[1]).time().step_time_s
    log = megatron_log(tmp_path / "a.log", slow_s)
    result = tmp_path / "result.json"
    result.write_text(
        json.dumps({"meshplan_run": 1, "step_times_s": [slow_s] * 12, "losses": [2.0] * 15})
    )
    names = [
        {each["name"] for each in json.loads(answer("diagnose", str(path), "--json")[1])["reasons"]}
        for path in (log, result)
    ]
    stated = "every layer recomputes its activations"
    assert stated in names[0]
    assert names[1] == names[0] - {stated}
