"""`meshplan what-if`: a figure moved is the question asked anew, and nothing else changes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from called import run

from meshplan.costmodels.layout import Stage
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import read_plan, write_plan
from meshplan.planner.case.seal import EDITED
from meshplan.planner.cli import what_if
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.sweep.cells import Answer
from meshplan.planner.whatif.asking import Asking
from meshplan.planner.whatif.break_even import NEAR, BestStep, break_even
from meshplan.planner.whatif.changes import Change, changed, question_of
from meshplan.planner.whatif.figures import FIGURES
from meshplan.planner.whatif.plot import draw, places
from meshplan.planner.whatif.report import break_even_words, other_layout
from meshplan.planner.whatif.tornado import Arm, Tornado, around

CLUSTER = load_cluster("dgx-h100")
JOB = ("tiny-llama", "--gpus", "16", "--cluster", "dgx-h100", "--global-batch", "64")
PINNED = ("--tp", "1,2", "--pp", "1", "--cp", "1", "--micro-batch", "1")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan over two nodes, with pins that keep its space small."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    result = run("plan", *JOB, *PINNED, "-o", str(path))
    assert result.exit_code == 0, result.output
    return path


def document(*arguments: str) -> dict[str, Any]:
    """The JSON document of `what-if`."""
    result = run("what-if", *arguments, "--json", "--jobs", "1")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_question_of_a_plan_is_the_one_asked(plan_file: Path) -> None:
    """Asked again unchanged, with its pins, the answer is the plan's own."""
    plan = read_plan(plan_file)
    asked = question_of(plan)
    assert plan.pins == {
        "tensor_parallel": "1,2", "pipeline_parallel": "1", "context_parallel": "1",
        "micro_batch_size": "1",
    }  # fmt: skip
    assert plan.prediction is not None
    assert asked.notes == ()
    again = solve(asked.question, 3).solutions[0]
    assert again.layout == plan.layout
    assert again.step_time_s == pytest.approx(plan.prediction.step_time_s)


def test_headroom_and_missing_pins_are_said(plan_file: Path) -> None:
    """A plan with other memory free asks with as much free; one that says no pins, without."""
    plan = read_plan(plan_file)
    assert plan.prediction is not None
    less = plan.prediction.gpu_memory_bytes / 2
    prediction = plan.prediction.model_copy(update={"plan_memory_bytes": less})
    asked = question_of(plan.model_copy(update={"prediction": prediction, "pins": None}))
    assert asked.question.cluster.fillable_bytes == less
    assert any("left more or less memory free" in note for note in asked.notes)
    assert any("does not state its pins" in note for note in asked.notes)


def test_a_change_is_the_answer_of_its_own_question(plan_file: Path) -> None:
    """`--gpu h200 --seq-len 2k` is what the search says of H200s in the same nodes; each alone too;
    the ratio is of as many tokens.
    """
    found = document(
        str(plan_file), "--gpu", "h200", "--seq-len", "2k", "--tokens", "1T",
        "--price-per-gpu-hour", "2",
    )  # fmt: skip
    before, (after, alone, other) = found["before"], found["after"]
    assert after["gpu"] == alone["gpu"] == "h200"
    assert other["seq_len"] == 2048
    assert "seq_len" not in alone
    question = changed(question_of(read_plan(plan_file)), Change(gpu="h200", seq_len=2048)).question
    assert question.cluster.gpu.name == "h200"
    assert question.cluster.network == CLUSTER.network
    expected_s = solve(question, 3).solutions[0].step_time_s
    assert after["step_time_s"] == pytest.approx(expected_s)
    tokens = read_plan(plan_file).training.global_batch_tokens
    same_s = expected_s * tokens / question.training.global_batch_tokens
    assert after["same_tokens_s"] == pytest.approx(same_s)
    assert after["change_fraction"] == pytest.approx(same_s / before["step_time_s"] - 1)
    days = 1e12 / question.training.global_batch_tokens * expected_s / 86400
    assert after["days"] == pytest.approx(days, rel=1e-3)
    assert after["cost"] == pytest.approx(days * 24 * 16 * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "by", "ends"),
    [
        pytest.param(64, 0.2, (48, 80), id="51.2 and 76.8 in eights: 6 and 10"),
        pytest.param(16, 0.1, (8, 24), id="14.4 and 17.6 are 16 itself: one eight either way"),
        pytest.param(8, 0.2, None, id="nothing less than one eight"),
    ],
)
def test_multiples_around(value: int, by: float, ends: tuple[int, int] | None) -> None:
    """A batch moves by whole replicas, and moves."""
    assert around(value, by, 8) == ends


