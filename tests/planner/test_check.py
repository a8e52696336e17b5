"""Verdicts, margins, reasons and fixes, with a price that can be worked out by hand."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from random_plans import CLUSTER, plan_of

from costmodels.layout import Layout, Stage, even_stages
from costmodels.training import Training
from costmodels.units import GIB
from executor.frameworks import read_config, recognise
from hardware_profiles.load import load_cluster
from planner.check import Tools, check_paths, exit_code
from planner.fixes import Quote, peak_bytes
from planner.plan import Plan, Prediction, StageMemory, write_plan
from planner.reading import Reading
from planner.resolve import Case
from planner.settings import Settings
from planner.verdicts import Finding, Limits, usable_bytes

GIVEN = Settings(cluster=CLUSTER)
LAYOUT = Layout(
    data_parallel=8,
    tensor_parallel=4,
    pipeline_parallel=2,
    sequence_parallel=True,
    zero_stage=1,
    micro_batch_size=4,
    stages=even_stages(80, 2),
)
TRAINING = Training(seq_len=4096, global_batch_size=128)
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
    --tensor-model-parallel-size 2 \\
    --micro-batch-size 4 --global-batch-size 64 --seq-length 2048 \\
    --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 \\
    --swiglu --normalization RMSNorm --vocab-size 128256 --bf16 --use-distributed-optimizer
"""


def price(case: Case) -> Prediction:
    """10 GiB of weights, 10 GiB of activations per sequence of the micro-batch (2 if recomputed).

    A step takes 2 s (3 if recomputing) x batch / GPUs, and 10 % / micro_batch_size more.
    """
    la = case.layout
    recomputes = la.recompute == "full"
    activations = (2.0 if recomputes else 10.0) * GIB * la.micro_batch_size
    step_s = (3.0 if recomputes else 2.0) * case.training.global_batch_size / la.world_size
    step_s *= 1 + 0.1 / la.micro_batch_size  # smaller micro-batches are less efficient
    memory = StageMemory(
        weights=10 * GIB, gradients=0, optimizer=0, activations=activations, transient=0,
        context=GIB, slack=0, allocated=10 * GIB + activations, reserved=10 * GIB + activations,
    )  # fmt: skip
    return Prediction(
        step_time_s=step_s, compute_s=step_s, exposed_comm_s=0, bubble_s=0, optimizer_s=0,
        error_fraction=0.1, tokens_per_s_per_gpu=1000.0, mfu=0.4, hfu=0.4,
        memory=(memory,) * la.pipeline_parallel, gpu_memory_bytes=80 * GIB,
    )  # fmt: skip


def _read(text: str, path: str, framework: str | None) -> Reading | None:
    known = framework or recognise(path, text)
    return read_config(text, path, framework) if known else None


def _tools(whole: Callable[[Case], Prediction]) -> Tools:
    return Tools(read=_read, price=lambda case: Quote(whole(case).memory, lambda: whole(case)))


TOOLS = _tools(price)


def _plan(prediction: Prediction | None = None, layout: Layout = LAYOUT) -> Plan:
    return plan_of("llama-3.1-70b", layout, TRAINING).model_copy(update={"prediction": prediction})


def _check_plan(path: Path, plan: Plan, **options: object) -> Finding:
    write_plan(plan, path)
    limits = Limits(**options)  # type: ignore[arg-type]
    (finding,) = check_paths([path], TOOLS, limits=limits)
    return finding


def _check_text(path: Path, text: str, given: Settings = GIVEN) -> Finding:
    path.write_text(text)
    (finding,) = check_paths([path], TOOLS, given)
    return finding


def _case(layout: Layout) -> Case:
    from planner.check import case_of

    return case_of(_plan(layout=layout))


def test_a_plan_that_fits_tells_its_margin(tmp_path: Path) -> None:
    """margin = usable memory - (10 + 4 x 10 + 1 of context) GiB, on the fullest rank."""
    finding = _check_plan(tmp_path / "plan.yaml", _plan())
    usable = usable_bytes(load_cluster(CLUSTER))
    assert finding.verdict == "fits"
    assert finding.margin_bytes == pytest.approx(usable - 51 * GIB)
    assert (finding.stage, finding.category, finding.framework) == (0, "activations", "plan")


def test_too_big_names_rank_category_bytes_and_fix(tmp_path: Path) -> None:
    """10 + 8 x 10 + 1 = 91 GiB are too many; mbs 4 (51 GiB) is faster than recompute (27)."""
    layout = replace(LAYOUT, micro_batch_size=8)
    finding = _check_plan(tmp_path / "plan.yaml", _plan(layout=layout))
    over = 91 * GIB - usable_bytes(load_cluster(CLUSTER))
    assert finding.verdict == "does not fit"
    assert finding.margin_bytes == pytest.approx(-over)
    assert "rank 0 of 2 needs 91.0 GiB" in finding.text
    assert f"({over:,.0f} bytes)" in finding.text
    assert "most are activations (80.0 GiB)" in finding.text
    assert finding.fix == "micro_batch_size 4"


