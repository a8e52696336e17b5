"""Explanations: parts of the time, reasons, the page and the pictures on it."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from explained_cases import LAYOUTS, case
from random_plans import plan_of
from tiny_runs import tiny_plan, tiny_prediction
from typer.testing import CliRunner

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.alternatives import Alternative
from meshplan.planner.answer.answer import case_at, reasons
from meshplan.planner.answer.explain import (
    TimeParts,
    alternatives,
    lacking_bytes,
    lost_by,
    notches,
    priced,
    time_parts,
    timed,
)
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import StageMemory, write_plan
from meshplan.planner.case.predict import predicted, step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.check.check import case_of
from meshplan.planner.cli.main import app
from meshplan.planner.report.page.facts import assumptions
from meshplan.planner.report.page.markup import element, round_step
from meshplan.planner.report.page.memory import ranks_picture
from meshplan.planner.report.page.scatter import scatter
from meshplan.planner.report.runners_up import ONE_CHANGE, OTHERS, SLOWER
from meshplan.planner.report.tables import (
    CATEGORIES,
    folded,
    memory_line,
    time_line,
    unmeasured_line,
)


@pytest.mark.parametrize("given_case", LAYOUTS)
def test_parts_sum_to_the_step(given_case: Case) -> None:
    """The parts add up to the step time, none is negative, recompute costs only if done."""
    model = step_model_of(given_case)
    parts = time_parts(model)
    assert parts.total_s == pytest.approx(model.time().step_time_s)
    assert all(seconds >= -1e-9 for _, seconds in parts.items())
    assert (parts.recompute_s > 0) == (given_case.layout.recompute != "none")


def test_lost_by_sums_to_the_difference() -> None:
    """What one layout loses to another adds up to the difference of their step times."""
    one, other = (
        time_parts(step_model_of(c)) for c in (case(), case(stages=even_stages(32, 4, "full")))
    )
    lost = lost_by(one, other)
    assert sum(lost.values()) == pytest.approx(other.total_s - one.total_s)
    assert next(iter(lost)) == "recompute_s"
    assert lost_by(one, one) == {}


def test_a_legend_names_what_does_not_fit_where_it_is_shown() -> None:
    """A hollow dot, and one line of the legend for all of them; none where all fit."""
    layout = Layout(data_parallel=8, stages=even_stages(32, 1))
    fits, lacks = (
        Alternative(layout=layout, step_time_s=1.0, needed_bytes=60e9, fits=each)
        for each in (True, False)
    )
    told = ("title", "label", "legend")
    assert "hollow" not in scatter([fits, fits], 80e9)
    assert scatter([fits, lacks], 80e9).count("does not fit") == len(told)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("dgx-h100", "learnt from 19 runs on"),
        ("local-cpu:2", "no constants were learnt for native"),
    ],
)
def test_what_the_numbers_rest_on(cluster: str, said: str) -> None:
    """Constants of an engine on a GPU family, or none: nobody publishes steps of a processor."""
    plan = tiny_plan(prediction=tiny_prediction(1.0))
    own = case_of(plan)
    assert said in assumptions(plan, replace(own, cluster=load_cluster(cluster)))


def test_an_attribute_that_is_none_is_left_out() -> None:
    """A trailing underscore is for Python's own words."""
    assert element("p", "x", title=None, class_="a") == '<p class="a">x</p>'


def test_alternatives_agree_with_the_price() -> None:
    """Each alternative says what pricing that layout by itself says."""
    chosen = case()
    prediction = predicted(chosen)
    found = list(alternatives(timed(chosen)))
    assert len(found) > 5
    for change in found:
        own = predicted(replace(chosen, layout=change.fix.layout))
        if change.slower is None:
            assert change.lacks_bytes == pytest.approx(lacking_bytes(own))
        else:
            assert change.slower == pytest.approx(own.step_time_s / prediction.step_time_s - 1)


def test_each_changed_layout_is_said_once() -> None:
    """With 12 pipeline ranks two ways to fewer ranks led to one, and the same line stood twice."""
    asked = ask(Arguments(
        model="qwen3-30b-a3b", gpus=24, cluster="l40s-8", engine="automodel", global_batch=24
    ))  # fmt: skip
    layout = Layout(
        data_parallel=2, pipeline_parallel=12, virtual_stages=2, schedule="interleaved_1f1b",
        zero_stage=2, stages=even_stages(48, 24),
    )  # fmt: skip
    found = [fix.layout for fix in notches(case_at(asked.question, layout))]
    assert len(found) == len(set(found)) > 10


def test_reasons_are_sentences() -> None:
    """A reason names the change and what it would cost."""
    found = reasons(priced(case()))
    assert any(text.startswith("micro_batch_size 2: ") for text in found)
    assert all(any(word in t for word in ("slower", "faster", "as fast", "needs")) for t in found)