def test_bars_to_the_same_side_stand_below_each_other() -> None:
    """Both ends 2 % and 3 % longer would cover one another; on either side they share a row."""
    assert places(4, 0.03, 0.02) == (3.8, 4.2)
    assert places(4, 0.03, -0.02) == (4, 4)
    assert places(4, 0.03, None) == (4, 4)


def test_an_end_without_a_plan_says_no_more_than_is_known(plan_file: Path, tmp_path: Path) -> None:
    """On the picture too: that nothing was found is not that nothing fits."""
    plan, picture = read_plan(plan_file), tmp_path / "t.svg"
    before = Asking(change=Change(), asked=question_of(plan),
                    answer=Answer(status="OPTIMAL", plan=plan))  # fmt: skip
    down, up = (
        replace(before, change=Change(factors={"memory": factor}),
                answer=Answer(status="INFEASIBLE", may_fit=factor > 1))
        for factor in (0.8, 1.2)
    )  # fmt: skip
    arm = Arm(name="memory", words="memory", down=down, up=up)
    draw(Tornado(by=0.2, before=before, arms=(arm,), unseen=()), picture)
    words = picture.read_text(encoding="utf-8").replace("\u2212", "-")
    assert "-20%: nothing fits" in words
    assert "+20%: nothing was found that fits" in words


def test_tornado_is_ordered_and_signed(plan_file: Path, tmp_path: Path) -> None:
    """The longest arm first; a better figure never makes the proved step longer, a worse one never
    shorter, for the bound space is the same; what one cannot see is not moved.
    """
    picture = tmp_path / "t.svg"
    found = document(str(plan_file), "--by", "30%", "--plot", str(picture))
    swings = [arm["swing_fraction"] for arm in found["arms"]]
    assert swings == sorted(swings, reverse=True)
    names = {arm["name"] for arm in found["arms"]}
    assert names == (set(FIGURES) - {"host_link"}) | {"global_batch_size", "seq_len"}
    assert found["not_moved"] == [FIGURES["host_link"].words]
    for arm in found["arms"]:
        if arm["name"] not in FIGURES:
            continue
        worse, better = arm["down"], arm["up"]
        if arm["name"] == "network_latency":
            worse, better = better, worse
        assert better["change_fraction"] <= 1e-6
        assert worse["change_fraction"] >= -1e-6
        down, up = arm["down"]["change_fraction"], arm["up"]["change_fraction"]
        assert arm["swing_fraction"] == pytest.approx(max(up, down, 0.0) - min(up, down, 0.0))
    words = picture.read_text(encoding="utf-8")
    assert FIGURES["matmul"].words in words
    assert "-30%" in words.replace("\u2212", "-")


def test_another_cut_of_the_same_degrees_is_another_layout(plan_file: Path) -> None:
    """The label leaves out stages, schedule and kinds of exchange; the star does not."""
    plan = read_plan(plan_file)
    asked = ask(Arguments(model="tiny-llama", gpus=16, cluster="dgx-h100", global_batch=64))
    kept = plan.layout.stages[0].layers
    cut = replace(plan.layout, stages=(Stage(kept - 1), Stage(1)), pipeline_parallel=2)
    other = replace(cut, stages=(Stage(1), Stage(kept - 1)))
    before, after = (
        Asking(
            change=Change(), asked=asked,
            answer=Answer(status="OPTIMAL", plan=plan.model_copy(update={"layout": layout})),
        )
        for layout in (cut, other)
    )  # fmt: skip
    assert cut.label == other.label
    assert other_layout(after, before)
    assert not other_layout(before, before)


def test_a_file_with_another_layout_is_said(plan_file: Path, tmp_path: Path) -> None:
    """`--top 1` and `--robust` choose otherwise than a question that is asked again: what stood
    under "as planned" was not the plan.
    """
    plan, other = read_plan(plan_file), tmp_path / "other.yaml"
    write_plan(plan.model_copy(update={"layout": plan.runners_up[0].layout}), other)
    said = f"note: the file's own layout is {plan.runners_up[0].layout.full_label} ("
    for arguments in (("--matmul", "1.1x"), ()):
        noted = document(str(other), *arguments)
        assert noted["before"]["label"] == plan.layout.label
        assert [note.startswith(said) for note in noted["notes"]].count(True) == 1
        assert plan.layout.full_label in noted["notes"][-1]
    assert not document(str(plan_file), "--matmul", "1.1x")["notes"]


