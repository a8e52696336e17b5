"""What an estimate says of rows, by hand and beside plans; and the first plans that it leads to."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.prices.prices import Prices
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import evaluate, stage_problem
from meshplan.planner.search import search
from meshplan.planner.search.closed_form import first_plans
from meshplan.planner.search.closed_form import likely_ways as likely
from meshplan.planner.search.closed_form.first_plans import TOGETHER, FirstPlans
from meshplan.planner.search.closed_form.likely_seeds import KINDS, WAYS, seed_likely
from meshplan.planner.search.closed_form.likely_ways import likely_ways
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    busy_ns,
    closed_form,
    space_of,
)
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.first_plan import first_plan

MB = 1024 * 1000  # whole KiB
ENDS = ("embedding", "head")
TWO_STAGES = {"pipeline_parallel": "2", "zero_stage": "0", "micro_batch_size": "1"}


def flat(cap_bytes: float) -> Pricer:
    """Each layer takes 10 ms, 11 selectively and 13 in full, keeps 8, 4 and 2 MB and has 1 MB of
    states; the embedding takes 5 ms, the head 7. Nothing else takes time or memory.
    """

    def price(layouts: Layouts, question: Question) -> Prices:
        n = len(layouts)
        column, layer = np.zeros(n), np.zeros((n, 1))
        columns = dict.fromkeys(
            [f"{end}_{what}" for end in ENDS for what in
             ("s", "saved_bytes", "state_bytes", "update_bytes", "step_s")]
            + ["put_off_bytes", "head_transient_bytes", "send_s", "forward_s", "input_grad_s",
               "weight_grad_s", "fixed_bytes", "fixed_step_s"], column,
        ) | dict.fromkeys(
            [f"layer_{what}" for what in
             ("update_bytes", "deferred_bytes", "waiting_bytes", "step_s")], layer,
        ) | {
            "layer_s": np.tile([0.010, 0.011, 0.013], (n, 1, 1)),
            "layer_saved_bytes": np.tile([8.0 * MB, 4.0 * MB, 2.0 * MB], (n, 1, 1)),
            "layer_state_bytes": layer + MB,
            "transient_bytes": np.zeros((n, 3)),
            "embedding_s": column + 0.005,
            "head_s": column + 0.007,
        }  # fmt: skip
        return Prices(**columns, capacity_bytes=cap_bytes)

    return price


def test_ways_estimated_in_blocks_are_those_estimated_together(
    question: Callable[..., Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places, ways and estimates, in the same order."""
    asked = question((0, 0, 0, 0), 8, 8)
    space = space_of(asked)
    rows = np.arange(len(space.layouts))[::2]
    prices = RowPrices(asked, space, flat(60 * MB)).take(rows)
    together = list(likely_ways(space, prices, rows))
    monkeypatch.setattr(likely, "BLOCK", 3)
    assert len(together) > 3
    assert list(likely_ways(space, prices, rows)) == together


@pytest.mark.parametrize(
    ("cap_mb", "estimate_ms"),
    [
        pytest.param(68, (80 + 12) / 2 * 4 + (80 + 12) / 2, id="4-states-64-saved-fits"),
        pytest.param(60, (82 + 12) / 2 * 4 + (82 + 12) / 2, id="8-of-32-freed-a-quarter-of-8-ms"),
        pytest.param(30, (99 + 12) / 2 * 4 + (99 + 12) / 2, id="38-of-48-freed-in-full-19-ms"),
        pytest.param(19, None, id="20-held-at-least"),
    ],
)
def test_two_stages_by_hand(
    question: Callable[..., Question], cap_mb: int, estimate_ms: float | None
) -> None:
    """8 layers on 2 ranks, 4 micro-batches of which the first rank holds 2, as 1F1B."""
    pins = parse_pins(TWO_STAGES | {"tensor_parallel": "1", "context_parallel": "1"})
    asked = replace(question((0,) * 8, 2, 4), pins=pins)
    space = space_of(asked)
    rows = np.arange(len(space.layouts))
    prices = RowPrices(asked, space, flat(cap_mb * MB)).take(rows)
    found = [
        ns / 1e6 for _, variant, ns in likely_ways(space, prices, rows)
        if variant.schedule == "1f1b"
    ]  # fmt: skip
    assert bool(found) == (estimate_ms is not None)
    assert found == pytest.approx([estimate_ms] * len(found))


