"""What a rank's weights, gradients and optimizer state are summed from: each kind of layer, the
embedding and the head.
"""

from collections.abc import Iterable

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layouts import Floats, Layouts
from meshplan.costmodels.memory.states import comes_late, update_bytes
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.prices.tables import Table


def parts_of(weights: Table) -> list[RankParameters]:
    """Parameters of each kind of the stack, of the embedding, and of the head with the modules
    before it where they are not of the stack.
    """
    embedding, head, modules = weights.rank.end_parameters
    layers = (weights.rank.layer_parameters(kind) for kind in weights.kinds)
    return [*layers, embedding, head if weights.setting.places_modules else head + modules]


def all_states_bytes(weights: Table) -> Number:
    """Weights, gradients and optimizer state of all pipeline ranks together."""
    return of_all_parts(weights, states_of_parts(weights))


def states_of_parts(weights: Table) -> list[Number]:
    """Weights, gradients and optimizer state of each of `parts_of`."""
    scale = 1 + weights.setting.tuning.state_slack_fraction
    return [scale * weights.rank.state_memory(part).allocated for part in parts_of(weights)]


def updates_of_parts(weights: Table) -> list[Number]:
    """What the optimizer step holds of each of `parts_of`."""
    rank = weights.rank
    reserved, sharding = rank.setting.tuning.reserved_over_working, rank.traffic.sharding
    return [reserved * update_bytes(rank.state, part.dense, sharding) for part in parts_of(weights)]


def of_all_parts(weights: Table, each: Iterable[Number]) -> Number:
    """The sum of what `each` of `parts_of` has, over all pipeline ranks together."""
    counts = [*(weights.setting.stack.count(kind) for kind in weights.kinds), 1, 1]
    whole: Number = 0.0
    for count, of in zip(counts, each, strict=True):
        whole = whole + count * of
    return whole


def late_gradient_bytes(layouts: Layouts, weights: Table) -> Floats:
    """[row, part] gradients of each of `parts_of` that are not there at the loss."""
    rank, scale = weights.rank, 1 + weights.setting.tuning.state_slack_fraction
    gradients = weights.stacked(
        scale * rank.state_memory(part).gradients for part in parts_of(weights)
    )
    return come_late(layouts, weights)[:, None] * gradients


def come_late(layouts: Layouts, weights: Table) -> Floats:
    """[row] 1 where no gradient is there at the loss, else 0."""
    m, pipelined = layouts.num_micro_batches * 1.0, layouts.pipeline_parallel * 1.0
    found: Floats = np.where(comes_late(weights.rank.state, m, pipelined), 1.0, 0.0)
    return found