def test_the_fix_is_the_fastest_change_that_fits(tmp_path: Path) -> None:
    """With one sequence per micro-batch only recompute is left: 10 + 2 GiB instead of 90."""

    def heavy(case: Case) -> Prediction:
        mild = price(case)
        factor = 9.0 if case.layout.recompute != "full" else 1.0
        memory = tuple(
            stage.model_copy(update={"reserved": stage.reserved * factor}) for stage in mild.memory
        )
        return mild.model_copy(update={"memory": memory})

    path = tmp_path / "plan.yaml"
    write_plan(_plan(layout=replace(LAYOUT, micro_batch_size=1)), path)
    (finding,) = check_paths([path], _tools(heavy))
    assert (finding.verdict, finding.fix) == ("does not fit", "recompute full")


def _resized(bytes_of: Callable[[Layout], float]) -> Tools:
    """Tools whose price takes `bytes_of` a layout on every rank."""

    def sized(case: Case) -> Prediction:
        mild, size = price(case), bytes_of(case.layout)
        memory = tuple(stage.model_copy(update={"reserved": size}) for stage in mild.memory)
        return mild.model_copy(update={"memory": memory})

    return _tools(sized)


@pytest.mark.parametrize(
    ("halves", "fix"),
    [
        pytest.param(1, "micro_batch_size 1", id="160 / 4 = 40: one change"),
        pytest.param(4, "micro_batch_size 1, recompute full", id="640 / 4 / 4 = 40: two changes"),
        pytest.param(4**6, None, id="655,360 / 4 / 4 / 2: none within four changes"),
    ],
)
def test_several_changes_where_no_single_one_is_enough(
    tmp_path: Path, halves: int, fix: str | None
) -> None:
    """160 GiB x `halves`, of which a micro-batch of 1 leaves 1/4, recompute 1/4: the fewest."""

    def bytes_of(la: Layout) -> float:
        recomputes = 4 if la.recompute == "full" else 1
        return 160 * GIB * halves * la.micro_batch_size / 4 / recomputes

    path = tmp_path / "plan.yaml"
    write_plan(_plan(layout=LAYOUT), path)
    (finding,) = check_paths([path], _resized(bytes_of))
    assert (finding.verdict, finding.fix) == ("does not fit", fix)
    assert ("no 4 changes found" in finding.text) == (fix is None)


@pytest.mark.parametrize(
    ("capacity_gib", "single"), [(0, False), (20, False), (30, True), (60, True), (80, True)]
)
def test_time_is_priced_only_where_memory_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity_gib: int, single: bool
) -> None:
    """The work of one file: memory of each legal change; time of the first `MOST_TIMED` that fit
    and its own.
    """
    timed: list[Case] = []
    usable = usable_bytes(load_cluster(CLUSTER))

    def counted(case: Case) -> Quote:
        now = price(case)
        scale = usable / GIB / capacity_gib if capacity_gib else 1e6
        memory = tuple(s.model_copy(update={"reserved": s.reserved * scale}) for s in now.memory)
        whole = now.model_copy(update={"memory": memory})
        return Quote(memory, lambda: timed.append(case) or whole)

    path = tmp_path / "plan.yaml"
    write_plan(_plan(layout=replace(LAYOUT, micro_batch_size=16)), path)
    (finding,) = check_paths([path], replace(TOOLS, price=counted))
    assert finding.verdict == "does not fit"
    fitting = [counted(case) for case in timed[1:]]
    assert all(max(map(peak_bytes, each.memory)) <= usable for each in fitting)
    assert (len(timed) > 1) == single
    every = len(timed) - 1
    for most in (1, 2, 3):
        timed.clear()
        monkeypatch.setattr("planner.fixes.MOST_TIMED", most)
        check_paths([path], replace(TOOLS, price=counted))
        assert len(timed) == 1 + min(every, most)


def test_drift_is_measured_against_the_plan(tmp_path: Path) -> None:
    """4 x 2 x 1.025 = 8.2 s now; a plan that said 8 s drifted by 2.5 %: beyond 2 %, within 3 %."""
    now = price(_case(LAYOUT))
    assert now.step_time_s == pytest.approx(2 * 128 / 64 * 1.025)
    planned = now.model_copy(update={"step_time_s": now.step_time_s / 1.025})
    path = tmp_path / "plan.yaml"
    drifted = _check_plan(path, _plan(planned), tolerance=0.02)
    assert drifted.verdict == "drifted"
    assert "+2.5%" in drifted.text
    text = path.read_text().splitlines()
    assert text[drifted.line - 1].startswith("prediction:")
    assert _check_plan(path, _plan(planned), tolerance=0.03).verdict == "fits"


