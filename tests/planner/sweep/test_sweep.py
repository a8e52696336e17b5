"""`meshplan sweep` end to end: each cell is `plan`'s answer, whatever is shown of it."""

import csv
import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from called import run
from rich.console import Console
from sweeps import JOB, SMALL, Planner, counted_planner, swept

import meshplan.planner.cli.sweep
import meshplan.planner.report.picture
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.sweep import cells
from meshplan.planner.sweep.economics import Terms
from meshplan.planner.sweep.outcome import Sweep, SweepRow, record
from meshplan.planner.sweep.report import print_sweep


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """What plans the cells, to be counted and stopped."""
    return counted_planner(monkeypatch)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """`--cache` of a file with the cells of `SMALL`, for tests of what is shown of them."""
    cache = ("--cache", str(tmp_path_factory.mktemp("sweep") / "cells.json"))
    assert run("sweep", *SMALL, *cache, "--jobs", "1").exit_code == 0
    return cache


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "gpus", "more"),
    [
        ("llama-3.1-8b", "16", ()),
        ("deepseek-v2-lite", "16", ("--engine", "torchtitan")),
    ],
)
def test_a_cell_is_the_plan(model: str, gpus: str, more: tuple[str, ...]) -> None:
    """A cell has the layout, time, proof and MFU that `plan` gives for the same question."""
    (cell,) = swept(model, "--gpus", gpus, *JOB, *more)["cells"]
    plan = json.loads(run("plan", model, "--gpus", gpus, *JOB, *more, "--json").stdout)
    assert cell["layout"] == plan["layout"]
    assert cell["status"] == plan["search"]["status"]
    for key in ("step_time_s", "step_time_low_s", "mfu", "tokens_per_s_per_gpu"):
        assert cell[key] == plan["prediction"][key]
    assert cell["bound_s"] == plan["search"]["bound_s"]


def test_every_combination_is_a_cell() -> None:
    """2 models x 2 sequences x 1 batch x 1 cluster x 2 engines x 1 size are 8 cells."""
    document = swept(
        *("--model", "qwen3-0.6b,llama-3.2-1b", "--gpus", "8", "--seq-len", "2k,4k"),
        *("--global-batch", "64", "--cluster", "dgx-h100", "--engine", "nanotron,torchtitan"),
        *("--jobs", "1"),
    )
    axes = ("model", "seq_len", "global_batch_size", "cluster", "engine", "gpus")
    assert len({tuple(cell[axis] for axis in axes) for cell in document["cells"]}) == 8
    assert len(document["series"]) == 8
    assert len(document["fronts"]) == 4  # engines compete for the same job


TWO_SIZES = ("llama-3.1-70b", "--gpus", "8,128", *JOB)
"""On the first of them nothing fits."""


@pytest.fixture(name="two_sizes", scope="module")
def two_sizes_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """`TWO_SIZES` with a `--cache` of its cells."""
    asked = (*TWO_SIZES, "--cache", str(tmp_path_factory.mktemp("sizes") / "cells.json"))
    assert run("sweep", *asked).exit_code == 0
    return asked


def test_a_cell_that_does_not_fit_ends_nothing(two_sizes: tuple[str, ...]) -> None:
    """Where nothing fits the cell says what a GPU lacks; the others are planned; exit 0."""
    result = run("sweep", *two_sizes)
    assert result.exit_code == 0
    assert "nothing fits: a GPU lacks" in result.stdout
    misfit, plan = swept(*two_sizes)["cells"]
    assert misfit["status"] == "INFEASIBLE"
    assert misfit["lacking_bytes"] > 10 * 2**30
    assert "nearest miss" in misfit["reason"]
    assert misfit["layout"] is misfit["mfu"] is None
    assert plan["status"] == "OPTIMAL"
    assert plan["cheapest"] is plan["knee"] is plan["front"] is True


def test_a_single_size_is_not_called_the_cheapest() -> None:
    """Nor a knee, which may lie beyond it; what its tokens cost is said."""
    told = run("sweep", "tiny-llama", "--gpus", "1", "--cluster", "dgx-h100", "--global-batch", "8")
    assert "GPU-hours for 1T tokens" in told.stdout
    assert not re.search("cheapest|knee|largest size", told.stdout)


