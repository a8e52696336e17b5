"""Learning from a few runs, and saying why one is slow: laws and worked cases."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from random_plans import plan_of
from two_layouts import LAYOUTS, PLANS, TRAINING, model_of

from meshplan.costmodels.layout import even_stages
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import stage_memory
from meshplan.planner.check.check import case_of
from meshplan.planner.learn.learn import factor_of
from meshplan.planner.learn.levers import levers
from meshplan.planner.learn.likelihood import Seen, likeliest
from meshplan.planner.learn.reasons import explained, needed, reasons, switches
from meshplan.planner.learn.shrink import Shrinkage, most_likely, predicted_s, shipped, shrunk
from meshplan.planner.learn.teach import NOISE, doubt_of, left_by, most_telling
from meshplan.planner.runs.memory import recomputing
from meshplan.planner.runs.rows import Measured
from meshplan.planner.runs.runs import Run

ONE = {
    "matmul_deviation": 0.1, "scale_deviation": 0.1,
    "communication_deviation": 0.1,
    "host_deviation": 0.1, "noise": 0.1, "freedom": 1e9, "distance": 0.0, "widths": {1: 2.0},
    "apart": {}, "date": "", "rows": 0, "sources": 0, "command": "",
}  # fmt: skip


def run_at(plan: Plan, seconds: float) -> Run:
    """A run of the plan that took so long."""
    case = case_of(plan)
    return Run(
        id="x", suite="own", grade="A", model=case.model, training=case.training,
        layout=case.layout, cluster=case.cluster, engine=case.engine, assumed=(),
        measured=Measured(
            step_time_s=seconds, allocated_gib=None, reserved_gib=None, rank_0=False, oom=False
        ),
    )  # fmt: skip


def test_one_run_of_equal_doubt_moves_a_constant_half_of_the_way() -> None:
    """s = sigma = 0.1, J = 1: u = e s^2 / (s^2 + sigma^2) = 0.2 / 2, doubt 0.1 / sqrt(2)."""
    by = Shrinkage.model_validate(ONE)
    move, doubt = most_likely(np.array([0.2]), np.array([[1.0]]), np.array([[0.01]]), by)
    assert move == pytest.approx([0.1], rel=1e-6)
    assert doubt == pytest.approx([0.1 / math.sqrt(2)], rel=1e-6)


def test_the_range_is_wider_where_the_prior_was_farther_off() -> None:
    """w = 2, sigma = 0.1: at the prior exp(0.2); D = 0.2 and runs 0.5 off: exp(2 sqrt(0.02))."""
    by = Shrinkage.model_validate({**ONE, "distance": 0.2})
    assert by.factor(np.zeros(2)) == pytest.approx(math.exp(0.2))
    assert by.factor(np.array([0.5, -0.5])) == pytest.approx(math.exp(2 * math.sqrt(0.02)))


def test_eight_runs_of_ones_own_say_as_much_of_the_range_as_other_sources() -> None:
    """ln 1.5 by others; eight runs of which 80 % are within ln 1.1: half of the way between them;
    fewer than three are not left out, and say nothing.
    """
    own = [math.log(1.02)] * 4 + [math.log(1.1)] * 3 + [math.log(2.0)]
    assert factor_of(own, 1.5) == pytest.approx(math.sqrt(1.1 * 1.5), rel=1e-3)
    assert factor_of([], 1.5) == 1.5


def test_a_run_that_contradicts_the_others_counts_little() -> None:
    """Of errors 0.1, 0.1, 0.1 and 3 a heavy-tailed noise keeps the mean near 0.1."""
    errors, slopes = np.array([0.1, 0.1, 0.1, 3.0]), np.ones((4, 1))
    light = Shrinkage.model_validate({**ONE, "scale_deviation": 1.0, "noise": 0.05})
    heavy = light.model_copy(update={"freedom": 1.0})
    covariance = np.array([[1.0]])
    assert most_likely(errors, slopes, covariance, light)[0][0] > 0.7
    assert most_likely(errors, slopes, covariance, heavy)[0][0] == pytest.approx(0.1, abs=0.02)


def test_the_two_runs_to_ask_for_leave_least_doubt() -> None:
    """Layouts 0 and 1 are one, so are 2 and 3, and 4 is half of each: one run of each pair leaves
    next to nothing, and of two alike the first is taken.
    """
    of_each = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    doubt = of_each @ of_each.T
    assert most_telling(doubt) == [0, 2]
    assert left_by((0, 2), doubt) == pytest.approx([NOISE, NOISE, NOISE, NOISE, 0.035], rel=0.02)
    assert left_by((0, 1), doubt)[2:] == pytest.approx([1.0, 1.0, 0.5], rel=0.01)


@pytest.mark.parametrize("scale", [0.03, 1.0])
def test_no_two_runs_leave_less_doubt_than_those_asked_for(scale: float) -> None:
    """Of all pairs, also where doubt is no larger than a run's noise; never one layout twice."""
    for seed in range(20):
        some = np.random.default_rng(seed).normal(size=(6, 3)) * scale
        doubt = some @ some.T
        least = min(float(left_by(two, doubt).sum()) for two in combinations(range(6), 2))
        assert left_by(most_telling(doubt), doubt).sum() == pytest.approx(least)
    assert most_telling(np.diag([scale, 0.0, 0.0])) == [0, 1]