def test_memory_drifts_too(tmp_path: Path) -> None:
    """A peak 25 % above the planned one is a drift although the step time is the same."""
    now = price(_case(LAYOUT))
    less = tuple(
        stage.model_copy(update={"reserved": stage.reserved / 1.25}) for stage in now.memory
    )
    planned = now.model_copy(update={"memory": less})
    finding = _check_plan(tmp_path / "plan.yaml", _plan(planned))
    assert finding.verdict == "drifted"
    assert "peak memory" in finding.text


@pytest.mark.parametrize(("slack", "verdict"), [(0.05, "beaten"), (0.5, "fits")])
def test_beaten_only_beyond_the_slack(tmp_path: Path, slack: float, verdict: str) -> None:
    """A layout 25 % slower than the best is a finding with 5 % slack, and none with 50 %."""
    path = tmp_path / "plan.yaml"
    write_plan(_plan(), path)
    now = price(_case(LAYOUT)).step_time_s
    tools = replace(TOOLS, best=lambda case: ("dp64", now / 1.25))
    (finding,) = check_paths([path], tools, limits=Limits(slack=slack))
    assert finding.verdict == verdict


def test_a_search_runs_only_when_asked(tmp_path: Path) -> None:
    """Without --slack nobody asks for the best layout."""

    def never(case: Case) -> tuple[str, float] | None:
        raise AssertionError("searched without slack")

    write_plan(_plan(), tmp_path / "plan.yaml")
    (finding,) = check_paths([tmp_path / "plan.yaml"], replace(TOOLS, best=never))
    assert finding.verdict == "fits"


@pytest.mark.parametrize(
    ("change", "line", "words", "fix"),
    [
        pytest.param(("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 3"),
                     2, "not a multiple", None, id="8 GPUs / 3"),
        pytest.param(("--global-batch-size 64", "--global-batch-size 60"),
                     3, "not a multiple of data_parallel 4", "micro_batch_size 1", id="60 / 16"),
        pytest.param(("--num-attention-heads 32", "--num-attention-heads 33"),
                     2, "33 heads do not divide", None, id="33 heads / 2"),
        pytest.param(("--nnodes 1", "--nnodes 3"),
                     3, "not a multiple", "tensor_parallel 4", id="64 / (12 x 4): tp 4, dp 6 no"),
    ],
)  # fmt: skip
def test_illegal_points_to_the_line(
    tmp_path: Path, change: tuple[str, str], line: int, words: str, fix: str | None
) -> None:
    """A broken rule is told with its numbers, at the line of the fact to change."""
    finding = _check_text(tmp_path / "train.sh", SCRIPT.replace(*change))
    assert finding.verdict == "illegal"
    assert words in finding.text
    assert finding.line == line
    if fix:
        assert finding.fix is None or finding.fix.startswith(
            ("micro_batch_size", "tensor_parallel")
        )


def test_missing_facts_are_all_named_with_their_flags(tmp_path: Path) -> None:
    """One line says every missing fact, and how to give it."""
    text = '{"zero_optimization": {"stage": 3}, "train_batch_size": 16}'
    finding = _check_text(tmp_path / "ds.json", text, Settings())
    assert finding.verdict == "incomplete"
    for name in ("model", "cluster", "gpus", "seq_len"):
        assert name in finding.text
    assert "--gpus" in finding.text
    assert "\n" not in finding.text


@pytest.mark.parametrize("name", ["meshplan.toml", "pyproject.toml"])
def test_settings_fill_in_and_the_nearest_file_counts(tmp_path: Path, name: str) -> None:
    """Facts come from the nearest settings file above the config; flags win over the config."""
    table = f'cluster = "{CLUSTER}"\ngpus = 8\nmodel = "llama-3.2-1b"\nseq_len = 2048\n'
    (tmp_path / "meshplan.toml").write_text("gpus = 7\n")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    header = "" if name == "meshplan.toml" else "[tool.meshplan]\n"
    (tmp_path / "a" / name).write_text(header + table)
    config = folder / "ds.json"
    text = '{"zero_optimization": {"stage": 3}, "train_batch_size": 16}'
    assert _check_text(config, text, Settings()).label == "dp8 zero3 mbs2"
    assert _check_text(config, text, Settings(gpus=4)).label == "dp4 zero3 mbs4"


def test_a_bad_settings_file_is_one_line(tmp_path: Path) -> None:
    """An unknown key of a settings file is named, with the keys that exist."""
    (tmp_path / "meshplan.toml").write_text("gpu = 8\n")
    finding = _check_text(tmp_path / "train.sh", SCRIPT, Settings())
    assert finding.verdict == "unreadable"
    assert "meshplan.toml: gpu:" in finding.text
    assert "gpus" in finding.text


