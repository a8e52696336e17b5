"""What two runs may move, and what a log itself says of the network: laws."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from random_plans import plan_of
from two_layouts import APART, LAYOUTS, PLANS, TRAINING, model_of, timed

from meshplan.costmodels.layout import even_stages
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.learn import shrink
from meshplan.planner.learn.likelihood import Seen
from meshplan.planner.learn.reasons import SOCKETS, reasons, slower_s
from meshplan.planner.learn.shrink import (
    predicted_s,
    read_shrinkage,
    shipped,
    shrunk,
    telling,
    tuning_at,
)
from meshplan.planner.logs.steady import Steady

STEADY = Steady(
    step_time_s=1.0, entries=20, warm_up=3, attempts=1, pauses=0, pause_share=0.0,
    pause_every=None, spread=0.0, jitter=0.0, drift=0.0,
)  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize("factors", [(0.4, 2.5), (1.5, 0.7), (5.0, 4.0), (0.6, 0.6)])
@pytest.mark.parametrize("kind", ["stranger", "known"])
@pytest.mark.parametrize("plans", [PLANS, APART], ids=["8 GPUs", "64 GPUs"])
def test_what_is_learnt_is_never_less_likely_than_the_prior(
    plans: Sequence[Plan], kind: str, factors: tuple[float, float]
) -> None:
    """Runs that contradict each other, or are far off: the density of constants and runs together,
    (1 + e^2 / (nu sigma^2))^(-(nu + 1) / 2) exp(-u S^-1 u / 2), is at least that at u = 0.
    """
    prior, by = load_fit("generic", "h100-sxm").tuning, read_shrinkage(kind)
    predicted = [predicted_s(run, prior) for run in timed(plans, [1.0, 1.0])]
    runs = timed(plans, [f * step_s for f, step_s in zip(factors, predicted, strict=True)])
    free = telling(runs, prior)
    names = [each.name for each in free]
    covariance = by.covariance(names)

    def density(u: np.ndarray) -> float:
        at = tuning_at(prior, free, np.log([getattr(prior, name) for name in names]) + u)
        found = -float(u @ np.linalg.inv(covariance) @ u) / 2
        for run in runs:
            assert run.measured.step_time_s is not None
            odd = math.log(run.measured.step_time_s / predicted_s(run, at)) / by.noise
            found -= (by.freedom + 1) / 2 * math.log(1 + odd**2 / by.freedom)
        return found

    learnt = shrunk(runs, prior, by).tuning
    moved = np.array([math.log(getattr(learnt, name) / getattr(prior, name)) for name in names])
    assert density(moved) >= density(np.zeros(len(names)))


def test_constants_that_are_no_likelier_are_not_taken() -> None:
    """Of no runs the prior's are likeliest: a move that ends where it begins gains nothing."""
    prior, by = load_fit("generic", "h100-sxm").tuning, read_shrinkage("known")
    free, nothing = telling([], prior), np.zeros(0)
    names = [each.name for each in free]
    x = np.log([getattr(prior, name) for name in names])
    runs = shrink._Priced((), prior, free)
    at = shrink.Posterior(runs, x, by.covariance(names), by, nothing)
    assert at.nearer(x, nothing, x) is None


def test_the_doubt_that_one_run_leaves_by_hand() -> None:
    """Of ln(c) known to 2 beforehand, and to 1 by a run that goes with c: 1 / (1 / 4 + 1 / 1)."""
    by = read_shrinkage("known").model_copy(update={"noise": 1.0, "freedom": 1e9})
    _, doubt = shrink.most_likely(np.zeros(1), np.ones((1, 1)), np.array([[4.0]]), by)
    assert doubt == pytest.approx([math.sqrt(0.8)])


LONG = tuple(
    plan_of("llama-3.1-8b", LAYOUTS[0], replace(TRAINING, seq_len=length, global_batch_size=8))
    for length in (16384, 65536, 131072)
)
"""Steps of which attention is a tenth to more than half."""


def test_a_strangers_attention_may_take_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds that fits of known engines have: of two lengths a third is predicted."""
    prior, by = load_fit("generic", "h100-sxm").tuning, read_shrinkage("stranger")
    truth = prior.model_copy(update={"attention_scale": prior.attention_scale / 3})
    runs = timed(LONG, [predicted_s(run, truth) for run in timed(LONG, [1.0] * 3)])
    assert predicted_s(runs[2], prior) > 1.5 * predicted_s(runs[2], truth)
    learnt = shrunk(runs[:2], prior, by).tuning
    assert predicted_s(runs[2], learnt) == pytest.approx(predicted_s(runs[2], truth), rel=0.06)
    monkeypatch.setattr(shrink, "FARTHEST", 1.0)
    assert math.log(prior.attention_scale / shrunk(runs[:2], prior, by).tuning.attention_scale) == (
        pytest.approx(by.scale_deviation, abs=2e-3)
    )


@pytest.mark.parametrize(("vendor", "on"), [("nvidia", "GPUs"), ("cpu", "cores")])
def test_slow_kernels_are_of_the_devices_at_hand(vendor: str, on: str) -> None:
    """Kernels 1.3 times as slow, on GPUs and on the cores of a host that has no nvidia-smi."""
    model = model_of(plan_of("llama-3.1-8b", LAYOUTS[0], TRAINING))
    cluster = model.setting.cluster
    gpu = cluster.gpu.model_copy(update={"vendor": vendor})
    setting = replace(model.setting, cluster=cluster.model_copy(update={"gpu": gpu}))
    model = StepModel(setting, model.layout)
    seen = Seen(step_time_s=1.3 * model.time().step_time_s, step_deviation=0.1)
    named = next(each for each in reasons(model, seen, STEADY) if "kernels take" in each.name)
    assert named.name.endswith(f"x as long on the {on}")
    assert ("nvidia-smi" in named.try_this) == (on == "GPUs")


def test_sockets_that_the_log_names_are_a_hypothesis() -> None:
    """Two nodes whose network has a fortieth of its rate: found, by 40, where NCCL says sockets."""
    layout = replace(LAYOUTS[0], data_parallel=16, stages=even_stages(32, 1))
    plan = plan_of("llama-3.1-8b", layout, replace(TRAINING, global_batch_size=256))
    model = model_of(plan)
    slow_s = slower_s(model, SOCKETS, 40.0)
    assert slow_s > 1.2 * model.time().step_time_s
    seen = Seen(step_time_s=slow_s, step_deviation=0.1)
    assert not any("sockets" in each.name for each in reasons(model, seen, STEADY))
    found = reasons(model, replace(seen, over_sockets=True), STEADY)
    named = next(each for each in found if "sockets" in each.name)
    assert "1/40 of the network's bandwidth" in named.name
    assert named.step_time_s == pytest.approx(slow_s, rel=1e-3)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        pytest.param("generic", "stranger", id="nothing is known"),
        pytest.param("torchtitan", "known", id="habits alone"),
        pytest.param("megatron", "known", id="habits and constants"),
    ],
)
def test_who_may_be_far_off(engine: str, kind: Literal["stranger", "known"]) -> None:
    """Stated habits say as much of how far off constants are as constants of one's own."""
    assert shipped(engine, "h100-sxm") == read_shrinkage(kind)