def test_people_read_the_interval_and_what_it_is(plan_file: Path) -> None:
    """For people both steps stand with their interval, and the answer says that it is predicted."""
    text = " ".join(run("what-if", str(plan_file), "--matmul", "1.1x").stdout.split())
    assert "as planned matmul 1.1x" in text
    assert "in 8 of 10 runs" in text
    assert "all figures are predictions of the cost model" in text


def test_what_changes_do_alone_is_no_note_of_its_own(plan_file: Path) -> None:
    """Of another machine with another GPU in it the links are that machine's, which is said once;
    that the GPU alone would have the plan's own links contradicts it.
    """
    changes = ("--cluster", "dgx-h200", "--gpu", "b200")
    words = " ".join(run("what-if", str(plan_file), *changes, "--jobs", "1").stdout.split())
    assert words.count("only the GPU is changed") == 1
    assert "host stay those of dgx-h200" in words
    assert "alone: gpu b200" in words


def test_what_does_not_fit_lacks_so_much(tmp_path: Path) -> None:
    """8B on one H100: the bytes that the nearest miss lacks, for people and in the document."""
    path = str(tmp_path / "plan.yaml")
    job = ("llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "64")
    assert run("plan", *job, *PINNED, "-o", path).exit_code == 0
    asked = ("what-if", path, "--gpus", "1", "--jobs", "1")
    after = json.loads(run(*asked, "--json").stdout)["after"][0]
    assert (after["status"], after["step_time_s"]) == ("INFEASIBLE", None)
    assert after["lacking_bytes"] > 1e9
    text = " ".join(run(*asked).stdout.split())
    assert f"gpus 1: {after['reason']}" in text


def test_one_gpu_is_said_in_the_singular(tmp_path: Path) -> None:
    """By `what-if`, and in the first comment of what is exported from the same plan."""
    path = str(tmp_path / "one.yaml")
    job = ("tiny-llama", "--gpus", "1", "--cluster", "dgx-h100", "--engine", "megatron")
    assert run("plan", *job, "--global-batch", "8", "-o", path).exit_code == 0
    said = run("what-if", path, "--matmul", "1.1x", "--jobs", "1").stdout
    assert "tiny-llama on 1 GPU of dgx-h100" in " ".join(said.split())
    for framework in ("megatron", "torchtitan"):
        exported = run("export", path, "--to", framework, "-o", str(tmp_path / framework))
        assert exported.exit_code == 0, exported.output
        files = (each for each in (tmp_path / framework).rglob("*") if each.is_file())
        text = "".join(each.read_text(encoding="utf-8") for each in files)
        assert "1 GPUs" not in text
        assert "on 1 GPU." in text or framework == "torchtitan"


@pytest.mark.parametrize("crossing", [0.1, 0.4, 3.0, 20.0])
def test_break_even_finds_the_crossing(crossing: float) -> None:
    """t(16) = 1 + c / f crosses t(8) = 2 at f = c, whichever is faster today."""
    asked = ask(Arguments(model="tiny-llama", gpus=16, cluster="dgx-h100", global_batch=64))

    def step(question: Question) -> float:
        rate = question.cluster.network.bus_bandwidth.send
        return 1 + crossing * CLUSTER.network.bus_bandwidth.send / rate

    def either(question: Question) -> BestStep:
        return BestStep(2.0) if question.gpus == 8 else BestStep(step(question), gap=0.02)

    found = break_even(asked, 8, either)
    assert found.below is not None
    assert found.above is not None
    assert found.below.factor <= crossing <= found.above.factor
    assert found.above.factor / found.below.factor <= NEAR
    assert (found.below.beats, found.above.beats) == (False, True)
    assert found.now.beats == (crossing < 1)
    (said, *_) = [each for each in break_even_words(found) if "proved" in each]
    assert said == "not all of these steps are proved: steps up to 2.0% shorter may exist"


def test_break_even_that_no_network_reaches() -> None:
    """Where the smaller size always wins, there is no crossing to name."""
    asked = ask(Arguments(model="tiny-llama", gpus=16, cluster="dgx-h100", global_batch=64))
    found = break_even(asked, 8, lambda q: BestStep(1.0 if q.gpus == 8 else math.inf))
    assert found.below is None
    assert found.above is None


def test_a_size_of_which_nothing_was_found_is_not_proved_too_small(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table and the words beside it say so; the document has no gap to state."""

    def none_found(question: Question, *_: Any) -> Any:
        if question.gpus == 8:
            raise NoLayoutFits("no layout was found that fits", proved=False)
        return solve(question, 1)

    monkeypatch.setattr(what_if, "solve", none_found)
    result = run("what-if", str(plan_file), "--break-even", "network")
    assert "nothing was found that fits: it is not proved that nothing does" in result.stdout
    assert "nothing fits" not in result.stdout
    assert document(str(plan_file), "--break-even", "network")["now"]["gap"] is None


@pytest.mark.few(1)
@pytest.mark.parametrize("network", ["8Gb/s", "25Gb/s"])
def test_break_even_end_to_end(tmp_path: Path, network: str) -> None:
    """Two nodes of 4 RTX 4090 need 4.18 GB/s to beat one, whatever network they are planned with:
    with 8 Gb/s of each GPU they do not have it, with 25 Gb/s they do.
    """
    path = tmp_path / "plan.yaml"
    job = ("--gpu", "rtx-4090", "--gpus-per-node", "4", "--network", network)
    pins = ("--zero", "0,1", "--tp", "1", "--pp", "1", "--cp", "1")
    planned = run("plan", "qwen2.5-0.5b", "--gpus", "8", *job, "--global-batch", "8", *pins,
                  "-o", str(path))  # fmt: skip
    assert planned.exit_code == 0, planned.output
    found = document(str(path), "--break-even", "network")
    assert (found["gpus"], found["than_gpus"]) == (8, 4)
    beats = found["now"]["step_time_s"] < found["now"]["than_step_time_s"]
    assert beats == (network == "25Gb/s")
    assert found["notes"] == []
    below, above = found["below"], found["above"]
    assert below["node_bytes_per_s"] < 4.18e9 < above["node_bytes_per_s"] * NEAR
    assert above["factor"] <= below["factor"] * NEAR
    assert above["step_time_s"] < above["than_step_time_s"]
    assert below["step_time_s"] >= below["than_step_time_s"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "given",
    [
        ("--network", "2x"),
        ("--break-even", "network", "--than", "4"),
        pytest.param(("--by", "10%"), marks=pytest.mark.nightly),
    ],
)
def test_a_file_that_was_edited_is_said_to_be(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Whatever is asked of it, for people and in the document."""
    path = tmp_path / "plan.yaml"
    job = ("--gpus", "8", "--gpu", "rtx-4090", "--gpus-per-node", "4", "--network", "10Gb/s")
    pins = ("--zero", "1", "--tp", "1", "--pp", "1", "--cp", "1", "--micro-batch", "1")
    pins += ("--recompute", "none", "--global-batch", "8")
    assert run("plan", "qwen2.5-0.5b", *job, *pins, "-o", str(path)).exit_code == 0
    path.write_text(path.read_text().replace("status: OPTIMAL", "status: FEASIBLE", 1))
    assert document(str(path), *given)["notes"] == [f"note: {EDITED}"]
    text = run("what-if", str(path), *given).stdout
    assert EDITED[:40] in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--matmul", "9x"), "beyond the peak"),
        (("--plot", "t.svg", "--hbm", "2x"), "leave out the changes"),
        (("--than", "8"), "--than needs --break-even"),
        (("--network", "2x", "--break-even", "network"), "leave out --network"),
        (("--break-even", "network", "--than", "16"), "not below the 16"),
        (("--price-per-gpu-hour", "2"), "needs --tokens"),
        (("--by", "95%"), "not between"),
        (("--by", "-20%"), "--by '-20%' is not between"),
        (("--gpu", "h2000"), "no GPU called"),
        (("--gpu", "v100-32gb"), "no such matrix units"),
        (("--gpus", "8", "--break-even", "network"), "one node, which has no network"),
    ],
)
def test_bad_input_is_one_line(plan_file: Path, arguments: tuple[str, ...], said: str) -> None:
    """Exit 2, with one line that names the option or the value."""
    result = run("what-if", str(plan_file), *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("down", "up", "swing"),
    [
        (0.9, 1.2, 0.3),
        pytest.param(1.027, 1.028, 0.028, id="longer either way"),
        pytest.param(0.95, 0.97, 0.05, id="shorter either way"),
        (None, 1.2, math.inf),
    ],
)
def test_a_swing_is_seen_from_the_plan(down: float | None, up: float | None, swing: float) -> None:
    """A figure that costs 2.7 % whichever way it moves does not move the step by 0.1 %."""
    ends = (SimpleNamespace(same_tokens_s=lambda _, end=end: end) for end in (down, up))
    arm = Arm(name="seq_len", words="", down=cast(Asking, next(ends)), up=cast(Asking, next(ends)))
    assert arm.swing(1, 1.0) == pytest.approx(swing)
