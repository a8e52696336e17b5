"""`meshplan sweep --cache`: nothing that is done is lost, or planned twice."""

import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from called import run
from sweeps import JOB, SMALL, Planner, counted_planner, swept

import meshplan.planner.sweep.cache
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.planner.sweep.cache import Cache, UnreadableCache
from meshplan.planner.sweep.cells import Answer
from meshplan.planner.text_files import CannotWrite, write_text

KEPT = 20


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """What plans the cells, to be counted and stopped."""
    return counted_planner(monkeypatch)


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


def test_a_full_disk_loses_no_answer(
    tmp_path: Path, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that can no longer be written: the cells are shown, then it is said, exit 2."""
    path = tmp_path / "cells.json"

    def full(where: Path, text: str | bytes) -> None:
        if planner.gpus:
            raise CannotWrite(f"cannot write {where}: No space left on device")
        write_text(where, text)

    monkeypatch.setattr(meshplan.planner.sweep.cache, "write_text", full)
    ended = run("sweep", "tiny-llama", "--gpus", "8,16", *JOB, "--cache", str(path))
    assert ended.exit_code == 2
    assert ended.stdout.count("zero") == 2
    assert ended.stderr == f"error: cannot write {path}: No space left on device\n"
    assert json.loads(path.read_text())["cells"] == {}


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
    asked = ("mixtral-8x7b", "--gpus", "16", *JOB)
    ended = swept(*asked, *cache, "--time-limit", "0")
    assert ended["cells"][0]["status"] in ("FEASIBLE", "UNKNOWN")
    status = swept(*asked, *cache)["cells"][0]["status"]
    said = run("sweep", *asked, *cache).stdout
    assert ("1 plan OPTIMAL" if status == "OPTIMAL" else "1 not proved, ") in said
    assert len(planner.gpus) == 2


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "{", '{"meshplan_sweep_cache": 1}', '{"meshplan": 1, "layout": {}}']
)
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: str) -> None:
    """--cache on a file that is no cache is one line, exit 2, and the file stays as it was."""
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    result = run("sweep", *SMALL, "--cache", str(path))
    assert result.exit_code == 2
    assert "is not a cache" in result.stderr
    assert result.stderr.count("\n") == 1
    assert path.read_text() == content
