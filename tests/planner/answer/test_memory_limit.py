"""One rule of how much memory a layout may fill: what is offered fits, and all say it alike."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshplan.costmodels.units import GIB, format_bytes
from meshplan.hardware_profiles.errors.memory_needs import FITS
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.explain import lacking_bytes, needed_bytes
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.memory_limit import crowded_words, limit_bytes, with_usable
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.check.check import case_of, check_paths
from meshplan.planner.cli.check import tools
from meshplan.planner.report.page.facts import assumptions
from meshplan.planner.whatif.changes import question_of

FULL = Arguments(model="llama-3.1-8b", gpus=8, cluster="dgx-h100", seq_len="8192", global_batch=128)


def planned(headroom: str | None, question: Arguments = FULL) -> Plan:
    asked = ask(replace(question, headroom=headroom))
    return plan_of(asked, solve(asked.question, 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("headroom", [None, "1%", "30GiB"])
def test_a_plan_fits_wherever_it_is_asked(headroom: str | None, tmp_path: Path) -> None:
    """`explain`, `check` and `what-if` describe the plan of what the GPU has, with the limit that
    the plan had, and none says that it does not fit, also where `--headroom` allowed more than the
    profile does.
    """
    plan, path = planned(headroom), tmp_path / "plan.yaml"
    write_plan(plan, path)
    (finding,) = check_paths([path], tools())
    again, case = predicted(case_of(plan)), case_of(plan)
    assert plan.prediction is not None
    gpu_bytes = load_cluster("dgx-h100").gpu.memory_bytes
    for said in (plan.prediction, again):
        assert said.gpu_memory_bytes == gpu_bytes
        assert said.plan_memory_bytes == plan.prediction.plan_memory_bytes
        assert lacking_bytes(said) <= 0
    assert (finding.verdict, finding.gpu_memory_bytes) == ("fits", gpu_bytes)
    assert finding.peak_bytes == needed_bytes(plan.prediction.memory) == needed_bytes(again.memory)
    assert finding.fits_probability == again.fits_probability
    assert not any("fits with a probability" in note for note in finding.notes)
    assert format_bytes(gpu_bytes) in finding.text
    assert not crowded_words(finding.peak_bytes, case.cluster)
    assert format_bytes(case.cluster.fillable_bytes) in assumptions(plan, case)
    assert question_of(plan).question.cluster.fillable_bytes == case.cluster.fillable_bytes


@pytest.mark.parametrize(
    ("needed_gib", "starts"),
    [
        pytest.param(60.0, "", id="60 of 70 that a plan may fill"),
        pytest.param(72.0, "fills 2.0 GiB of what a plan leaves free", id="72 - 70"),
        pytest.param(80.0, "does not fit: needs 4.0 GiB more", id="80 - 0.96 x 79.18"),
    ],
)
def test_three_verdicts_by_hand(needed_gib: float, starts: str) -> None:
    """Of the 79.18 GiB of an H100 a rank may use 76.0, and a plan here 70."""
    cluster = with_usable(load_cluster("dgx-h100"), 70 * GIB)
    assert limit_bytes(cluster) == pytest.approx(0.96 * cluster.gpu.memory_bytes)
    said = crowded_words(needed_gib * GIB, cluster)
    assert said.startswith(starts)
    assert bool(said) == bool(starts)


def test_check_passes_with_a_note_what_a_plan_may_not_fill(tmp_path: Path) -> None:
    """The same layout in a file that says nothing of its limit: it fits as surely, and is noted."""
    plan = planned(
        "4%", Arguments(model="llama-3.1-8b", gpus=32, cluster="dgx-h100", global_batch=1024)
    )
    assert plan.prediction is not None
    silent = plan.prediction.model_copy(update={"plan_memory_bytes": None})
    path = tmp_path / "plan.yaml"
    write_plan(plan.model_copy(update={"prediction": silent}), path)
    (finding,) = check_paths([path], tools())
    assert finding.verdict == "fits"
    assert finding.fits_probability is not None
    assert finding.fits_probability < FITS
    noted = f"it fits with a probability of {finding.fits_probability:.0%}"
    assert any("of what a plan leaves free" in note and noted in note for note in finding.notes)


@pytest.mark.parametrize("text", ["-1.0", ".nan", "0.0"])
def test_a_limit_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    """A plan file edited by hand."""
    path = tmp_path / "plan.yaml"
    write_plan(planned(None), path)
    said = re.sub(r"plan_memory_bytes: .*", f"plan_memory_bytes: {text}", path.read_text())
    path.write_text(said)
    (finding,) = check_paths([path], tools())
    assert finding.verdict == "unreadable"
    assert "plan_memory_bytes" in finding.text


def test_no_plan_file_says_that_a_gpu_has_more_memory() -> None:
    """A plan file that claims 1,000 GiB is judged by the 79.18 GiB that an H100 has."""
    plan = planned(None)
    assert plan.prediction is not None
    claims = plan.prediction.model_copy(update={"plan_memory_bytes": 1000 * GIB})
    cluster = case_of(plan.model_copy(update={"prediction": claims})).cluster
    assert limit_bytes(cluster) == cluster.gpu.memory_bytes


def test_a_plan_that_was_allowed_more_fits() -> None:
    """77 GiB lack 1.0 of the 76.0 that a rank may use, but not where --headroom left 1 GiB."""
    profile = load_cluster("dgx-h100")
    allowed = with_usable(profile, profile.gpu.memory_bytes - GIB)
    assert crowded_words(77 * GIB, profile).startswith("does not fit: needs 1.0 GiB more")
    assert not crowded_words(77 * GIB, allowed)


def test_what_a_plan_may_fill_changes_neither_price_nor_profile() -> None:
    """Step time and reserved memory of a layout are those of its GPU, whatever a plan may fill."""
    plan = planned(None)
    case = case_of(plan)
    less = replace(case, cluster=with_usable(case.cluster, GIB))
    assert predicted(less).memory == predicted(case).memory
    assert predicted(less).step_time_s == predicted(case).step_time_s
    assert (
        cluster_hash(less.cluster)
        == cluster_hash(load_cluster("dgx-h100"))
        == (plan.cluster.sha256)
    )
