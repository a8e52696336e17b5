"""What a run costs, what failures take of it, and which sizes stand out."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from meshplan.planner.answer.sizes import BadQuestion, parse_length
from meshplan.planner.sweep.economics import (
    Failures,
    RunCost,
    Terms,
    cheapest,
    front,
    knee,
    run_cost,
)
from meshplan.planner.sweep.ranges import count, numbers, run_tokens, words

HOUR = 3600.0


@pytest.mark.parametrize(
    ("mtbf_hours", "published_min"),
    [
        pytest.param(24.0, 117, id="M 24 h, d 5 min: 117 min"),
        pytest.param(6.0, 57, id="M 6 h, d 5 min: 57 min"),
        pytest.param(0.25, 9.1, id="M 15 min, d 5 min: 9.1 min"),
    ],
)
def test_checkpoint_interval_as_published(mtbf_hours: float, published_min: float) -> None:
    """The interval is the one of figures 3, 4 and 5 of Daly 2006, in the digits printed there."""
    failures = Failures(gpu_mtbf_s=mtbf_hours * HOUR, checkpoint_s=300.0)
    digits = 1 if published_min < 10 else 0
    assert round(failures.interval_s(1) / 60, digits) == published_min


@pytest.mark.parametrize(
    ("gpus", "expected_s"),
    [
        pytest.param(1, 199.333889, id="200 (1 + 0.005 / 3 + 0.000025 / 9) - 1, with M 20,000 s"),
        pytest.param(40_000, 0.5, id="M 0.5 s below d / 2: M itself"),
    ],
)
def test_checkpoint_interval_by_hand(gpus: int, expected_s: float) -> None:
    """A job of n GPUs fails n times as often as one of them."""
    failures = Failures(gpu_mtbf_s=20_000.0, checkpoint_s=1.0)
    assert failures.interval_s(gpus) == pytest.approx(expected_s, rel=1e-8)


def simulated_goodput(mtbf_s: float, work_s: float, d: float, restart_s: float) -> float:
    """The same by playing 40,000 checkpoints, with failures in restarts too."""
    draw, elapsed_s, segments = random.Random(5), 0.0, 40_000
    for _ in range(segments):
        while (until_s := draw.expovariate(1 / mtbf_s)) < work_s + d:
            elapsed_s += until_s
            while (until_s := draw.expovariate(1 / mtbf_s)) < restart_s:
                elapsed_s += until_s
            elapsed_s += restart_s
        elapsed_s += work_s + d
    return segments * work_s / elapsed_s


@pytest.mark.parametrize("gpus", [64, 1024, 8192])
def test_goodput_of_a_played_run(gpus: int) -> None:
    """The closed form is what a run with failures drawn at random gives, to half a percent."""
    failures = Failures(gpu_mtbf_s=50_000 * HOUR, checkpoint_s=120.0, restart_s=600.0)
    played = simulated_goodput(failures.job_mtbf_s(gpus), failures.interval_s(gpus), 120.0, 600.0)
    assert failures.goodput(gpus) == pytest.approx(played, rel=0.005)


@given(st.floats(1e3, 1e8), st.floats(0.1, 1e3), st.floats(0, 1e4), st.integers(1, 50_000))
def test_no_interval_is_much_better(mtbf_s: float, d: float, restart_s: float, gpus: int) -> None:
    """Where checkpoints are short against failures, no interval gains 0.1 % on the one taken."""
    failures = Failures(gpu_mtbf_s=mtbf_s, checkpoint_s=d, restart_s=restart_s)
    job_s = failures.job_mtbf_s(gpus)
    if d > job_s / 2 or restart_s > 10 * job_s:
        return

    def lost(log_tau: float) -> float:
        tau = math.exp(log_tau)
        return math.exp(restart_s / job_s) * math.expm1((tau + d) / job_s) * job_s / tau

    best = minimize_scalar(lost, bounds=(math.log(d / 10), math.log(20 * job_s)), method="bounded")
    assert failures.goodput(gpus) >= 0.999 / best.fun


@given(st.floats(1e-3, 1e9), st.floats(1e-3, 1e9), st.floats(0, 1e9), st.integers(1, 10**6))
def test_goodput_is_a_share_and_falls_with_size(
    mtbf_s: float, d: float, restart_s: float, gpus: int
) -> None:
    """Whatever the figures: between 0 and 1, and no more on twice the GPUs."""
    failures = Failures(gpu_mtbf_s=mtbf_s, checkpoint_s=d, restart_s=restart_s)
    once, twice = failures.goodput(gpus), failures.goodput(2 * gpus)
    assert 0 <= twice <= once * (1 + 1e-3) <= 1.001


def test_a_run_by_hand() -> None:
    """1e9 tokens in steps of 1e6 are 1,000 steps; of 8.64 s on 10 GPUs 0.1 days, 24 GPU-hours."""
    cost = run_cost(10, 8.64, 10**6, Terms(tokens=1e9), price=2.5)
    assert cost.days == pytest.approx(0.1)
    assert cost.gpu_hours == pytest.approx(24.0)
    assert cost.cost == pytest.approx(60.0)
    assert cost.tokens_per_s == pytest.approx(1e6 / 8.64)
    assert cost.gpu_s_per_token == pytest.approx(86.4e-6)
    assert cost.cost_per_trillion_tokens == pytest.approx(24e3 * 2.5)  # a thousand such runs


def test_a_last_step_is_a_whole_step() -> None:
    """1,000,001 tokens take two steps of a million."""
    assert run_cost(1, 43_200.0, 10**6, Terms(tokens=1_000_001.0)).days == pytest.approx(1.0)


def test_failures_lengthen_a_run_by_their_goodput() -> None:
    """Days, GPU-hours and money grow by 1 / goodput; tokens/s falls by it."""
    failures = Failures(gpu_mtbf_s=1000 * HOUR, checkpoint_s=60.0, restart_s=300.0)
    plain = run_cost(100, 1.0, 1000, Terms(tokens=1e9), price=1.0)
    failing = run_cost(100, 1.0, 1000, Terms(tokens=1e9, failures=failures), price=1.0)
    share = failures.goodput(100)
    assert 0.8 < share < 0.97
    assert failing.cost == pytest.approx((plain.cost or 0) / share)
    assert failing.tokens_per_s == pytest.approx(plain.tokens_per_s * share)


def test_a_run_without_end_has_no_figures() -> None:
    """Where every restart fails, days and cost are not known, and no size stands out."""
    failures = Failures(gpu_mtbf_s=1.0, checkpoint_s=1e3, restart_s=1e5)
    cost = run_cost(1000, 1.0, 1000, Terms(tokens=1e9, failures=failures), price=1.0)
    assert cost.goodput == 0.0
    assert cost.days is None
    assert cost.cost is None
    assert cheapest([cost]) is knee([cost]) is None
    assert front([cost]) == ()


def sized(gpus: int, tokens_per_s: float, price: float | None = None) -> RunCost:
    """A size with its throughput."""
    return RunCost(
        gpus=gpus, tokens_per_s=tokens_per_s, gpu_s_per_token=gpus / tokens_per_s,
        price_per_gpu_hour=price,
    )  # fmt: skip


def test_what_stands_out_by_hand() -> None:
    """GPU-seconds a token: 1/10, 1/10.5, 1/10, 1/7.5, 1/4: cheapest 16; over tokens/s: knee 64."""
    series = [sized(8, 80), sized(16, 168), sized(32, 320), sized(64, 480), sized(128, 512)]
    best, bend = cheapest(series), knee(series)
    assert best is not None
    assert bend is not None
    assert best.gpus == 16
    assert bend.gpus == 64  # 64 / 480^2 = 2.78e-4; 32: 3.13e-4, 128: 4.88e-4
    assert [series[i].gpus for i in front(series)] == [128, 64, 32, 16]


def test_money_decides_between_clusters() -> None:
    """Twice as fast at three times the price is on the front, as slow and dearer is not."""
    series = [sized(8, 80, 1.0), sized(8, 160, 3.0), sized(8, 80, 3.0)]
    assert front(series) == (1, 0)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1, 1e9), st.floats(0.1, 9)), max_size=30))
def test_the_front_is_what_nothing_beats(drawn: list[tuple[int, float, float]]) -> None:
    """By comparing all pairs: none of the front is beaten, all others are by one of it."""
    series = [sized(*each) for each in drawn]
    paid = [s.gpu_s_per_token * (s.price_per_gpu_hour or 0) for s in series]
    kept = set(front(series))

    def beaten(i: int, by: int) -> bool:
        faster, cheaper = series[by].tokens_per_s >= series[i].tokens_per_s, paid[by] <= paid[i]
        alike = (series[by].tokens_per_s, paid[by]) == (series[i].tokens_per_s, paid[i])
        return faster and cheaper and not alike

    for i in range(len(series)):
        if i in kept:
            assert not any(beaten(i, by) for by in range(len(series)))
        else:
            same = [k for k in kept if series[k].tokens_per_s == series[i].tokens_per_s]
            assert same or any(beaten(i, by) for by in kept)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("8", (8,), id="one"),
        pytest.param("64,8,16,8", (8, 16, 64), id="a list, ascending, each once"),
        pytest.param("8..64", (8, 16, 32, 64), id="a range doubles"),
        pytest.param("8..100", (8, 16, 32, 64), id="as far as its end"),
        pytest.param("8..32+8", (8, 16, 24, 32), id="or goes by a step"),
        pytest.param("1, 8..16", (1, 8, 16), id="mixed"),
    ],
)
def test_ranges(text: str, expected: tuple[int, ...]) -> None:
    """A range doubles unless it says its step."""
    assert numbers("--gpus", text, count("--gpus")) == expected


def test_lengths_take_suffixes() -> None:
    """The ends of a range are read as the option reads one value."""
    assert numbers("--seq-len", "4k..16k", parse_length) == (4096, 8192, 16384)


@pytest.mark.parametrize(
    "text", ["", ",", "8..", "..8", "64..8", "0", "-8", "8..64+0", "x", "1..99999+1", "8...64", "٣"]
)
def test_bad_ranges_are_one_line(text: str) -> None:
    """What is no range is refused with its own text."""
    with pytest.raises(BadQuestion) as refused:
        numbers("--gpus", text, count("--gpus"))
    assert "--gpus" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tokens"), [("15T", 15e12), ("300B", 300e9), ("1.4t", 1.4e12), ("2e12", 2e12)]
)
def test_tokens_of_a_run(text: str, tokens: float) -> None:
    """A run's tokens are counted in powers of 1000."""
    assert run_tokens(text) == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["", "T", "0", "15X", "nan", "inf", "-1T", "1e99", "0.0001"])
def test_bad_tokens(text: str) -> None:
    """What is not a number of tokens is refused."""
    with pytest.raises(BadQuestion, match="--tokens"):
        run_tokens(text)


def test_words_keep_their_order() -> None:
    """Names come in the order given, each once."""
    assert words("--model", "b, a,b") == ("b", "a")
