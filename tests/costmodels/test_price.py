"""The closed form against the simulation of the same layout, and rows against one layout at a time."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.grid import Grid, distinct
from costmodels.in_flight import in_flight
from costmodels.layout import Layout
from costmodels.price import Prices, price
from costmodels.ranks import SELECTIVE
from costmodels.stage_model import MODES

RELATIVE = 1e-9
COMMON = settings(max_examples=40, deadline=None)


def priced(case) -> Prices:
    s = case.setting
    return price(case.grid, s.model, s.training, s.cluster, s.engine, s.tuning)


def chunk_times_s(prices: Prices, case) -> list[float]:
    """Seconds of one micro-batch in each stage, as the stage problem adds them up."""
    times = []
    for counts in case.step.stage_counts:
        layers = (
            n * prices.layer_s[0, kind, MODES.index(mode)] for (kind, mode), n in counts.items()
        )
        times.append(sum(layers) + prices.send_s[0])
    times[0] += prices.embedding_s[0]
    times[-1] += prices.head_s[0]
    return [float(t) for t in times]


def once_s(prices: Prices, case) -> float:
    """D: the largest once-per-step seconds of a rank."""
    sums = [
        sum(n * prices.layer_step_s[0, kind] for (kind, _), n in counts.items())
        for counts in case.step.stage_counts
    ]
    sums[0] += prices.embedding_step_s[0]
    sums[-1] += prices.head_step_s[0]
    return float(max(sums))


def step_s(prices: Prices, case) -> float:
    """(m - 1) X + sum c_j + D, the objective of the search for one chunk per rank."""
    times, m = chunk_times_s(prices, case), case.layout.num_micro_batches(case.setting.training)
    fixed = float(prices.fixed_step_s[0])
    return (m - 1) * max(times) + sum(times) + once_s(prices, case) + fixed


def peaks_bytes(prices: Prices, case) -> list[float]:
    """Reserved bytes of each rank, beside what every rank holds, as the stage problem adds them."""
    pp, m = case.layout.pipeline_parallel, case.layout.num_micro_batches(case.setting.training)
    peaks = []
    for s, counts in enumerate(case.step.stage_counts):
        first, last = s == 0, s == pp - 1
        states = first * prices.embedding_state_bytes[0] + last * prices.head_state_bytes[0]
        update = first * prices.embedding_update_bytes[0] + last * prices.head_update_bytes[0]
        saved = first * prices.embedding_saved_bytes[0] + last * prices.head_saved_bytes[0]
        transient = last * prices.head_transient_bytes[0]
        for (kind, mode), n in counts.items():
            states += n * prices.layer_state_bytes[0, kind]
            update += n * prices.layer_update_bytes[0, kind]
            saved += n * prices.layer_saved_bytes[0, kind, MODES.index(mode)]
            transient = max(transient, prices.transient_bytes[0, MODES.index(mode)])
        held = in_flight("1f1b", pp, 1, m)[s][0][0] * saved
        peaks.append(float(states + max(held + transient, update)))
    return peaks


@COMMON
@given(data=st.data())
def test_one_rank_is_priced_exactly(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """Without a pipeline nothing is left to bound: the closed form is the simulation."""
    case = data.draw(cases(pipelined=False, uniform=True))
    expected = case.step.time().step_time_s
    assert step_s(priced(case), case) == pytest.approx(expected, rel=RELATIVE)


@COMMON
@given(data=st.data())
def test_pipeline_is_bounded(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The closed form exceeds the simulation by at most what follows the slowest stage.

    A rank cannot be done before it has run all micro-batches after the first one reached it, so
    the step is at least m X + sum of c_j before the slowest stage.
    """
    case = data.draw(cases(pipelined=True, uniform=True))
    prices, simulated = priced(case), case.step.time().step_time_s
    times = chunk_times_s(prices, case)
    slowest = times.index(max(times))
    excess = step_s(prices, case) - simulated
    assert excess <= sum(times[slowest + 1 :]) + once_s(prices, case) + RELATIVE


@COMMON
@given(data=st.data())
def test_memory_is_never_underestimated(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """A rank's priced peak is the simulated one, or more where it holds only the smaller kinds."""
    case = data.draw(cases())
    model = case.setting.model
    for peak, counts, memory in zip(
        peaks_bytes(priced(case), case), case.step.stage_counts, case.step.memory(), strict=True
    ):
        slack = case.step.slack_bytes(memory) - case.setting.tuning.memory_bytes
        needed = float(memory.allocated) + slack
        assert peak >= needed * (1 - RELATIVE)
        if {kind for kind, _ in counts} == set(range(len(model.kinds))):
            modes = {mode for _, mode in counts}
            assert len(modes) > 1 or peak == pytest.approx(needed, rel=RELATIVE)


@COMMON
@given(data=st.data())
def test_row_equals_one_layout(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """A layer without recompute costs a row what it costs `StepModel`; the ends too."""
    case = data.draw(cases())
    prices, step = priced(case), case.step
    for kind in range(len(case.setting.model.kinds)):
        alone = [step.layer_cost(kind, mode) for mode in MODES]
        assert prices.layer_s[0, kind, 0] == pytest.approx(float(alone[0].total_s), rel=RELATIVE)
        slack = 1 + case.setting.tuning.activation_slack_fraction
        saved = [slack * float(cost.saved_bytes) for cost in alone]
        assert list(prices.layer_saved_bytes[0, kind]) == pytest.approx(saved, rel=RELATIVE)
        for mode in (1, 2):  # less gradient communication is seen where the backward is longer
            assert prices.layer_s[0, kind, mode] <= float(alone[mode].total_s) * (1 + RELATIVE)
    ends = [float(cost.total_s) for cost in step.ends]
    assert [prices.embedding_s[0], prices.head_s[0]] == pytest.approx(ends, rel=RELATIVE)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_rows_do_not_see_each_other(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The price of a row is the same alone and among others."""
    some = [data.draw(cases()) for _ in range(4)]
    s = some[0].setting
    grid = Grid(**{
        f.name: np.concatenate([getattr(case.grid, f.name) for case in some]) for f in fields(Grid)
    })  # fmt: skip
    setting = (s.model, s.training, s.cluster, s.engine, s.tuning)
    together = price(grid, *setting)
    for row in range(len(grid)):
        alone = price(grid.take(np.array([row])), *setting)
        for f in fields(Prices):
            if f.name != "capacity_bytes":
                np.testing.assert_allclose(
                    getattr(together, f.name)[row], getattr(alone, f.name)[0], rtol=RELATIVE
                )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**40)), min_size=1))
def test_distinct_rows(rows: list[tuple[int, int]]):
    """Each row finds itself among the distinct ones, of which no two are equal."""
    columns = tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))
    first, of_row = distinct(columns)
    found = [rows[i] for i in first]
    assert len(set(found)) == len(found) == len(set(rows))
    assert [found[i] for i in of_row] == rows


def test_default_selective_modules():
    """What selective recompute replays in a row is what a layout replays by default."""
    assert Layout(stages=()).selective_modules == SELECTIVE
