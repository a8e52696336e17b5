"""What a picture of a sweep says, without one being drawn."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.planner.sweep import plot
from meshplan.planner.sweep.cells import Answer, Series
from meshplan.planner.sweep.economics import Terms, run_cost
from meshplan.planner.sweep.outcome import Sweep, SweepRow
from meshplan.planner.sweep.plot import COLOURS, names_of, shade_of, spread

SERIES = Series(
    model="m", cluster="c", engine="e", seq_len=4096, global_batch_size=1024
)  # fmt: skip
OPEN = SweepRow(line=0, series=SERIES, gpus=8, answer=None)


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        pytest.param([0.1, 0.5], [0.1, 0.5], id="far enough"),
        pytest.param([0.1, 0.15, 0.2], [0.1, 0.3, 0.5], id="each above the one below"),
        pytest.param([0.1, 0.2, 0.9], [0.1, 0.3, 0.9], id="but no farther than that"),
        pytest.param([], [], id="none"),
    ],
)
def test_labels_stand_apart(heights: list[float], expected: list[float]) -> None:
    """By 0.2, of an axis."""
    assert spread(heights, 0.2) == pytest.approx(expected)


def test_series_are_named_by_what_tells_them_apart() -> None:
    """What is common stands above; alone, a series is its model."""
    other = replace(OPEN, series=replace(SERIES, engine=None, global_batch_size=None))
    assert names_of([[OPEN]])[1] == ["m"]
    assert names_of([[OPEN], [other]]) == (
        "m, c, 4,096 tokens a sequence",
        ["e\n1,024 sequences a step", "no engine\n? sequences a step"],
    )


def test_a_series_has_a_line_of_its_own() -> None:
    """Eight colours, then eight dashed ones."""
    found = [plot._dash(at) for at in (0, len(COLOURS) - 1, len(COLOURS), 2 * len(COLOURS))]
    assert found == ["-", "-", "--", ":"]


def test_sizes_that_stand_close_are_not_marked() -> None:
    """Each 1.3 times the one before at least: 10.4 of 8, 13 of 10."""
    ticks = list[list[int]]()
    plot._mark_sizes(
        SimpleNamespace(set_xticks=lambda at, *_, **__: ticks.append(at)), [8, 10, 13, 16, 17, 64]
    )
    assert ticks == [[8, 13, 17, 64], []]


@pytest.mark.parametrize(
    ("mfus", "title", "values"),
    [
        pytest.param((0.4, 0.3), "MFU", [{8: 0.4, 16: 0.3}], id="as it is"),
        pytest.param((0.4, None), "tokens/s per GPU, share of the best", [{8: 0.5, 16: 1.0}],
                     id="mixed formats have none: 50 of 100 tokens/s"),
    ],
)  # fmt: skip
def test_shades_are_alike_for_all_cells(
    mfus: tuple[float | None, float | None], title: str, values: list[dict[int, float]]
) -> None:
    """MFU only where each cell has one."""
    line = []
    for gpus, mfu, rate in zip((8, 16), mfus, (50.0, 100.0), strict=True):
        prediction = SimpleNamespace(mfu=mfu, tokens_per_s_per_gpu=rate)
        answer = SimpleNamespace(plan=SimpleNamespace(prediction=prediction))
        line.append(SimpleNamespace(gpus=gpus, answer=answer))
    line.append(SimpleNamespace(gpus=32, answer=None))
    assert shade_of([line]) == (title, values)


@pytest.mark.parametrize(
    ("proved", "text"), [(True, "42.5%\ndp16 tp8"), (False, "42.5% (not proved)\ndp16 tp8")]
)
def test_a_cell_says_its_layout(proved: bool, text: str) -> None:
    """In short lines; without a plan, why."""
    label = Layout(data_parallel=16, tensor_parallel=8, stages=even_stages(8, 1)).label
    plan = SimpleNamespace(layout=SimpleNamespace(label=label))
    row = SimpleNamespace(answer=SimpleNamespace(plan=plan, proved=proved))
    said = plot._cell_text(row, 0.425)
    assert said.startswith(text)
    assert max(map(len, said.split("\n")[1:])) <= plot.LABEL_WIDTH
    assert plot._cell_text(OPEN, None) == "not\nplanned"
    nothing = replace(OPEN, answer=Answer(status="INFEASIBLE"))
    assert plot._cell_text(nothing, None) == "nothing\nfits"


def test_where_a_run_stands_in_the_curve_of_costs() -> None:
    """8 GPUs take 100 s for 1,000 tokens: 0.8 GPU-seconds a token; a million of these in 27.8 h, of
    222 GPU-hours or twice as many dollars. A run without end stands nowhere.
    """
    for terms, priced, expected in (
        (Terms(), False, (8, 0.8e6)), (Terms(tokens=1e6), False, (1e5 / 86400, 1e5 / 3600 * 8)),
        (Terms(tokens=1e6), True, (1e5 / 86400, 1e5 / 3600 * 16)),
    ):  # fmt: skip
        cost = run_cost(8, 100.0, 1000, terms, 2.0)
        assert plot._point(cost, Sweep(rows=(), terms=terms), priced) == pytest.approx(expected)
    endless = replace(run_cost(8, 100.0, 1000, Terms()), tokens_per_s=0.0)
    assert plot._point(endless, Sweep(rows=(), terms=Terms()), False) is None