def test_the_front_is_shown_where_one_series_has_all_of_it() -> None:
    """Which of two clusters is better is the question, also where one wins in both."""
    told = run("sweep", "tiny-llama", "--gpus", "1", "--cluster", "dgx-h100,dgx-a100", "--engine",
               "megatron", "--global-batch", "8", "--tokens", "1T")  # fmt: skip
    _, front = told.stdout.split("Pareto front of days against GPU-hours, all of tiny-llama")
    assert ("dgx-h100, megatron" in front) != ("dgx-a100, megatron" in front)


def test_a_time_limit_ends_why_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest miss that takes longer than the limit is left out, and is asked again by a later
    sweep; one that is found in time is not.
    """
    asked = ask(
        Arguments(
            model="llama-3.1-70b", gpus=8, cluster="dgx-h100", engine="megatron", global_batch=64
        )
    )
    in_time = cells.answer(asked, 60.0)
    assert in_time.lacking_bytes
    assert in_time.final
    monkeypatch.setattr(cells, "nearest_miss", lambda _: time.sleep(30))
    started = time.monotonic()
    ended = cells._refused(asked, NoLayoutFits("nothing fits"), 0.05)
    assert time.monotonic() - started < 10
    assert ended.status == "INFEASIBLE"
    assert ended.lacking_bytes is None
    assert ended.reason == "nothing fits (the time limit left out what comes nearest)"
    assert not ended.final


def test_a_cell_without_a_plan_says_whether_nothing_fits() -> None:
    """With activations on the host a bound of memory decides, so a layout may fit; the same search
    would say the same again.
    """
    asked = ask(
        Arguments(
            model="llama-3.1-70b", gpus=1, cluster="dgx-h100", engine="generic", global_batch=8,
            pins={"activation_offload": "0,1"},
        )
    )  # fmt: skip
    found = cells.answer(asked, None)
    assert (found.status, found.proved, found.final) == ("INFEASIBLE", False, True)
    assert found.verdict == "nothing was found that fits"
    proved = cells._refused(asked, NoLayoutFits("no layout"), None)
    assert (proved.verdict, proved.proved) == ("nothing fits", True)
    series = cells.Series(
        model="llama-3.1-70b", cluster="dgx-h100", engine="megatron", seq_len=4096,
        global_batch_size=8,
    )  # fmt: skip
    answers = (found, proved, None)
    rows = [SweepRow(line=0, series=series, gpus=1, answer=each) for each in answers]
    assert [record(row)["may_fit"] for row in rows] == [True, False, None]


def test_a_cell_says_what_only_the_host_lacks() -> None:
    """Masters, moments and 32-bit gradients of 8,030,261,248 weights are 16 bytes each, of which
    each of 8 ranks has an eighth; its share of a host of 16e9 bytes is 2e9.
    """
    pins = {"optimizer_offload": "on", "zero_stage": "1", "tensor_parallel": "1"}
    asked = ask(
        Arguments(
            model="llama-3.1-8b", gpus=8, cluster="dgx-h100", engine="generic", global_batch=8,
            pins={**pins, "pipeline_parallel": "1"},
        )
    )  # fmt: skip
    small = asked.question.cluster.model_copy(update={"host_memory_bytes": 16e9})
    found = cells.answer(replace(asked, question=replace(asked.question, cluster=small)), None)
    assert (found.status, found.lacking_bytes) == ("INFEASIBLE", None)
    assert found.lacking_host_bytes == pytest.approx(8_030_261_248 * 16 / 8 - 2e9)
    assert "more than its share of 1.9 GiB" in found.reason
    series = cells.Series(
        model="llama-3.1-8b", cluster="small", engine="generic", seq_len=8192, global_batch_size=8
    )
    row = SweepRow(line=0, series=series, gpus=8, answer=found)
    assert record(row)["lacking_host_bytes"] == found.lacking_host_bytes
    out = Console(file=io.StringIO(), width=160)
    print_sweep(out, Sweep(rows=(row,), terms=Terms()), ())
    assert "nothing fits: a GPU's share of the host lacks 13.1 GiB" in out.file.getvalue()


def test_nothing_fits_anywhere() -> None:
    """Where no cell has a plan the exit code is 3, and the table is still printed."""
    result = run("sweep", "llama-3.1-405b", "--gpus", "8", *JOB)
    assert result.exit_code == 3
    assert "nothing fits" in result.stdout
    assert "no cell has a plan" in result.stderr


def test_a_combination_that_is_no_question_says_so() -> None:
    """A precision that one of two GPUs lacks refuses its cells only, each with the rule."""
    cells = swept(
        *("llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-a100,dgx-h100"),
        *("--global-batch", "256", "--precision", "fp8"),
    )["cells"]
    assert [cell["status"] for cell in cells] == ["REFUSED", "OPTIMAL"]
    assert "no such matrix units" in cells[0]["reason"]
    assert cells[1]["mfu"] is None  # of mixed formats


def test_processes_change_nothing(planned: tuple[str, str]) -> None:
    """Two processes give the cells of one, in the same order."""
    assert swept(*SMALL, "--jobs", "2") == swept(*SMALL, *planned)


def test_days_and_money_add_up(planned: tuple[str, str]) -> None:
    """GPU-hours are days x 24 x GPUs, and cost GPU-hours x price, the failures' share included."""
    whole = (*planned, "--tokens", "1T", "--price-per-gpu-hour", "2.5")
    failing = (*whole, "--mtbf-hours", "50000", "--checkpoint-seconds", "60")
    for cell, slower in zip(
        swept(*SMALL, *whole)["cells"], swept(*SMALL, *failing)["cells"], strict=True
    ):
        assert cell["gpu_hours"] == pytest.approx(cell["days"] * 24 * cell["gpus"])
        assert cell["cost"] == pytest.approx(cell["gpu_hours"] * 2.5)
        assert cell["tokens_per_s"] == pytest.approx(256 * 4096 / cell["step_time_s"])
        assert cell["days"] * 86400 * cell["tokens_per_s"] == pytest.approx(1e12, rel=1e-4)
        assert cell["goodput"] is None
        assert slower["cost"] == pytest.approx(cell["cost"] / slower["goodput"])
    table = run("sweep", *SMALL, *failing).stdout
    assert all(word in table for word in ("goodput", "days", "GPU-hours", "cost", "cheapest:"))
    assert "restarts not counted" in " ".join(table.split())


