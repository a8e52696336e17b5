"""Trade-offs: the fastest layout for each memory, and for each number of GPUs.

A point stands on a front when no other one is at least as good in every respect and better in one.
Each point is a whole search, so each is optimal under the model for its own limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.step.prices import Prices
from meshplan.planner.search.priced_space import Pricer, Question, closed_form
from meshplan.planner.search.search import NoLayoutFits, Solution, search


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One answer: GPUs, its best layout, and GPU seconds per token."""

    gpus: int
    solution: Solution
    gpu_s_per_token: float

    @property
    def peak_bytes(self) -> float:
        """Reserved memory of the fullest GPU."""
        return max(self.solution.peak_bytes)


def time_memory_front(
    question: Question, points: int, price: Pricer = closed_form
) -> tuple[FrontPoint, ...]:
    """Up to `points` layouts from the fastest to the one that needs least memory per GPU."""
    found: list[FrontPoint] = []
    limit = float("inf")
    while len(found) < points:
        try:
            result = search(question, price=_capped(price, limit))
        except NoLayoutFits:
            break
        point = _point(question, result.solutions[0])
        found.append(point)
        limit = point.peak_bytes * 0.98  # a step of 2 %: smaller ones differ by rounding
    return tuple(found)


def gpus_front(
    question: Question, sizes: Iterable[int], price: Pricer = closed_form
) -> tuple[FrontPoint, ...]:
    """The best layout of each size that pays: faster than every smaller or equally cheap one."""
    found: list[FrontPoint] = []
    for gpus in sorted(set(sizes)):
        asked = replace(question, gpus=gpus)
        try:
            found.append(_point(asked, search(asked, price=price).solutions[0]))
        except NoLayoutFits:
            continue
    return tuple(point for point in found if not any(_beats(other, point) for other in found))


def _beats(a: FrontPoint, b: FrontPoint) -> bool:
    """Whether `a` is nowhere worse than `b` in GPUs, step time and cost, and somewhere better."""
    first = (a.gpus, a.solution.step_time_s, a.gpu_s_per_token)
    second = (b.gpus, b.solution.step_time_s, b.gpu_s_per_token)
    return first != second and all(x <= y for x, y in zip(first, second, strict=True))


def _point(question: Question, solution: Solution) -> FrontPoint:
    tokens = question.training.global_batch_tokens
    return FrontPoint(question.gpus, solution, question.gpus * solution.step_time_s / tokens)


def _capped(price: Pricer, limit_bytes: float) -> Pricer:
    def capped(layouts: Layouts, question: Question) -> Prices:
        prices = price(layouts, question)
        return replace(prices, capacity_bytes=min(prices.capacity_bytes, limit_bytes))

    return capped