def test_a_folder_is_walked_once_through_every_loop(tmp_path: Path) -> None:
    """Links that loop end the walk, hidden and foreign files are skipped with a reason."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.sh").write_text(SCRIPT)
    (tmp_path / "configs" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.yaml").symlink_to(tmp_path / "self.yaml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "train.sh").write_text(SCRIPT)
    findings = check_paths([tmp_path], TOOLS, GIVEN)
    verdicts = {Path(finding.path).name: finding.verdict for finding in findings}
    assert verdicts["train.sh"] == "fits"
    assert verdicts["self.yaml"] == "unreadable"
    assert {verdicts[name] for name in ("picture.png", "list.yaml", "loop")} == {"skipped"}
    assert [finding.verdict for finding in findings].count("fits") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\x00\x01", "binary", id="binary"),
        pytest.param(b"a: \xff\xfe", "not UTF-8", id="not text"),
        pytest.param(b"#" * (2 * 2**20 + 1), "larger than 2 MiB", id="huge"),
        pytest.param(b"hello: world\n", "no config format recognised", id="something else"),
        pytest.param(b"meshplan: 1\nmodel: [", "not YAML", id="a truncated plan"),
        pytest.param(b"meshplan: 9\n", "plan version 9", id="a plan of the future"),
        pytest.param(b"meshplan: 1\nlayout: 3\n", "model", id="a plan without its parts"),
        pytest.param(b"meshplan: 1\nx: 2001-99-99\n", "not YAML", id="a date that is none"),
        pytest.param(b"meshplan: 1\nx: " + b"[" * 5000, "not YAML", id="a plan 5000 deep"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    """A named file that cannot be used is one clear line and exit code 2."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    findings = check_paths([path], TOOLS, GIVEN)
    assert [finding.verdict for finding in findings] == ["unreadable"]
    assert words in findings[0].text
    assert "\n" not in findings[0].text
    assert exit_code(findings) == 2


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    """A missing file, a loop of links, a pipe and a name that no system allows are all told
    apart.
    """
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    paths = [tmp_path / "none.yaml", loop, pipe, Path("a\0b"), Path("x" * 5000)]
    findings = check_paths(paths, TOOLS, GIVEN)
    assert [finding.verdict for finding in findings] == ["unreadable"] * 5
    assert "No such file" in findings[0].text
    assert "not a file" in findings[2].text


def test_a_file_without_permission_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system does not let us open is unreadable, with the system's reason."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.setattr(Path, "open", refused)
    (finding,) = check_paths([tmp_path / "train.sh"], TOOLS, GIVEN)
    assert (finding.verdict, finding.text) == ("unreadable", "cannot be read: Permission denied")


def test_an_unknown_name_is_told(tmp_path: Path) -> None:
    """Unknown clusters and models are usage errors, not tracebacks."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    for given in (Settings(cluster="nowhere"), Settings(cluster=CLUSTER, model="no-model")):
        (finding,) = check_paths([path], TOOLS, given)
        assert finding.verdict == "unreadable"
        assert "\n" not in finding.text


def test_a_format_the_gpu_lacks_is_illegal(tmp_path: Path) -> None:
    """An H100 has no fp4 matmuls: nvfp4 is refused with what it has."""
    text = SCRIPT.replace("--bf16", "--bf16 --fp4-format e2m1")
    finding = _check_text(tmp_path / "train.sh", text)
    assert finding.verdict == "illegal"
    assert "has no nvfp4" in finding.text


def test_exit_codes() -> None:
    """0 all good, 1 findings, 2 as soon as one file cannot be judged."""
    fits, big, bad, skipped = (
        Finding(path="x", verdict=verdict, text="")
        for verdict in ("fits", "does not fit", "unreadable", "skipped")
    )
    assert exit_code([]) == 0
    assert exit_code([fits, skipped]) == 0
    assert exit_code([fits, big]) == 1
    assert exit_code([big, bad]) == 2


def test_a_plan_whose_world_does_not_add_up(tmp_path: Path) -> None:
    """cluster.gpus must be dp x cp x tp x pp."""
    plan = _plan()
    wrong = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"gpus": 63})})
    finding = _check_plan(tmp_path / "plan.yaml", wrong)
    assert finding.verdict == "illegal"
    assert "63" in finding.text


def test_stages_are_not_lost(tmp_path: Path) -> None:
    """A plan whose stages miss a layer is illegal: 40 + 39 are not 80."""
    layout = replace(LAYOUT, stages=(Stage(40), Stage(39)))
    assert _check_plan(tmp_path / "plan.yaml", _plan(layout=layout)).verdict == "illegal"
