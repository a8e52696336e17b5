"""`meshplan sweep` end to end: each cell is `plan`'s answer, and nothing that is done is lost."""

import csv
import io
import json
import multiprocessing
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import meshplan.planner.cli.sweep
import meshplan.planner.report.picture
import meshplan.planner.sweep.cache
import meshplan.planner.sweep.plot
import meshplan.planner.sweep.solve
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.planner.answer.question import Asked
from meshplan.planner.cli.main import app
from meshplan.planner.sweep.cache import Cache, UnreadableCache
from meshplan.planner.sweep.cells import Answer, answer
from meshplan.planner.text_files import CannotWrite, write_text

JOB = ("--cluster", "dgx-h100", "--global-batch", "256")
SMALL = ("llama-3.1-8b", "--gpus", "8,16,32", *JOB)


def run(*arguments: str) -> Result:
    """The command with these arguments, in this process."""
    return CliRunner().invoke(app, arguments)


def swept(*arguments: str) -> dict[str, Any]:
    """The JSON document of a sweep that has a plan."""
    result = run("sweep", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """`--cache` of a file with the cells of `SMALL`, for tests of what is shown of them."""
    cache = ("--cache", str(tmp_path_factory.mktemp("sweep") / "cells.json"))
    assert run("sweep", *SMALL, *cache, "--jobs", "1").exit_code == 0
    return cache


class Planner:
    """`answer`, counted; with a limit, Ctrl-C comes while the next cell is planned."""

    def __init__(self, most: int | None = None) -> None:
        self.gpus: list[int] = []
        self.most = most

    def __call__(self, asked: Asked, time_limit_s: float | None) -> Answer:
        if len(self.gpus) == self.most:
            signal.raise_signal(signal.SIGINT)
        self.gpus.append(asked.question.gpus)
        return answer(asked, time_limit_s)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """What plans the cells, to be counted and stopped."""
    counted = Planner()
    monkeypatch.setattr(meshplan.planner.sweep.solve, "answer", counted)
    return counted


@pytest.mark.parametrize(
    ("model", "gpus", "more"),
    [
        ("llama-3.1-8b", "16", ()),
        ("mixtral-8x7b", "16", ("--engine", "torchtitan", "--seq-len", "8192")),
    ],
)
def test_a_cell_is_the_plan(model: str, gpus: str, more: tuple[str, ...]) -> None:
    """A cell has the layout, time, proof and MFU that `plan` gives for the same question."""
    (cell,) = swept(model, "--gpus", gpus, *JOB, *more)["cells"]
    plan = json.loads(run("plan", model, "--gpus", gpus, *JOB, *more, "--json").stdout)
    assert cell["layout"] == plan["layout"]
    assert cell["status"] == plan["search"]["status"] == "OPTIMAL"
    for key in ("step_time_s", "step_time_low_s", "mfu", "tokens_per_s_per_gpu"):
        assert cell[key] == plan["prediction"][key]
    assert cell["bound_s"] == plan["search"]["bound_s"]


def test_every_combination_is_a_cell() -> None:
    """2 models x 2 sequences x 2 batches x 1 cluster x 2 engines x 1 size are 16 cells."""
    document = swept(
        *("--model", "qwen3-0.6b,llama-3.2-1b", "--gpus", "8", "--seq-len", "2k,4k"),
        *("--global-batch", "64,128", "--cluster", "dgx-h100", "--engine", "nanotron,torchtitan"),
        *("--jobs", "1"),
    )
    axes = ("model", "seq_len", "global_batch_size", "cluster", "engine", "gpus")
    assert len({tuple(cell[axis] for axis in axes) for cell in document["cells"]}) == 16
    assert len(document["series"]) == 16
    assert len(document["fronts"]) == 8  # engines compete for the same job


def test_a_cell_that_does_not_fit_ends_nothing(tmp_path: Path) -> None:
    """Where nothing fits the cell says what a GPU lacks; the others are planned; exit 0."""
    asked = ("llama-3.1-70b", "--gpus", "8,128", *JOB, "--cache", str(tmp_path / "cells.json"))
    result = run("sweep", *asked)
    assert result.exit_code == 0
    assert "nothing fits: a GPU lacks" in result.stdout
    misfit, plan = swept(*asked)["cells"]
    assert misfit["status"] == "INFEASIBLE"
    assert misfit["lacking_bytes"] > 10 * 2**30
    assert "nearest miss" in misfit["reason"]
    assert misfit["layout"] is misfit["mfu"] is None
    assert plan["status"] == "OPTIMAL"
    assert plan["cheapest"] is plan["knee"] is plan["front"] is True


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


def test_cached_cells_are_free(tmp_path: Path, planner: Planner) -> None:
    """The same sweep again plans nothing and says the same; a wider one plans what is new."""
    cache = ("--cache", str(tmp_path / "cells.json"))
    first = run("sweep", *SMALL, *cache)
    assert planner.gpus == [8, 16, 32]
    again = run("sweep", *SMALL, *cache)
    assert again.stdout == first.stdout
    assert len(planner.gpus) == 3
    run("sweep", "llama-3.1-8b", "--gpus", "8..64", *JOB, *cache)
    assert planner.gpus[3:] == [64]


def test_the_cache_knows_the_whole_question(tmp_path: Path, planner: Planner) -> None:
    """Another optimizer, precision or batch, and a profile whose content changed, are planned."""
    profile, cache = tmp_path / "mine.toml", ("--cache", str(tmp_path / "cells.json"))
    save_cluster(load_cluster("dgx-h100"), profile)
    asked = ["llama-3.1-8b", "--gpus", "8", "--cluster", str(profile)]
    fast = swept(*asked, "--global-batch", "256", *cache)["cells"][0]["step_time_s"]
    for more in (("--optimizer", "muon"), ("--precision", "fp8"), ()):
        swept(*asked, "--global-batch", "256" if more else "128", *more, *cache)
    assert len(planner.gpus) == 4
    cluster = load_cluster("dgx-h100")
    peaks = {dtype: rate / 2 for dtype, rate in cluster.gpu.peak_flops_per_s.items()}
    gpu = cluster.gpu.model_copy(update={"peak_flops_per_s": peaks})
    kernels = cluster.kernels.model_copy(update={"matmul_points": ()}) if cluster.kernels else None
    save_cluster(cluster.model_copy(update={"gpu": gpu, "kernels": kernels}), profile)
    slow = swept(*asked, "--global-batch", "256", *cache)["cells"][0]["step_time_s"]
    assert len(planner.gpus) == 5
    assert slow > 1.2 * fast


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, planner: Planner) -> None:
    """Ended by the user: the cells so far are shown and kept, exit 1; the next sweep goes on."""
    cache = ("--cache", str(tmp_path / "cells.json"))
    planner.most = 2
    ended = run("sweep", *SMALL, *cache)
    assert ended.exit_code == 1
    assert ended.stdout.count("zero") == 2
    assert "1 of 3 cells open" in ended.stderr
    planner.most = None
    assert run("sweep", *SMALL, *cache).exit_code == 0
    assert planner.gpus == [8, 16, 32]


