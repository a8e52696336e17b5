"""The end of a backward pass where no gradient is there at the loss (`comes_late`).

A rank of all layers walks back from the last one to the first. In the backward of one it holds

    the gradients of the layers behind it and of the head
    what the embedding and the layers before it saved, and all that it saves, kept or made again
    keys and values of the layers behind it that outputs hold
    its weights and gradient whole under ZeRO-3, and those of ends that are one unit; the weights of
    the layer before it, which are gathered meanwhile

Each step back to a layer of the same kind and mode adds the gradient of one and gives back what
one saved. So the most is held at the loss or in the first layer of a kind.

Source: autograd runs a pass when all that feed it are done (torch/csrc/autograd/engine.cpp
Node dependencies), so gradients come from the last layer to the first; FSDP2 scatters those of the
unit that holds both ends when the whole backward is done (torch/distributed/fsdp/_fully_shard/
_fsdp_state.py _root_post_backward_final_callback). Leaves out that such a unit's are whole until
then under ZeRO-2 too.
"""

from collections import Counter

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.memory import states
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.ranks.memory import gathered_bytes
from meshplan.costmodels.ranks.rank import Rank

NO_GRADIENTS = {"gradient_bytes": 0.0, "whole_gradient_bytes": 0.0}


def first_layers(model: Model) -> tuple[int, ...]:
    """The place of the first layer of each kind, in model order."""
    return tuple(sorted(map(model.pattern.index, set(model.pattern))))


def to_come_bytes(rank: Rank, place: int) -> Number:
    """Gradients that are not there in the backward of the layer at `place`: its own, of those
    before it and of the embedding, but of a tied table, to which the head has added.
    """

    def gradients(part: RankParameters) -> Number:
        return rank.state_memory(part).gradients

    model, (embedding, head, _) = rank.setting.model, rank.end_parameters
    counts = Counter(model.pattern[: place + 1])
    found: Number = sum(gradients(rank.layer_parameters(kind) * n) for kind, n in counts.items())
    if model.tied:
        return found
    in_unit = rank.state.ends_in_one_unit  # whole until the end: counted with what is gathered
    waits = where(rank.layout.zero_stage >= 3, gradients(head) * in_unit, 0.0)
    return found + gradients(embedding) + waits


def gathered_then_bytes(rank: Rank, place: int) -> Number:
    """What ZeRO-3 holds whole of layers in the backward of the one at `place`."""
    pattern = rank.setting.model.pattern
    own = gathered_bytes(rank, rank.layer_parameters(pattern[place]))
    if place == 0:
        return own
    weights = rank.state.model_copy(update=NO_GRADIENTS)
    before, sharding = rank.layer_parameters(pattern[place - 1]), rank.traffic.sharding
    return own + states.gathered_bytes(weights, before, sharding, rank.frozen)
