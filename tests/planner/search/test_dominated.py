"""Rows that another one beats in everything: no cut or mix of theirs is faster than the other's."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
from every_row import every_row
from nightly import cases
from simulated_oracle import DENSE, MOE, PINNED, every_plan, random_question

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.late_traffic import LateTraffic
from meshplan.costmodels.prices.passes import OF_SETTING, PassSeconds, pass_seconds
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.predict import stage_memory
from meshplan.planner.problem.coefficients import KIB, Coefficients
from meshplan.planner.problem.stage_problem import StagePlan, evaluate, stage_problem
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows import dominated as of_groups
from meshplan.planner.search.rows import rows_below
from meshplan.planner.search.rows.dominated import (
    ENDS,
    HIDING,
    LARGER,
    LATE,
    LONGER,
    TOGETHER,
    beaten,
    beaten_of_each,
    dominated,
)
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.search.rows.priced_space import (
    Question,
    as_simulated,
    closed_form,
    price_space,
    space_of,
)
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.pins import parse_pins

CLOSE = 1 + 1e-12


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        pytest.param([[1, 2], [2, 1]], [False, False], id="each-less-in-one-stay-both"),
        pytest.param([[1, 2], [1, 1]], [True, False], id="2>1-and-1=1-goes"),
        pytest.param([[3, 1], [3, 1], [3, 1]], [False, True, True], id="of-equals-the-first-stays"),
        pytest.param([[4, 4], [3, 3], [2, 2]], [True, True, False], id="the-least-beats-all"),
    ],
)
def test_of_two_rows(costs: list[list[float]], expected: list[bool]) -> None:
    """By hand; the same with twenty columns more in which all are equal or ordered alike."""
    table = np.array(costs, float)
    wide = np.concatenate([np.ones((len(table), 20)), table, table], axis=1)
    assert beaten(table).tolist() == expected
    assert beaten(wide).tolist() == expected


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(12))
def test_of_many_rows(seed: int) -> None:
    """Comparing every two rows says the same, of more than are compared at a time: random ones, of
    which some are equal; some differ by less than their sums show.
    """
    rng = np.random.default_rng(seed)
    number, columns = int(rng.integers(2, 4 * TOGETHER)), int(rng.integers(2, 12))
    table = rng.integers(0, 2 + seed // 3, (number, columns)).astype(float)
    table[:, 0] *= 2.0**60 if seed % 2 else 1
    expected = [
        any(
            (table[other] <= row).all() and (other < at or (table[other] < row).any())
            for other in range(number) if other != at
        )
        for at, row in enumerate(table)
    ]  # fmt: skip
    assert beaten(table).tolist() == expected
    assert any(expected)
    assert not all(expected)


@pytest.mark.parametrize("seed", range(6))
def test_of_many_groups(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as on its own, small ones at once and large ones, some of whose costs are infinite; few
    pairs at a time.
    """
    monkeypatch.setattr(of_groups, "PAIRS", 7)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 * of_groups.FEW, 30)
    table = rng.integers(0, 3, (int(sizes.sum()), 4)).astype(float)
    table[:, 3] = np.where(np.repeat(rng.random(30) < 0.5, sizes), math.inf, table[:, 3])
    groups = np.split(table, sizes.cumsum()[:-1])
    expected = np.concatenate([beaten(group) for group in groups])
    assert (beaten_of_each(table, sizes) == expected).all()
    assert 0 < expected.sum() < len(table)