def test_a_third_run_is_the_one_that_leaves_least_of_what_two_leave() -> None:
    """Of five layouts that share nothing the most doubtful come first, and none comes twice; of one
    alone the one that says most of all.
    """
    doubt = np.diag([1.0, 4.0, 9.0, 16.0, 0.25])
    assert most_telling(doubt, 4) == [2, 3, 1, 0]
    assert most_telling(doubt, 1) == [3]
    assert most_telling(np.diag([1.0, 0.0, 0.0]), 3) == [0, 1, 2]
    assert left_by([2, 3, 1], doubt)[[0, 4]] == pytest.approx([1.0, 0.5])


def other_facts(run: Run) -> dict[str, Run]:
    """`run` with one fact of another value."""
    layout, training = run.layout, run.training
    return {
        "GPUs": replace(run, layout=replace(layout, data_parallel=2 * layout.data_parallel)),
        "micro-batch": replace(run, layout=replace(layout, micro_batch_size=7)),
        "model": replace(run, model=replace(run.model, name="another")),
        "sequence": replace(run, training=replace(training, seq_len=2048)),
        "precision": replace(run, training=replace(training, precision="fp8")),
        "LoRA": replace(run, training=replace(training, lora=Lora(rank=8))),
    }


def test_each_fact_that_differs_sets_layouts_apart() -> None:
    """One fact: e^(-1/3) of 0.1^2 is shared."""
    one = run_at(PLANS[0], 1.0)
    for fact, other in other_facts(one).items():
        doubt = doubt_of([one, other], np.zeros((2, 1)), np.eye(1))
        assert doubt[0, 1] == pytest.approx(0.01 * math.exp(-1 / 3)), fact


def test_doubt_of_layouts_is_shared_as_far_as_constants_and_facts_are() -> None:
    """J = 3 and 4, s = 0.1: 0.09 and 0.16 with 0.12 shared; beside it 0.1^2 of what nothing
    explains, of which layouts that differ in three facts (tp, ZeRO, sequence) share 1 / e.
    """
    one = run_at(PLANS[0], 1.0)
    layout = replace(one.layout, data_parallel=2, tensor_parallel=4, zero_stage=0)
    other = replace(one, layout=layout, training=replace(one.training, seq_len=2048))
    doubt = doubt_of([one, other], np.array([[3.0], [4.0]]), np.array([[0.01]]))
    shared = 0.12 + 0.01 / math.e
    assert doubt == pytest.approx(np.array([[0.10, shared], [shared, 0.17]]))


def test_runs_as_predicted_teach_nothing() -> None:
    """Measured at the prediction: every constant stays."""
    prior = load_fit("generic", "h100-sxm").tuning
    runs = [run_at(plan, predicted_s(run_at(plan, 1.0), prior)) for plan in PLANS]
    assert shrunk(runs, prior, shipped("generic", "h100-sxm")).tuning == prior


def test_two_runs_a_third_slower_bring_a_third_closer() -> None:
    """Both layouts 1.33 x the prediction: what is learnt predicts them within half of the gap."""
    prior = load_fit("generic", "h100-sxm").tuning
    before = [predicted_s(run_at(plan, 1.0), prior) for plan in PLANS]
    runs = [run_at(plan, 1.33 * s) for plan, s in zip(PLANS, before, strict=True)]
    learnt = shrunk(runs, prior, shipped("generic", "h100-sxm")).tuning
    for run, seconds in zip(runs, before, strict=True):
        assert 1.17 * seconds < predicted_s(run, learnt) <= 1.34 * seconds


