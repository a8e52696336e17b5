"""What a whole run costs in days, GPU-hours and money, with what failures take of it.

    T      = ceil(tokens / tokens of a step) x step        seconds that nothing interrupts
    wall   = T / goodput
    M      = mean time between failures of one GPU / GPUs  of the job: any of them ends it
    tau    = sqrt(2 d M) (1 + sqrt(x) / 3 + x / 9) - d     seconds of work between checkpoints,
             where x = d / 2M < 1; else M
    goodput = tau / M x exp(-R / M) / (exp((tau + d) / M) - 1)

    d      seconds that one checkpoint stops the job       R  seconds from a failure to work again

Failures are independent and come at one rate (Poisson). sqrt(2 d M) is the interval of Young, "A
first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; tau and the total
time that goodput inverts are Daly's, "A higher order estimate of the optimum checkpoint interval
for restart dumps", Future Generation Computer Systems 22(3), 2006. Left out: failures that take
several nodes or follow each other, stragglers, checkpoints written beside the work.

cheapest   the GPUs of a series whose run costs least
knee       the GPUs of a series with the least time x cost: where efficiency over time is largest,
           the knee of Eager, Zahorjan and Lazowska, "Speedup versus efficiency in parallel
           systems", IEEE Transactions on Computers 38(3), 1989
front      the cells of one job that no other one beats in time and in cost
"""

import math
from collections.abc import Sequence

from meshplan.costmodels.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, TRILLION
from meshplan.hardware_profiles.dataclass import dataclass

LEAST_GOODPUT = 1e-9
"""Below it a day of work takes more than two million years: the run has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a GPU ends a job, and what that costs; restart_s None: not counted."""

    gpu_mtbf_s: float
    checkpoint_s: float
    restart_s: float | None = None

    def job_mtbf_s(self, gpus: int) -> float:
        """Mean seconds between failures of a job."""
        return self.gpu_mtbf_s / gpus

    def interval_s(self, gpus: int) -> float:
        """Seconds of work between two checkpoints that end a run soonest (Daly 2006)."""
        mtbf_s, d = self.job_mtbf_s(gpus), self.checkpoint_s
        x = d / (2 * mtbf_s)
        if x >= 1:
            return mtbf_s
        return math.sqrt(2 * d * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - d

    def goodput(self, gpus: int) -> float:
        """Share of the wall time that the finished run's steps take; 0 where it never ends."""
        mtbf_s, tau_s = self.job_mtbf_s(gpus), self.interval_s(gpus)
        risk = (tau_s + self.checkpoint_s) / mtbf_s
        lost = risk + (self.restart_s or 0.0) / mtbf_s
        share = tau_s / mtbf_s * math.exp(-lost) / -math.expm1(-risk)
        return share if share >= LEAST_GOODPUT else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the whole run is to be; None where nothing was said."""

    tokens: float | None = None
    failures: Failures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What training costs at one size; None where it was not asked for or has no end.

    gpus                of the size
    tokens_per_s        of the whole job, failures counted where they were given
    gpu_s_per_token     the same per GPU, inverted: what is paid for
    goodput             fraction of the time that is not lost to failures; None where they were not
                        given
    days                of the whole run, where its tokens are given
    gpu_hours           of the whole run
    price_per_gpu_hour  as given, or that of the cluster's GPUs
    cost                in the currency of the price
    """

    gpus: int
    tokens_per_s: float
    gpu_s_per_token: float
    goodput: float | None = None
    days: float | None = None
    gpu_hours: float | None = None
    price_per_gpu_hour: float | None = None
    cost: float | None = None

    @property
    def gpu_hours_per_trillion_tokens(self) -> float:
        """What does not depend on how long the run is."""
        return self.gpu_s_per_token * TRILLION / SECONDS_PER_HOUR

    @property
    def cost_per_trillion_tokens(self) -> float | None:
        """The same in money, None without a price."""
        price = self.price_per_gpu_hour
        return None if price is None else self.gpu_hours_per_trillion_tokens * price


def run_cost(
    gpus: int, step_time_s: float, step_tokens: int, terms: Terms, price: float | None = None
) -> RunCost:
    """The cost of a run of such steps on `gpus`; `price` per GPU-hour."""
    goodput = terms.failures.goodput(gpus) if terms.failures else None
    tokens_per_s = step_tokens / step_time_s * (1.0 if goodput is None else goodput)
    days = gpu_hours = cost = None
    if terms.tokens is not None and goodput != 0:
        steps = math.ceil(terms.tokens / step_tokens)
        wall_s = steps * step_time_s / (1.0 if goodput is None else goodput)
        days, gpu_hours = wall_s / SECONDS_PER_DAY, wall_s / SECONDS_PER_HOUR * gpus
        cost = None if price is None else gpu_hours * price
    return RunCost(
        gpus=gpus,
        tokens_per_s=tokens_per_s,
        gpu_s_per_token=gpus / tokens_per_s if tokens_per_s else math.inf,
        goodput=goodput,
        days=days,
        gpu_hours=gpu_hours,
        price_per_gpu_hour=price,
        cost=cost,
    )


def cheapest(series: Sequence[RunCost]) -> RunCost | None:
    """The size that pays least for a token, the faster of two alike; None if none ever ends."""
    ending = [each for each in series if each.tokens_per_s > 0]
    return min(ending, key=lambda c: (c.gpu_s_per_token, -c.tokens_per_s), default=None)


def knee(series: Sequence[RunCost]) -> RunCost | None:
    """The size with the least time x cost, the smaller of two alike; None if none ever ends."""
    ending = [each for each in series if each.tokens_per_s > 0]
    return min(ending, key=lambda c: (c.gpu_s_per_token / c.tokens_per_s, c.gpus), default=None)


def in_money(costs: Sequence[RunCost]) -> bool:
    """Whether all of them have a price, so that they compare in money and not in GPU-hours."""
    return bool(costs) and all(each.price_per_gpu_hour is not None for each in costs)


def front(costs: Sequence[RunCost]) -> tuple[int, ...]:
    """Indices of those that no other one beats in time and cost, the fastest first."""
    priced = in_money(costs)

    def paid(each: RunCost) -> float:
        rate = each.price_per_gpu_hour if priced else 1.0
        return each.gpu_s_per_token * (1.0 if rate is None else rate)

    kept: list[int] = []
    least = math.inf
    ending = [i for i, each in enumerate(costs) if each.tokens_per_s > 0]
    for i in sorted(ending, key=lambda i: (-costs[i].tokens_per_s, paid(costs[i]))):
        if paid(costs[i]) < least:
            kept.append(i)
            least = paid(costs[i])
    return tuple(kept)
