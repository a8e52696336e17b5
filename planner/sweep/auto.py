"""How many GPUs: the fewest that hold a step, and the knee of the scaling curve beyond them.

Sizes are walked upwards, doubling: the fewest, then powers of two within a node and of nodes. The
walk ends where two sizes in a row have a larger time x cost than the best before them (the knee of
`planner.sweep.economics` lies behind), where the batch has no more to share out, or at the
cluster's end. Each size is a cell of a sweep: the proved plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshplan.hardware_profiles.local_cpu import LOCAL_CPU
from meshplan.planner.answer.fewest_gpus import SIZES_TRIED
from meshplan.planner.answer.question import Arguments, BadQuestion, ask
from meshplan.planner.case.plan_findings import Size, Sizes
from meshplan.planner.search.footprint import minimum_gpus
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.sweep.cells import Answer, answer
from meshplan.planner.sweep.economics import RunCost, Terms, cheapest, knee
from meshplan.planner.sweep.outcome import PER_TRILLION, cost_of, facts

MOST_LEAST = 1024  # how far to look for a size that holds the model
MOST_GPUS = 16_384
PAST_KNEE = 2  # sizes


def find_sizes(
    arguments: Arguments,
    *,
    price: float | None,
    time_limit_s: float | None,
    told: Callable[[int], None],
) -> Sizes:
    """The sizes that stand out; `told` hears of each before it is planned.

    Raises `NoLayoutFits` where none of the sizes tried holds a step, and what `ask` raises.
    """
    if arguments.cluster == LOCAL_CPU:
        raise BadQuestion(
            "--gpus auto is for clusters; for local-cpu state the number of processes"
        )
    first = ask(replace(arguments, gpus=1))
    most = min(MOST_GPUS, first.question.cluster.max_gpus or MOST_GPUS)
    least = minimum_gpus(first.question, most=min(most, MOST_LEAST))
    if least is None:
        raise NoLayoutFits(
            f"no number of GPUs up to {min(most, MOST_LEAST):,} holds {first.question.model.name} "
            f"as asked ({SIZES_TRIED})"
        )
    sizes = sizes_from(least.gpus, first.question.cluster.gpus_per_node, most)
    tried = _walk(arguments, sizes, price, time_limit_s=time_limit_s, told=told)
    costs = [cost for _, cost in tried]
    best, bend = cheapest(costs), knee(costs)
    if best is None or bend is None:
        raise NoLayoutFits(f"no size of {least.gpus} GPUs or more has a plan")
    return Sizes(
        least_gpus=least.gpus,
        cheapest_gpus=best.gpus if best.cost_per_trillion_tokens is not None else None,
        knee_gpus=bend.gpus,
        tried=tuple(_size(found, cost) for found, cost in tried),
    )


def sizes_from(least: int, gpus_per_node: int, most: int) -> Iterator[int]:
    """The fewest, then powers of two within a node, then of nodes."""
    yield least
    inside = [2**i for i in range(gpus_per_node.bit_length()) if 2**i < gpus_per_node]
    nodes = [gpus_per_node * 2**i for i in range(most.bit_length())]
    yield from (size for size in (*inside, *nodes) if least < size <= most)


def _walk(
    arguments: Arguments,
    sizes: Iterator[int],
    price: float | None,
    *,
    time_limit_s: float | None,
    told: Callable[[int], None],
) -> list[tuple[Answer, RunCost]]:
    """Every one of `sizes` with a plan, as far as `PAST_KNEE` sizes beyond the knee."""
    tried: list[tuple[Answer, RunCost]] = []
    past = 0
    for gpus in sizes:
        told(gpus)
        asked = ask(replace(arguments, gpus=gpus))
        found = answer(asked, time_limit_s)
        cost = cost_of(found, asked, Terms(), price)
        if cost is not None:
            tried.append((found, cost))
        standing_out = knee([each for _, each in tried])
        past = past + 1 if tried and cost is not standing_out else 0
        if past == PAST_KNEE:
            break
    return tried


def _size(found: Answer, cost: RunCost) -> Size:
    plan = found.plan
    assert plan is not None
    assert plan.prediction is not None
    return Size(
        gpus=cost.gpus,
        status="OPTIMAL" if found.proved else "FEASIBLE",
        label=plan.layout.label,
        **facts(plan.prediction, "step_time_s", "mfu"),
        **facts(cost, "tokens_per_s", *PER_TRILLION),
    )
