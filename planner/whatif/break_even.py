"""What the network between nodes must give so that a size beats a smaller one.

    f*   the factor of the network's bandwidth at which the best step of `gpus` is as long as that
         of `than`, both on the same network; bisected in log f until its ends differ by 1 %

A size within one node does not see the network. Steps are of the same batch: "beats" is a shorter
step, not a cheaper token. More bandwidth shortens both steps, so the two lines may cross more than
once: one crossing is told, and nothing is known of networks that were not asked.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.question import Asked, BadQuestion
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.whatif.figures import FIGURES

WIDEST = 64.0
"""How many times more or less bandwidth is tried."""
NEAR = 1.01


class BestStep(NamedTuple):
    """The step of the best plan found, infinite where nothing fits, and by what fraction of it a
    shorter one is still open: 0 where the plan, or that nothing fits, is proved, infinite where
    something may fit all the same.
    """

    step_time_s: float
    gap: float = 0.0


Step = Callable[[Question], BestStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both steps at one factor of the bandwidth, and the larger of their gaps."""

    factor: float
    step_time_s: float
    than_step_time_s: float
    gap: float

    @property
    def beats(self) -> bool:
        """Whether the larger size has the shorter step."""
        return self.step_time_s < self.than_step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The two sizes today, and the ends between which they swap.

    below, above  None where no factor from 1/64 to 64 swaps them; bandwidths are of all cards of a
                  node and of one GPU, as nccl-tests would print them (busbw)
    """

    gpus: int
    than: int
    now: Point
    below: Point | None
    above: Point | None
    node_bytes_per_s: float
    gpu_bytes_per_s: float
    notes: tuple[str, ...] = ()


def next_smaller(question: Question) -> int:
    """One node less; raises `BadQuestion` where there is no smaller size of whole nodes."""
    per_node = question.cluster.gpus_per_node
    nodes = math.ceil(question.gpus / per_node)
    if nodes < 2:
        raise BadQuestion(
            f"{question.gpus} GPUs are one node, which has no network: --gpus {2 * per_node} asks "
            "of two"
        )
    return (nodes - 1) * per_node


def break_even(asked: Asked, than: int, step: Step) -> BreakEven:
    """Where `than` GPUs and the question's own swap, by the bandwidth of the network."""
    at = _points(asked.question, than, step)
    now = at(1.0)
    ends = _ends(now, at)
    link = asked.question.cluster.network.bus_bandwidth
    below, above = ends or (None, None)
    return BreakEven(
        gpus=asked.question.gpus,
        than=than,
        now=now,
        below=below,
        above=above,
        node_bytes_per_s=link.all_gather,
        gpu_bytes_per_s=link.send,
        notes=asked.notes,
    )


def _points(question: Question, than: int, step: Step) -> Callable[[float], Point]:
    smaller = replace(question, gpus=than)
    fixed = step(smaller) if than <= question.cluster.gpus_per_node else None

    def at(factor: float) -> Point:
        cluster = FIGURES["network"].scaled(question.cluster, factor)
        other = step(replace(smaller, cluster=cluster)) if fixed is None else fixed
        own = step(replace(question, cluster=cluster))
        return Point(
            factor=factor,
            step_time_s=own.step_time_s,
            than_step_time_s=other.step_time_s,
            gap=max(own.gap, other.gap),
        )

    return at


def _ends(now: Point, at: Callable[[float], Point]) -> tuple[Point, Point] | None:
    """A slower and a faster network with the swap between them, None if none was found."""
    ratio = 0.5 if now.beats else 2.0
    near, far = now, at(ratio)
    while far.beats == now.beats:
        if not 1 / WIDEST < far.factor < WIDEST:
            return None
        near, far = far, at(far.factor * ratio)
    low, high = sorted((near, far), key=lambda point: point.factor)
    while high.factor / low.factor > NEAR:
        middle = at(math.sqrt(low.factor * high.factor))
        low, high = (low, middle) if middle.beats == high.beats else (middle, high)
    return low, high