def test_a_full_disk_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that can no longer be written: the cells are shown, then it is said, exit 2."""
    path, answered = tmp_path / "cells.json", Planner()
    monkeypatch.setattr(meshplan.planner.sweep.solve, "answer", answered)

    def full(where: Path, text: str | bytes) -> None:
        if answered.gpus:
            raise CannotWrite(f"cannot write {where}: No space left on device")
        write_text(where, text)

    monkeypatch.setattr(meshplan.planner.sweep.cache, "write_text", full)
    ended = run("sweep", "tiny-llama", "--gpus", "8,16", *JOB, "--cache", str(path))
    assert ended.exit_code == 2
    assert ended.stdout.count("zero") == 2
    assert ended.stderr == f"error: cannot write {path}: No space left on device\n"
    assert json.loads(path.read_text())["cells"] == {}


KEPT = 20


def _keep(path: Path, begin: Barrier, name: str) -> None:
    """Keep so many answers in the cache, each written at once."""
    cache = Cache(path)
    begin.wait(30)
    for number in range(KEPT):
        cache.put(f"{name}{number}", Answer(status="INFEASIBLE", reason="nothing fits"))
        cache.save()


def test_sweeps_at_the_same_time_share_a_cache(tmp_path: Path) -> None:
    """Each adds to what the other writes; nothing is left beside the file."""
    path, spawn = tmp_path / "cells.json", multiprocessing.get_context("spawn")
    begin = spawn.Barrier(2)
    both = [spawn.Process(target=_keep, args=(path, begin, name)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    cells = json.loads(path.read_text())["cells"]
    assert sorted(cells) == sorted(f"{name}{number}" for name in "ab" for number in range(KEPT))
    assert list(tmp_path.iterdir()) == [path]


def test_what_took_the_place_of_a_cache_stays(tmp_path: Path) -> None:
    """Another kind of file is not overwritten, and it is said behind the answers."""
    path = tmp_path / "cells.json"
    cache = Cache(path)
    path.write_text("mine")
    cache.put("a", Answer(status="INFEASIBLE"))
    cache.keep()
    with pytest.raises(UnreadableCache, match="it is not JSON"):
        cache.check_kept()
    assert path.read_text() == "mine"


def test_what_a_time_limit_ended_is_not_kept(tmp_path: Path, planner: Planner) -> None:
    """A cell that a time limit ended is marked so, and planned again next time."""
    cache = ("--cache", str(tmp_path / "cells.json"))
    asked = ("mixtral-8x22b", "--gpus", "128", *JOB)
    ended = swept(*asked, *cache, "--time-limit", "0")
    assert ended["cells"][0]["status"] in ("FEASIBLE", "UNKNOWN")
    status = swept(*asked, *cache)["cells"][0]["status"]
    said = run("sweep", *asked, *cache).stdout
    assert ("1 plan OPTIMAL" if status == "OPTIMAL" else "1 not proved, ") in said
    assert len(planner.gpus) == 2


def test_processes_change_nothing(planned: tuple[str, str]) -> None:
    """Two processes give the cells of one, in the same order."""
    assert swept(*SMALL, "--jobs", "2") == swept(*SMALL, *planned)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "{", '{"meshplan_sweep_cache": 1}', '{"meshplan": 1, "layout": {}}']
)
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: str) -> None:
    """--cache on a file that is no cache is one line, exit 2, and the file stays as it was."""
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    result = run("sweep", *SMALL, "--cache", str(path))
    assert result.exit_code == 2
    assert "is no cache" in result.stderr
    assert result.stderr.count("\n") == 1
    assert path.read_text() == content


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
    assert f"knee (least time x cost): {series['knee_gpus']} GPUs" in result.stdout


def test_the_picture_holds_each_layout(tmp_path: Path) -> None:
    """The heatmap writes MFU and layout of each cell as text, alike each time; a PNG is a PNG."""
    pytest.importorskip("matplotlib")
    cache, svg, png = str(tmp_path / "c.json"), tmp_path / "sweep.svg", tmp_path / "sweep.png"
    again = tmp_path / "again.svg"
    whole = ("--tokens", "1T", "--price-per-gpu-hour", "2")
    cells = swept("llama-3.1-70b", "--gpus", "8,128", *JOB, *whole, "--cache", cache)["cells"]
    for path in (svg, again, png):
        found = run("sweep", "llama-3.1-70b", "--gpus", "8,128", *JOB, *whole, "--cache", cache,
                    "--plot", str(path))  # fmt: skip
        assert found.exit_code == 0, found.output
    text = svg.read_text()
    assert again.read_text() == text
    assert f"{cells[1]['mfu']:.1%}" in text
    assert all(word in text for word in cells[1]["label"].split())
    assert ">nothing<" in text
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
    result = run("sweep", "llama-3.1-8b", *JOB, *change)
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
    assert run("sweep", *SMALL).stderr == ""


def test_what_is_assumed_of_some_cells_says_of_which() -> None:
    """The memory that is left free goes with the GPU: of two clusters each line names its own;
    what is assumed of all cells is said once.
    """
    one = run("sweep", "llama-3.1-8b", "--gpus", "8", *JOB).stdout
    two = run("sweep", "llama-3.1-8b", "--gpus", "8", *JOB, "--cluster", "dgx-h100,dgx-h200").stdout
    left_free = [line for line in two.splitlines() if "of each GPU left free" in line]
    assert [line.partition(": ")[0] for line in left_free] == ["dgx-h100", "dgx-h200"]
    assert left_free[0].partition(": ")[2] in one.splitlines()[0]
    assert two.count("assumed: sequences of 4096 tokens") == 1