def test_what_is_faster_than_the_bound_is_outside_the_space() -> None:
    """A change is marked where its step is below the bound, and no other: here the bound is that of
    the median change.
    """
    plan = priced(case())
    timed = {c.fix.text: c.slower for c in alternatives(plan.timed) if c.slower is not None}
    middle = sorted(timed.values())[len(timed) // 2]
    told = reasons(plan, plan.prediction.step_time_s * (1 + middle))
    assert not any("not in the space" in text for text in reasons(plan))
    marked = {text.split(":")[0] for text in told if "not in the space" in text}
    shown = {text.split(":")[0] for text in told} & timed.keys()
    assert marked == {text for text in shown if timed[text] < middle - 0.0005}
    assert marked


@pytest.mark.parametrize(
    ("slower", "told"),
    [
        pytest.param(0.001, True, id="the runner-up of these degrees is nearly as fast"),
        pytest.param(9.0, False, id="it is slower than the change alone"),
    ],
)
def test_a_change_to_the_degrees_of_a_runner_up_names_it(slower: float, told: bool) -> None:
    """A change keeps all else, which a runner-up need not: both figures stand side by side."""
    plan = priced(case())
    moved = next(c for c in alternatives(plan.timed) if c.fix.text.startswith("tensor_parallel"))
    other = replace(moved.fix.layout, micro_batch_size=2 * moved.fix.layout.micro_batch_size)
    step_s = plan.prediction.step_time_s * (1 + slower)
    own = (replace(plan.case.layout, zero_stage=0), step_s)  # of the plan's degrees: no other kind
    found = reasons(plan, others=(own, (other, step_s)))
    naming = [text for text in found if "the runner-up" in text]
    assert naming == [t for t in found if told and t.startswith(f"{moved.fix.text}: ")]
    assert all(text.endswith(f"the runner-up {other.full_label}: {slower:+.1%}")
               for text in naming)  # fmt: skip
    assert bool(naming) == told


def test_memory_picture_is_to_scale() -> None:
    """The boxes of a rank are as wide as their share of the memory."""
    memory = predicted(case()).memory
    root = ET.fromstring(ranks_picture(memory, 80e9))
    bar = root.find("div")
    assert bar is not None
    widths = {
        box.get("class"): float(box.get("style", "").removeprefix("width:").removesuffix("%"))
        for box in bar.iter("i")
        if box.get("class") != "limit"
    }
    whole = sum(getattr(memory[0], name) for name in widths)
    for name, width in widths.items():
        assert width / sum(widths.values()) == pytest.approx(
            getattr(memory[0], str(name)) / whole, abs=1e-4
        )


@pytest.mark.parametrize(
    ("least", "step"),
    [
        pytest.param(0.9, 1.0, id="0.9 -> 1"),
        pytest.param(1.2, 2.0, id="1.2 -> 2"),
        pytest.param(43.0, 50.0, id="43 -> 50"),
        pytest.param(0.06, 0.1, id="0.06 -> 0.1"),
        pytest.param(5.0, 5.0, id="5 stays"),
    ],
)
def test_round_step(least: float, step: float) -> None:
    """Ticks are 1, 2 or 5 times a power of ten."""
    assert round_step(least) == pytest.approx(step)


def test_folded_names_each_rank_once() -> None:
    """Neighbours that hold the same share one line, others keep their own."""
    one = StageMemory(weights=1e9, gradients=0, optimizer=0, activations=0, transient=0, context=0,
                      slack=0, allocated=1e9, reserved=1e9)  # fmt: skip
    two = one.model_copy(update={"weights": 2e9})
    titles = [title for title, _ in folded([two, one, one, one, two])]
    assert titles == ["rank 0", "ranks 1-3", "rank 4"]


class Links(HTMLParser):
    """Collects what a page would fetch, and checks that its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_explain_writes_page_and_trace(tmp_path: Path) -> None:
    """`explain` prints, writes one page that fetches nothing, a trace, and one JSON document."""
    runner, plan = CliRunner(), str(tmp_path / "plan.yaml")
    job = ["--gpus", "32", "--cluster", "dgx-h100", "--global-batch", "128"]
    planned = runner.invoke(app, ["plan", "llama-3.1-8b", *job, "--top", "3", "-o", plan])
    assert planned.exit_code == 0, planned.output
    page, trace = tmp_path / "plan.html", tmp_path / "trace.json"
    shown = runner.invoke(app, ["explain", plan, "--html", str(page), "--trace", str(trace)])
    assert shown.exit_code == 0, shown.output
    for heading in ("Time of one step", "Memory by pipeline rank", "Measured", "Proof", "lose by"):
        assert heading in shown.stdout
    links = Links()
    links.feed(page.read_text())
    assert links.fetched == []
    assert links.open == []
    assert json.loads(trace.read_text())["traceEvents"]
    document = json.loads(runner.invoke(app, ["explain", plan, "--json"]).stdout)
    said = re.findall(r'<data data-from="([^"]+)" value="([^"]+)">', page.read_text())
    assert len(said) > 15
    for path, value in said:
        assert float(value) == pytest.approx(found_at(document, path), rel=1e-12), path
    assert document["evidence"]
    assert len(document["alternatives"]) > 10
    assert document["alternatives"][0]["step_time_s"] == document["prediction"]["step_time_s"]
    total = sum(document["time_parts"].values())
    assert total == pytest.approx(document["prediction"]["step_time_s"])


def test_a_proof_of_another_prediction_is_called_so(tmp_path: Path) -> None:
    """Where the layout was changed by hand, nothing of what the file found is said of it."""
    runner, plan = CliRunner(), tmp_path / "plan.yaml"
    job = ["--gpus", "16", "--cluster", "dgx-h100", "--global-batch", "64", "--micro-batch", "1"]
    planned = runner.invoke(app, ["plan", "llama-3.1-8b", *job, "--top", "3", "-o", str(plan)])
    assert planned.exit_code == 0, planned.output
    headings = "Proof", OTHERS, ONE_CHANGE
    page = tmp_path / "plan.html"
    explained = runner.invoke(app, ["explain", str(plan), "--html", str(page)])
    assert set(headings) < set(explained.stdout.splitlines())
    assert escape(SLOWER) in page.read_text(encoding="utf-8")
    text = plan.read_text().replace("micro_batch_size: 1", "micro_batch_size: 4", 1)
    plan.write_text(text)
    changed = runner.invoke(app, ["explain", str(plan), "--html", str(page)])
    assert "note: the file predicts" in changed.stderr
    said = {f"{heading}, when the file was written" for heading in headings}
    assert said < set(changed.stdout.splitlines())
    assert "Proof, when the file was written" in page.read_text()


def test_a_layout_that_is_refused_now_is_called_so(tmp_path: Path) -> None:
    """A pipeline of tied embeddings, which torchtitan does not start; its price is still shown."""
    layout = Layout(data_parallel=2, pipeline_parallel=2, zero_stage=2, stages=even_stages(28, 2))
    training = Training(seq_len=4096, global_batch_size=8)
    plan = plan_of("qwen3-1.7b", layout, training)
    for engine, refused in (("torchtitan", True), ("generic", False)):
        write_plan(plan.model_copy(update={"engine": engine}), tmp_path / "plan.yaml")
        explained = CliRunner().invoke(app, ["explain", str(tmp_path / "plan.yaml")])
        assert explained.exit_code == 0
        said = "note: illegal in this version: pipeline_parallel 2: the head of qwen3-1.7b"
        assert (said in explained.stderr) == refused


def found_at(document: Any, path: str) -> float:
    """What a document has at `a.0.b`."""
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return float(document)


@pytest.mark.few(2)
@pytest.mark.parametrize("columns", [40, 60, 100])
def test_terminal_view_keeps_to_its_columns(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of `plan` and `explain` is longer than COLUMNS or ends with a blank, no figure is cut
    short, and the words of the label are explained.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    runner, plan = CliRunner(), str(tmp_path / "plan.yaml")
    job = [
        "--gpus",
        "32",
        "--cluster",
        "dgx-h100",
        "--global-batch",
        "128",
        "--pp",
        "2",
        "-o",
        plan,
    ]
    for words in (["plan", "llama-3.1-8b", *job], ["explain", plan]):
        shown = runner.invoke(app, words)
        assert shown.exit_code == 0, shown.output
        for line in shown.stdout.splitlines():
            assert len(line) <= columns, line
            assert line == line.rstrip(), line
        assert "…" not in shown.stdout
        assert "pp2: pipeline ranks" in shown.stdout
        assert "nearest measured run" in shown.stdout or "Measured runs nearby" in shown.stdout


def test_ranges_and_what_no_run_covers_are_said() -> None:
    """Step time and reserved memory with the range of 8 of 10 runs, and why it is wider."""
    known = predicted(case())
    beyond = known.model_copy(update={"unmeasured": ("nvfp4", "4,096 GPUs")})
    assert " in 8 of 10 runs)" in str(time_line(known))
    assert str(time_line(known)).endswith(f", MFU {known.mfu:.1%}")
    mixed = known.model_copy(update={"mfu": None})
    assert ", no MFU (matrix products in several formats" in str(time_line(mixed))
    assert memory_line(known).startswith("reserved ")
    below = known.gpu_memory_bytes - 1
    within = known.model_copy(update={"reserved_high_bytes": below})
    assert memory_line(within).endswith(" in 8 of 10 runs)")
    full = known.model_copy(update={"reserved_high_bytes": known.gpu_memory_bytes})
    assert memory_line(full).endswith("runs; caches can shrink)")
    assert known.reserved_low_bytes < max(s.reserved for s in known.memory)
    assert unmeasured_line(beyond) == (
        "ranges are wider, as no measured run of this engine has nvfp4, 4,096 GPUs"
    )
    assert unmeasured_line(known.model_copy(update={"unmeasured": ()})) == ""


def test_parts_have_names_for_people() -> None:
    """Every part of the time and category of memory has a name, a colour class and a place."""
    from meshplan.planner.answer.explain import PART_NAMES
    from meshplan.planner.report.page.page import FOLDER

    style = (FOLDER / "page.css").read_text()
    assert set(PART_NAMES) == set(TimeParts.__dataclass_fields__)
    for name in (*PART_NAMES, *CATEGORIES):
        assert f".{name}" in style
    assert set(CATEGORIES) <= set(StageMemory.model_fields)