def test_a_gap_is_explained_in_full_in_part_or_not_at_all() -> None:
    """Of a step 2 x the expected: 2 x explains all, sqrt(2) x half, 1 x or 4 x nothing."""
    shares = [explained(2.0, 1.0, under) for under in (2.0, math.sqrt(2), 1.0, 4.0)]
    assert shares == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_the_factor_that_a_gap_asks_for() -> None:
    """1 s + f s is 3 s at f = 2; a gap beyond eight times gets eight."""
    assert needed(lambda factor: 1 + factor, 3.0) == pytest.approx((2.0, 3.0), rel=1e-4)
    assert needed(lambda factor: 1 + factor, 99.0) == (8.0, 9.0)


def test_recompute_that_the_config_does_not_name_is_found() -> None:
    """A step of the length that full recompute has is explained by it in full, before all else."""
    from meshplan.planner.logs.steady import Steady

    plan = plan_of("llama-3.1-8b", replace(LAYOUTS[0], stages=even_stages(32, 1)), TRAINING)
    model = model_of(plan)
    other = StepModel(model.setting, recomputing(model.layout)).time().step_time_s
    log = Steady(
        step_time_s=other, entries=20, warm_up=3, attempts=1, pauses=0, pause_share=0.0,
        pause_every=None, spread=0.0, jitter=0.0, drift=0.0,
    )  # fmt: skip
    seen = Seen(step_time_s=other, step_deviation=0.1)
    first = reasons(model, seen, log)[0]
    assert first.name == "every layer recomputes its activations"
    assert first.explains == pytest.approx(1.0)
    assert first.gain == pytest.approx(1 - model.time().step_time_s / other)
    assert reasons(model, replace(seen, step_time_s=0.5 * other), log) == ()


def test_what_is_not_likelier_than_all_else_is_not_told_apart() -> None:
    """0.45 beside 0.35 and 0.2, all within three times; of 0.4 and 0.1 not; 0.6 stands alone."""
    assert likeliest([0.2, 0.45, 0.35]) == [1, 2, 0]
    assert likeliest([0.4, 0.1, 0.3, 0.2]) == [0, 2, 3]
    assert likeliest([0.6, 0.3, 0.1]) == [0]
    assert likeliest([]) == []


def test_a_peak_that_recompute_would_not_leave_speaks_against_it() -> None:
    """A step as long as full recompute makes it, beside the peak of no recompute, or its own."""
    plan = plan_of("llama-3.1-8b", replace(LAYOUTS[0], stages=even_stages(32, 1)), TRAINING)
    model = model_of(plan)
    other = StepModel(model.setting, recomputing(model.layout))
    whole, little = (max(s.reserved for s in stage_memory(m)) for m in (model, other))
    seen = Seen(
        step_time_s=other.time().step_time_s, step_deviation=0.1, kind="reserved",
        memory_bytes=little, memory_deviation=0.1,
    )  # fmt: skip
    assert seen.of_memory(other) == pytest.approx(10.0)  # 1 / 0.1, nothing off
    told = seen.of_step(seen.step_time_s) * seen.of_memory(other)
    against = replace(seen, memory_bytes=whole)
    assert against.of_step(seen.step_time_s) * against.of_memory(other) < told / 5
    assert against.of_memory(model) == pytest.approx(10.0)


def test_what_could_be_any_factor_counts_less_than_what_says_its_own() -> None:
    """A step 1.5 x the expected: a hypothesis of 1.5 x is likelier than one of f x, f unknown."""
    seen = Seen(step_time_s=1.5, step_deviation=0.05)
    assert seen.of_slower(lambda factor: factor) < seen.of_step(1.5)
    assert seen.of_slower(lambda factor: factor) > seen.of_step(1.0)


def test_a_switch_never_makes_a_step_shorter() -> None:
    """What is missing costs time, or nothing."""
    model = model_of(PLANS[1])
    found = list(switches(model))
    assert len(found) >= 2
    for switch in found:
        assert switch.model.time().step_time_s >= model.time().step_time_s * (1 - 1e-9)


def test_levers_are_shorter_and_those_that_fit_come_first() -> None:
    """Full recompute of a model that fits without: leaving it out is a lever."""
    found = levers(case_of(PLANS[0]), model_of(PLANS[0]))
    assert [lever.fits for lever in found] == sorted((x.fits for x in found), reverse=True)
    assert "recompute" in " ".join(lever.name for lever in found)
    assert all(0 < lever.gain < 1 for lever in found)