def test_each_cluster_has_its_price() -> None:
    """Two prices belong to two clusters in order; three prices to two clusters are refused."""
    asked = ("llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-h100,dgx-h200", "--tokens", "1T")
    batch = ("--global-batch", "256")
    cells = swept(*asked, *batch, "--price-per-gpu-hour", "2,3")["cells"]
    assert [cell["price_per_gpu_hour"] for cell in cells] == [2, 3]
    assert run("sweep", *asked, *batch, "--price-per-gpu-hour", "2,3,4").exit_code == 2


def test_files_say_what_the_table_says(tmp_path: Path, planned: tuple[str, str]) -> None:
    """CSV and JSON have the same cells and columns, and the table their layouts and marks."""
    lines = tmp_path / "sweep.csv"
    result = run("sweep", *SMALL, *planned, "--csv", str(lines))
    assert result.stderr.count("wrote") == 1
    rows = list(csv.DictReader(io.StringIO(lines.read_text())))
    found = swept(*SMALL, *planned)
    for row, cell in zip(rows, found["cells"], strict=True):
        assert set(row) == set(cell) - {"layout"}
        assert float(row["step_time_s"]) == cell["step_time_s"]
        assert row["label"] == cell["label"]
        assert f"{cell['mfu']:.1%}" in result.stdout
    (series,) = found["series"]
    assert f"cheapest: {series['cheapest_gpus']} GPUs" in result.stdout
    assert f"knee (least step time x cost): {series['knee_gpus']} GPUs" in result.stdout


