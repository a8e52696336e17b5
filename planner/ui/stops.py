"""The stops of each slider: the values that are worth showing, and why one is not legal."""

from collections.abc import Iterable, Iterator
from typing import Any

from meshplan.costmodels.layout import InvalidLayout
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.settings import one_line
from meshplan.planner.space.axis_rules import USUAL_MICRO_BATCHES, divisors, widest_tensor_parallel
from meshplan.planner.ui.layouts import case_of_choice
from meshplan.planner.ui.requests import SliderLayout

MOST_VIRTUAL = 16
MOST_CONTEXT = 256
ENDS = 2  # the embedding and the head may have a stage of their own


def stops_of(asked: Asked, choice: SliderLayout) -> dict[str, list[dict[str, Any]]]:
    """By axis the values in order, each with `why` it is refused, None where it is legal."""
    return {
        axis: [_stop(asked, choice, axis, value) for value in values]
        for axis, values in _values(asked, choice)
    }


def _stop(asked: Asked, choice: SliderLayout, axis: str, value: object) -> dict[str, Any]:
    moved = choice.model_copy(update={axis: value})
    try:
        case_of_choice(asked, moved)
    except InvalidLayout as error:
        return {"value": value, "why": one_line(error)}
    return {"value": value, "why": None}


def _values(asked: Asked, choice: SliderLayout) -> Iterator[tuple[str, list[Any]]]:
    q = asked.question
    of_gpus = divisors(q.gpus)
    layers, pp = q.model.num_layers, choice.pipeline_parallel
    sequences = q.training.global_batch_size
    widest = widest_tensor_parallel(q.gpus, sequences, q.cluster.gpus_per_node)  # as the search's
    tensor = [n for n in of_gpus if n <= widest]
    numbers: dict[str, Iterable[int]] = {
        "tensor_parallel": tensor,
        "pipeline_parallel": [n for n in of_gpus if n <= layers + ENDS],
        "virtual_stages": range(1, min(MOST_VIRTUAL, max(1, (layers + ENDS) // pp)) + 1),
        "context_parallel": [n for n in of_gpus if n <= MOST_CONTEXT],
        "expert_parallel": divisors(q.model.num_experts) if q.model.is_moe else [1],
        "expert_tensor_parallel": divisors(choice.tensor_parallel) if q.model.is_moe else [1],
        "zero_stage": range(4),
        "micro_batch_size": USUAL_MICRO_BATCHES,
    }
    for axis, values in numbers.items():
        yield axis, sorted({*values, getattr(choice, axis)})
    words = ["none", "selective", "full"]
    rules = q.engine.legality
    names = [name for name in rules.schedules if name != "gpipe" or rules.hides_sends]
    yield "schedule", [None, *names]
    yield "recompute", [*words, "mixed"] if choice.recompute == "mixed" else words