def test_no_plan_of_a_row_that_another_beats_is_faster_or_fits_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of random questions, two rows at a time: what the one that is left out runs, the other runs
    in no more time and memory, whatever cut and mix.
    """
    monkeypatch.setattr(rows_below, "_beaten_in_kind", lambda space, _found, _setting: np.zeros(
        len(space.layouts), bool
    ))  # fmt: skip
    compared = 0
    for seed in range(cases(7, nightly=60)):
        draw, question = random.Random(seed), random_question(seed)
        layers = max(2, min(4, question.model.num_layers))
        question = replace(
            question, gpus=8, engine=load_engine(draw.choice(("generic", "native", "megatron"))),
            model=replace(question.model, kinds=(DENSE, MOE), pattern=(0,) + (1,) * (layers - 1)),
            pins=parse_pins({**PINNED, "context_parallel": "1,2"}),
        )  # fmt: skip
        space = space_of(question)
        proof = Simulated(
            question, space, every_row(question, space), lambda layout: math.inf,
            lambda row, variant, plan, s=space: layout_of_row(s.layouts, row, variant, plan),
        )  # fmt: skip
        for rows in _pairs(proof, draw):
            out = dominated(proof.space, proof.passes, proof.prices, rows)
            if out.any():
                compared += _compared(proof, int(rows[~out][0]), int(rows[out][0]), draw)
    assert compared > 25


def test_what_beats_a_row_needs_no_more_whichever_kinds_a_rank_holds() -> None:
    """By the memory of `check`, of cuts whose ranks hold more or fewer of a kind. Compared by the
    least of the kinds alone, some of Jamba's rows beat others that need less; DeepSeek's do beat
    each other.
    """
    cuts, out = {"jamba-v0.1": ((2, 6), (4, 4), (6, 2)), "deepseek-v2-lite": ((1, 7), (4, 4))}, 0
    for (model, counts), engine in zip(cuts.items(), ("megatron", "generic"), strict=True):
        pins = {"pipeline_parallel": "2", "micro_batch_size": "1", "data_parallel": "1"}
        pins |= {"tensor_parallel": "4,8", "zero_stage": "0,1"}
        asked = Arguments(
            model=model, gpus=16, cluster="dgx-h100", engine=engine, global_batch=16,
            pins={**pins, "recompute": "full", "schedule": "1f1b"},
        )  # fmt: skip
        question = ask(asked).question
        model_of_8 = replace(question.model, pattern=question.model.pattern[:8])
        question = replace(question, model=model_of_8)
        space = space_of(question)
        rows = np.arange(len(space.layouts))
        space = space.take(rows)  # unpacked
        passes = pass_seconds(space.layouts, question.setting)
        prices = as_simulated(price_space(question, space, closed_form), passes)
        least = LeastOfKinds(prices, space.layouts, question.setting, rows)
        left_out = dominated(space, passes, least, rows)
        needed = np.array([_needed_bytes(question, space, row, counts) for row in rows.tolist()])
        for row in rows[left_out]:
            fits = (needed[~left_out] <= needed[row] + KIB).all(axis=(1, 2))
            assert fits.any(), (model, space.layouts.take(rows[row : row + 1]))
            out += 1
    assert out >= 15


def _needed_bytes(
    question: Question, space: Space, row: int, cuts: Iterable[tuple[int, ...]]
) -> Floats:
    """[cut, rank] what each rank needs that recomputes all that it holds."""
    variant = space.variants(row)[0]
    plans = [StagePlan(tuple(Stage(n, full_layers=n) for n in cut), 0, ()) for cut in cuts]
    models = (
        StepModel(question.setting, layout_of_row(space.layouts, row, variant, plan))
        for plan in plans
    )
    return np.array([[rank.needed for rank in stage_memory(model)] for model in models])


def test_every_cost_of_a_row_is_compared() -> None:
    """A cost that is not would let a row go that is the faster one. What a collective takes follows
    from its parameters, which are in `reduce` and `refresh`; what is `OF_SETTING` is the same for
    all.
    """
    passes = {field.name for field in fields(PassSeconds)}
    follow = {"dense", "expert", "eight_bit", "eight_bit_expert", *OF_SETTING}
    assert passes - follow == {*LONGER, *ENDS, *HIDING, "reduce", "refresh"}
    assert {field.name for field in fields(LateTraffic)} - {"measured", "least_s"} == {*LATE}
    kib = {field.name for field in fields(Coefficients) if field.name.endswith("_kib")}
    assert kib - {"cap_kib"} == {*LARGER}


def _pairs(proof: Simulated, draw: random.Random) -> Iterator[Ints]:
    """Two rows each, mostly of as many ranks and micro-batches."""
    layouts = proof.space.layouts
    key = layouts.pipeline_parallel.astype(np.int64) * 1000 + layouts.num_micro_batches
    for row in draw.sample(range(len(key)), min(40, len(key))):
        yield np.array([row, draw.choice(np.setdiff1d(np.flatnonzero(key == key[row]), row))])


def _compared(proof: Simulated, row: int, beaten_row: int, draw: random.Random) -> int:
    variant, compared = draw.choice(proof.space.variants(beaten_row)), 0
    assert variant in proof.space.variants(row)
    one, other = (stage_problem(proof.space, proof.prices, r, variant) for r in (row, beaten_row))
    plans = [plan for plan, _ in zip(every_plan(other), range(400), strict=False)]
    for stages in draw.sample(plans, min(5, len(plans))):
        if (fits := evaluate(other, stages)) is None:
            continue
        better = evaluate(one, stages)
        assert better is not None
        assert all(a <= b for a, b in zip(better.peak_kib, fits.peak_kib, strict=True))
        own_s = _step_s(proof, beaten_row, variant, stages)
        assert _step_s(proof, row, variant, stages) <= own_s * CLOSE
        compared += 1
    return compared


def _step_s(proof: Simulated, row: int, variant: Variant, stages: tuple[Stage, ...]) -> float:
    layout = proof.layout_of(int(proof.kept[row]), variant, StagePlan(stages, 0, ()))
    return CutTimes(proof.setting, layout, proof.passes, row, variant.columns).step_s(stages)
