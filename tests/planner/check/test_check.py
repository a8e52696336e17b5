"""Verdicts, margins, reasons and fixes, with a price that can be worked out by hand."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hand_priced import (
    LAYOUT,
    SCRIPT,
    TOOLS,
    a_case,
    a_plan,
    check_plan,
    check_text,
    price,
    tools_of,
)
from random_plans import CLUSTER

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.training import Lora
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.memory_limit import limit_bytes
from meshplan.planner.case.plan_file import Prediction, write_plan
from meshplan.planner.case.resolve import Case
from meshplan.planner.check.check import DEFECT, Tools, _defect, check_paths
from meshplan.planner.check.fixes import Quote
from meshplan.planner.check.verdicts import Limits


def test_a_plan_that_fits_tells_its_margin(tmp_path: Path) -> None:
    """margin = usable memory - (10 + 4 x 10 + 1 of context) GiB, on the fullest rank. A plan that
    says all itself needs no note.
    """
    finding = check_plan(tmp_path / "plan.yaml", a_plan())
    assert finding.notes == ()
    usable = limit_bytes(load_cluster(CLUSTER))
    assert finding.verdict == "fits"
    assert finding.margin_bytes == pytest.approx(usable - 51 * GIB)
    assert (finding.stage, finding.category, finding.framework) == (0, "activations", "plan")


def test_too_big_names_rank_category_bytes_and_fix(tmp_path: Path) -> None:
    """10 + 8 x 10 + 1 = 91 GiB are too many; mbs 4 (51 GiB) is faster than recompute (27)."""
    layout = replace(LAYOUT, micro_batch_size=8)
    finding = check_plan(tmp_path / "plan.yaml", a_plan(layout=layout))
    over = 91 * GIB - limit_bytes(load_cluster(CLUSTER))
    assert finding.verdict == "does not fit"
    assert finding.margin_bytes == pytest.approx(-over)
    assert "rank 0 of 2 needs 91.0 GiB" in finding.text
    assert f"({over:,.0f} bytes)" in finding.text
    assert "the largest part is activations, 80.0 GiB" in finding.text
    assert finding.fix == "micro_batch_size 4"


def test_the_fix_is_the_fastest_change_that_fits(tmp_path: Path) -> None:
    """With one sequence per micro-batch only recompute is left: 10 + 2 GiB instead of 90."""

    def heavy(case: Case) -> Prediction:
        mild = price(case)
        factor = 9.0 if case.layout.recompute != "full" else 1.0
        memory = tuple(
            stage.model_copy(update={"allocated": stage.allocated * factor})
            for stage in mild.memory
        )
        return mild.model_copy(update={"memory": memory})

    path = tmp_path / "plan.yaml"
    write_plan(a_plan(layout=replace(LAYOUT, micro_batch_size=1)), path)
    (finding,) = check_paths([path], tools_of(heavy))
    assert (finding.verdict, finding.fix) == ("does not fit", "recompute full")


def _resized(bytes_of: Callable[[Layout], float]) -> Tools:
    """Tools whose price takes `bytes_of` a layout on every rank."""

    def sized(case: Case) -> Prediction:
        mild, size = price(case), bytes_of(case.layout)
        memory = tuple(stage.model_copy(update={"allocated": size}) for stage in mild.memory)
        return mild.model_copy(update={"memory": memory})

    return tools_of(sized)


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
    write_plan(a_plan(layout=LAYOUT), path)
    (finding,) = check_paths([path], _resized(bytes_of))
    assert (finding.verdict, finding.fix) == ("does not fit", fix)
    assert ("no fix of up to 4 changes was found" in finding.text) == (fix is None)


@pytest.mark.parametrize(
    ("capacity_gib", "single"), [(0, False), (20, False), (30, False), (60, True), (80, True)]
)
def test_time_is_priced_only_where_memory_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity_gib: int, single: bool
) -> None:
    """The work of one file: memory of each legal change; time of its own and of the first
    `MOST_TIMED` that fit, where it takes time to choose among them.
    """
    timed: list[Case] = []
    usable = limit_bytes(load_cluster(CLUSTER))

    def counted(case: Case) -> Quote:
        now = price(case)
        scale = usable / GIB / capacity_gib if capacity_gib else 1e6
        memory = tuple(s.model_copy(update={"allocated": s.allocated * scale}) for s in now.memory)
        whole = now.model_copy(update={"memory": memory})
        return Quote(memory, lambda: timed.append(case) or whole)

    path = tmp_path / "plan.yaml"
    write_plan(a_plan(layout=replace(LAYOUT, micro_batch_size=16)), path)
    (finding,) = check_paths([path], replace(TOOLS, price=counted))
    assert finding.verdict == "does not fit"
    fitting = [counted(case) for case in timed[1:]]
    assert all(max(stage.needed for stage in each.memory) <= usable for each in fitting)
    assert (len(timed) > 1) == single
    every = len(timed) - 1
    for most in (1, 2, 3):
        timed.clear()
        monkeypatch.setattr("meshplan.planner.check.fixes.MOST_TIMED", most)
        check_paths([path], replace(TOOLS, price=counted))
        compared = min(every, most)
        assert len(timed) == 1 + (compared if compared > 1 else 0)


@pytest.mark.parametrize(
    ("lora", "verdict"),
    [
        (Lora(rank=16), "fits"),
        (Lora(rank=16, targets="qv"), "illegal"),
        (Lora(rank=16, base_precision="int8"), "illegal"),
    ],
)
def test_a_plans_adapters_are_those_of_its_engine(tmp_path: Path, lora: Lora, verdict: str) -> None:
    """Megatron-Bridge has one adapter beside query, key and value, and no weights of 8 bits."""
    plan = a_plan()
    said = {"engine": "megatron-bridge", "training": replace(plan.training, lora=lora)}
    finding = check_plan(tmp_path / "plan.yaml", plan.model_copy(update=said))
    assert finding.verdict == verdict, finding.text
    assert ("megatron-bridge" in finding.text) == (verdict == "illegal")


def test_drift_is_measured_against_the_plan(tmp_path: Path) -> None:
    """4 x 2 x 1.025 = 8.2 s now; a plan that said 8 s drifted by 2.5 %: beyond 2 %, within 3 %."""
    now = price(a_case(LAYOUT))
    assert now.step_time_s == pytest.approx(2 * 128 / 64 * 1.025)
    planned = now.model_copy(update={"step_time_s": now.step_time_s / 1.025})
    path = tmp_path / "plan.yaml"
    drifted = check_plan(path, a_plan(planned), tolerance=0.02)
    assert drifted.verdict == "drifted"
    assert "+2.5%" in drifted.text
    text = path.read_text().splitlines()
    assert text[drifted.line - 1].startswith("prediction:")
    assert check_plan(path, a_plan(planned), tolerance=0.03).verdict == "fits"


def test_memory_drifts_too(tmp_path: Path) -> None:
    """A peak 25 % above the planned one is a drift although the step time is the same."""
    now = price(a_case(LAYOUT))
    less = tuple(
        stage.model_copy(update={"allocated": stage.needed / 1.25 - stage.context})
        for stage in now.memory
    )
    planned = now.model_copy(update={"memory": less})
    finding = check_plan(tmp_path / "plan.yaml", a_plan(planned))
    assert finding.verdict == "drifted"
    assert "peak memory" in finding.text


@pytest.mark.parametrize(("slack", "verdict"), [(0.05, "beaten"), (0.5, "fits")])
def test_beaten_only_beyond_the_slack(tmp_path: Path, slack: float, verdict: str) -> None:
    """A layout 25 % slower than the best is a finding with 5 % slack, and none with 50 %."""
    path = tmp_path / "plan.yaml"
    write_plan(a_plan(), path)
    now = price(a_case(LAYOUT)).step_time_s
    tools = replace(TOOLS, best=lambda case, pins: ("dp64", now / 1.25))
    (finding,) = check_paths([path], tools, limits=Limits(slack=slack))
    assert finding.verdict == verdict


@pytest.mark.parametrize("pins", [None, {"tensor_parallel": "4"}])
def test_what_is_searched_has_the_pins_of_the_plan_file(
    tmp_path: Path, pins: dict[str, str] | None
) -> None:
    """None in older files."""
    asked = list[Mapping[str, str]]()
    write_plan(a_plan().model_copy(update={"pins": pins}), tmp_path / "plan.yaml")
    tools = replace(TOOLS, best=lambda case, pins: asked.append(pins))
    check_paths([tmp_path / "plan.yaml"], tools, limits=Limits(slack=0.0))
    assert asked == [pins or {}]


def test_a_search_runs_only_when_asked(tmp_path: Path) -> None:
    """Without --slack nobody asks for the best layout."""

    def never(case: Case, pins: Mapping[str, str]) -> tuple[str, float] | None:
        raise AssertionError("searched without slack")

    write_plan(a_plan(), tmp_path / "plan.yaml")
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
    finding = check_text(tmp_path / "train.sh", SCRIPT.replace(*change))
    assert finding.verdict == "illegal"
    assert words in finding.text
    assert finding.line == line
    if fix:
        assert finding.fix is None or finding.fix.startswith(
            ("micro_batch_size", "tensor_parallel")
        )


def test_a_defect_is_told_with_its_place() -> None:
    """The innermost line that raised, whatever called it."""

    def raising() -> None:
        raise RuntimeError("two\nlines")

    try:
        raising()
    except RuntimeError as error:
        said = _defect(error)
        line = error.__traceback__.tb_next.tb_lineno  # type: ignore[union-attr]
    assert said == f"{DEFECT}: RuntimeError in {Path(__file__).name}:{line}: two lines"