ASKED = Arguments(
    model="qwen3-30b-a3b", gpus=64, cluster="dgx-h100", engine="megatron", seq_len="4096",
    global_batch=256,
)  # fmt: skip
TIGHT = replace(ASKED, model="llama-3.1-70b", gpus=24, cluster="dgx-a100", engine="torchtitan")
ANYWHERE = replace(ASKED, model="nemotron-h-8b", gpus=32, engine="generic")
CASES = [
    pytest.param(ASKED, id="megatron"),
    pytest.param(TIGHT, id="torchtitan-that-recomputes"),
    pytest.param(ANYWHERE, id="generic-of-several-kinds"),
]


def begun(arguments: Arguments) -> tuple[Question, FirstPlans]:
    """A search without first plans."""
    asked = ask(arguments).question
    space = space_of(asked)
    return asked, FirstPlans(space, RowPrices(asked, space, closed_form, busy_ns(asked, space)))


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", CASES)
def test_estimates_are_of_the_order_of_simulated_steps(arguments: Arguments) -> None:
    """Of the likeliest ways that get a plan: within a quarter."""
    asked, run = begun(arguments)
    run.coefficients.settle(1)
    ratios = []
    ways = likely_ways(run.space, run.coefficients.take(run.rows), run.rows)
    for place, variant, estimate_ns in islice(ways, 40):
        row = int(run.rows[place])
        problem = stage_problem(run.space, run.coefficients, row, variant)
        _, plan = first_plan(problem)
        if plan is not None:
            layout = layout_of_row(run.space.layouts, row, variant, plan)
            ratios.append(estimate_ns / NS_PER_S / simulated_s(case_at(asked, layout)))
    assert len(ratios) > 10
    assert min(ratios) > 0.75
    assert max(ratios) < 1.25


def test_a_few_ways_at_a_time_are_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimated and sorted in parts: the same ways in the same order, equal ones too."""
    _, run = begun(replace(ASKED, engine="native", gpus=16))
    run.coefficients.settle(1)
    args = run.space, run.coefficients.take(run.rows), run.rows
    found = list(likely_ways(*args))
    estimates = [estimate_ns for _, _, estimate_ns in found]
    assert estimates == sorted(estimates)
    assert len(set(estimates)) < len(estimates) > 100  # some are equal
    monkeypatch.setattr(likely, "BLOCK", 501)
    monkeypatch.setattr(likely, "FEW", 5)
    assert list(likely_ways(*args)) == found


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", CASES)
def test_first_plans_fit_and_are_kept(arguments: Arguments) -> None:
    """The best of each kind, which the closed form prices alike; and fewer than the search may
    spend on them.
    """
    _, run = begun(arguments)
    seed_likely(run)
    assert 1 < len(run.best) <= KINDS
    assert len(run.space.layouts) > KINDS * WAYS
    for _, row, variant, plan in run.best.values():
        problem = stage_problem(run.space, run.coefficients, row, variant)
        assert evaluate(problem, plan.stages) == plan
        assert max(plan.peak_kib) <= problem.cap_kib


V_SHAPED_ONLY = replace(
    ASKED, model="deepseek-v3", gpus=8192, cluster="dgx-h800", engine="hai-llm", seq_len="131072"
)


def test_where_what_is_busy_least_does_not_fit_rows_are_drawn() -> None:
    """DeepSeek-V3 with sequences of 128K: plans, V shapes among them, before any row is bounded."""
    _, run = begun(replace(V_SHAPED_ONLY, global_batch=4096))
    seed_likely(run)
    assert V_SHAPED & {found.variant.schedule for found in run.best.values()}


def test_where_no_kind_is_likely_rows_are_planned_in_order() -> None:
    """Not below a limit that no row is below, not after the deadline; else until one has a plan,
    which is among the rows that are planned together first.
    """
    _, run = begun(TIGHT)
    assert run.find(below_ns=run.least_ns())
    assert not run.find(deadline=0.0)
    assert not run.best
    assert run.find()
    assert {found.row for found in run.best.values()} <= set(run.rows[:TOGETHER].tolist())
    assert run.best


@pytest.mark.parametrize(("least_ns", "settled", "proved"), [
    pytest.param(None, True, True, id="no layout has a plan"),
    pytest.param(0, True, False, id="one may have a plan that no rule of thumb finds"),
    pytest.param(None, False, False, id="a cut that no list has may fit"),
])  # fmt: skip
def test_nothing_fits_is_proved_where_nothing_is_left_open(
    least_ns: int | None, settled: bool, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no plan is found of any row."""
    monkeypatch.setattr(first_plans, "first_plan", lambda _: (least_ns, None))
    monkeypatch.setattr(search, "plan_unlisted", lambda *_: settled)
    monkeypatch.setattr(search, "rows_beyond", lambda *_: ())
    asked, run = begun(TIGHT)
    with pytest.raises(NoLayoutFits) as refused:
        search._plan_first(run, asked, None)
    assert refused.value.proved == proved