def test_the_picture_holds_each_layout(two_sizes: tuple[str, ...], tmp_path: Path) -> None:
    """The heatmap writes MFU and layout of each cell as text, alike each time; a PNG is a PNG. Axes
    say 200K, not 2 x 10^5, and what is common has its units.
    """
    pytest.importorskip("matplotlib")
    svg, png, again = (tmp_path / name for name in ("sweep.svg", "sweep.png", "again.svg"))
    whole = (*two_sizes, "--tokens", "1T", "--price-per-gpu-hour", "2")
    cells = swept(*whole)["cells"]
    for path in (svg, again, png):
        found = run("sweep", *whole, "--plot", str(path))
        assert found.exit_code == 0, found.output
    text = svg.read_text()
    assert again.read_text() == text
    assert f"{cells[1]['mfu']:.1%}" in text
    assert all(word in text for word in cells[1]["label"].split())
    assert ">nothing<" in text
    assert "times 10" not in text
    assert re.search(r">\d+[KM]<", text)
    assert "tokens a sequence" in text
    assert "sequences a step" in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planner: Planner
) -> None:
    """Without the extra, --plot says what to install before anything is planned."""
    monkeypatch.setattr(meshplan.planner.report.picture, "find_spec", lambda name: None)
    result = run("sweep", *SMALL, "--plot", str(tmp_path / "sweep.png"))
    assert result.exit_code == 2
    assert "meshplan[plot]" in result.stderr
    assert planner.gpus == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("--gpus", "8.."), id="half a range"),
        pytest.param(("--gpus", "8", "--model", "llama-9"), id="an unknown model"),
        pytest.param(("--gpus", "8", "--cluster", "dgx-h100,dgx"), id="an unknown cluster"),
        pytest.param(("--gpus", "8", "--engine", "megatrom"), id="an unknown engine"),
        pytest.param(("--gpus", "8", "--precision", "fp7"), id="an unknown precision"),
        pytest.param(("--gpus", "8", "--tokens", "many"), id="tokens that are no number"),
        pytest.param(("--gpus", "8", "--price-per-gpu-hour", "nan"), id="a price of nan"),
        pytest.param(("--gpus", "8", "--mtbf-hours", "9"), id="failures without checkpoints"),
        pytest.param(
            ("--gpus", "8", "--mtbf-hours", "nan", "--checkpoint-seconds", "1"), id="mtbf of nan"
        ),
        pytest.param(("--gpus", "8", "--restart-seconds", "9"), id="restarts without failures"),
        pytest.param(("--gpus", "8", "--plot", "sweep.gif"), id="a picture of another kind"),
        pytest.param(("--gpus", "8", "--csv", "/nowhere/a.csv"), id="a folder that is not there"),
        pytest.param(("--gpus", "1..2000+1", "--seq-len", "1k..8k"), id="too many cells"),
    ],
)
def test_a_mistake_is_one_line(change: tuple[str, ...], planner: Planner) -> None:
    """A user's mistake is said in one line before anything is planned; exit 2."""
    job = () if "--cluster" in change else JOB
    result = run("sweep", "llama-3.1-8b", *job, *change)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert planner.gpus == []


def test_sixty_columns_hold_every_layout(
    monkeypatch: pytest.MonkeyPatch, planned: tuple[str, str]
) -> None:
    """On a narrow terminal the layouts stand under the figures, and nothing is cut off."""
    monkeypatch.setattr(
        meshplan.planner.cli.sweep, "console", lambda: Console(width=60, highlight=False)
    )
    whole = (*planned, "--tokens", "1T", "--price-per-gpu-hour", "2", "--mtbf-hours", "50000")
    shown = run("sweep", *SMALL, *whole, "--checkpoint-seconds", "60").stdout
    assert "…" not in shown
    assert all(word in shown for word in ("goodput", "cost", "dp32 zero1"))
    assert max(map(len, shown.splitlines())) <= 60


def test_pipes_get_no_bar() -> None:
    """Off a terminal standard error is silent."""
    assert run("sweep", "llama-3.1-8b", "--gpus", "8", *JOB).stderr == ""


def test_what_is_assumed_of_some_cells_says_of_which() -> None:
    """The memory that is left free goes with the GPU: of two clusters each line names its own;
    what is assumed of all cells is said once.
    """
    one = run("sweep", "llama-3.1-8b", "--gpus", "8", *JOB).stdout
    two = run("sweep", "llama-3.1-8b", "--gpus", "8", *JOB, "--cluster", "dgx-h100,dgx-h200").stdout
    left_free = [line for line in two.splitlines() if "--headroom" in line]
    assert [line.partition(": ")[0] for line in left_free] == ["dgx-h100", "dgx-h200"]
    assert left_free[0].partition(": ")[2] in one.splitlines()[0]
    assert two.count("assumed: sequences of 4096 tokens") == 1
