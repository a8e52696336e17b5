"""A batch that divides badly, and the neighbour that would be faster per sequence.

    ways(B)  = the divisors of the GPUs that divide B: the numbers of replicas that reach B exactly
    faster   = (step / B) / (step' / B') - 1

A neighbour is within a tenth of B and has more ways; at most one below and one above are looked at,
those with most ways, and of their layouts those whose number of replicas B does not reach: the
others divide B as well. What is searched is not proved: the best of a few simulated layouts
(`planner.answer.first_layouts`), so a neighbour is at least so much faster.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.planner.answer.first_layouts import first_layout
from meshplan.planner.case.plan_findings import BetterBatch
from meshplan.planner.search.progress import Fastest
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.axis_rules import divisors
from meshplan.planner.space.pins import Pin, Pins

WITHIN, LEAST_GAIN = 0.1, 0.05


def tries(question: Question, plan: Fastest) -> list[Callable[[], BetterBatch | None]]:
    """A function that finds the neighbour that is fastest per sequence, None where none gains
    `LEAST_GAIN`; no function where there is no neighbour.
    """
    batch = question.training.global_batch_size
    sizes = [*neighbours(batch, question.gpus)] if plan.proved else []
    return [partial(fastest, question, sizes, plan.step_s / batch)] if sizes else []


def fastest(question: Question, sizes: Iterable[int], own_s: float) -> BetterBatch | None:
    """The fastest of neighbours of these `sizes`, which have most of their prices in common."""
    known = KnownWork()
    found = filter(None, [faster(question, size, own_s, known) for size in sizes])
    return max(found, key=lambda better: better.faster_fraction, default=None)


def ways(batch: int, gpus: int) -> int:
    """How many numbers of replicas reach the batch exactly."""
    return sum(batch % replicas == 0 for replicas in divisors(gpus))


def neighbours(batch: int, gpus: int) -> Iterator[int]:
    """The batches below and above that have most ways, the nearest of several; only those with more
    than the batch itself.
    """
    near = {size for d in divisors(gpus) for size in (batch // d * d, -(-batch // d) * d)}
    near = {s for s in near if 0 < abs(s - batch) <= WITHIN * batch and s > 0}
    for side in ([s for s in near if s < batch], [s for s in near if s > batch]):
        best = max(side, key=lambda s: (ways(s, gpus), -abs(s - batch)), default=batch)
        if ways(best, gpus) > ways(batch, gpus):
            yield best


def faster(question: Question, batch: int, own_s: float, known: KnownWork) -> BetterBatch | None:
    """The gain of the neighbour; None where it is too small."""
    q = _with_new_replicas(question, batch)
    found = first_layout(q, own_s * batch / (1 + LEAST_GAIN), known)
    if found is None:
        return None
    return BetterBatch(
        global_batch_size=batch,
        step_time_s=found.step_s,
        label=found.layout.full_label,
        faster_fraction=own_s * batch / found.step_s - 1,
    )


def _with_new_replicas(question: Question, batch: int) -> Question:
    """The question of the neighbour, on numbers of replicas that reach it and not its own batch."""
    own, pins = question.training.global_batch_size, question.pins
    reached = [
        replicas for replicas in divisors(question.gpus)
        if batch % replicas == 0 and own % replicas and pins.allows("data_parallel", replicas)
    ]  # fmt: skip
    pin = Pin("new", ranges=tuple((each, each) for each in reached))
    training = replace(question.training, global_batch_size=batch)
    return replace(question, training=training, pins=Pins({**pins.axes, "data_parallel": pin}))
