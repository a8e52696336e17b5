"""Peak device memory of each pipeline rank of one layout.

Allocated is what the framework's tensors take; reserved, what its caching allocator holds for them,
is what runs out. The categories and their formulas are those of `memory`.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from meshplan.costmodels.memory.states import Memory, activation_peak, comes_late, update_bytes
from meshplan.costmodels.operations.embedding_head import logits_bytes
from meshplan.costmodels.ranks.last_replays import first_layers, gathered_then_bytes, to_come_bytes
from meshplan.costmodels.ranks.memory import (
    context_bytes,
    embedding_gathered_bytes,
    gathered_bytes,
    head_gathered_bytes,
    outliving_bytes,
)
from meshplan.costmodels.schedule.in_flight import Vector, in_flight
from meshplan.costmodels.step.pass_memory import Known, rank_peak
from meshplan.costmodels.step.stages import EMBEDDING, StageModel


def slack_bytes(model: StageModel, memory: Memory) -> float:
    """What the caching allocator reserves beyond `memory` [fitted]."""
    tuning = model.setting.tuning
    working = memory.activations + memory.transient
    return float(
        memory.states * tuning.state_slack_fraction
        + working * tuning.activation_slack_fraction
        + model.constant_slack_bytes
    )


def held_bytes(model: StageModel) -> float:
    """What the allocator holds back for the communication stream, and gives back when pressed."""
    tuning, la = model.setting.tuning, model.layout
    if la.tensor_parallel == 1 or la.pipeline_parallel > 1:
        return 0.0
    return float(2 * model.site.gathered_bytes * tuning.held_gathers)


def returned_bytes(model: StageModel) -> float:
    """The part of the slack that a pressed allocator gives back beside a pipeline, for a price."""
    if not model.state.returns_held:
        return 0.0
    return float(2 * model.site.gathered_bytes * model.held_pairs)


def reserved_bytes(model: StageModel, memory: Memory) -> float:
    """The allocator's peak with `memory`: never more than the device has but for what is in use."""
    needed = _needed_bytes(model, memory)
    capacity = model.setting.cluster.capacity_bytes - float(context_bytes(model))
    return max(needed, min(needed + held_bytes(model), capacity))


def is_pressed(model: StageModel, memory: Sequence[Memory]) -> bool:
    """Whether the layout, whose ranks hold `memory`, does not fit, or what the allocator would hold
    back does not beside it, with the device's whole memory and no margin: then it has to give
    blocks back in each micro-batch.
    """
    cluster, outside = model.setting.cluster, float(context_bytes(model))
    needed = max(_needed_bytes(model, m) for m in memory)
    whole = cluster.gpu.memory_bytes - outside
    return needed > cluster.capacity_bytes - outside or needed + held_bytes(model) > whole


def step_memory(model: StageModel) -> tuple[Memory, ...]:
    """Peak of each pipeline rank, by category."""
    known: Known = {}
    constant = model.by_rank(lambda rank: _constant(model, rank))
    return tuple(_rank_memory(model, rank, each, known) for rank, each in enumerate(constant))


def _states(model: StageModel, rank: int) -> Memory:
    """What a rank holds all the time."""
    kept = _kept(model, model.stages_of_rank[rank])
    return model.state_memory(model.rank_parameters[rank]) + Memory(transient=kept)


class _Constant(NamedTuple):
    """A rank's memory apart from what its micro-batches in flight keep.

    working, update  transient bytes of a pass, and of the optimizer step
    """

    states: Memory
    working: float
    update: float


def _constant(model: StageModel, rank: int) -> _Constant:
    states, sharding = _states(model, rank), model.traffic.sharding
    if _counts_passes(model):
        return _Constant(states, 0.0, 0.0)
    update = update_bytes(model.state, model.rank_parameters[rank].dense, sharding)
    return _Constant(states, _transient(model, model.stages_of_rank[rank]), float(update))


def _counts_passes(model: StageModel) -> bool:
    kernels = model.setting.engine.kernels
    return kernels.counts_passes and not model.layout.activation_offload


def _rank_memory(model: StageModel, rank: int, constant: _Constant, known: Known) -> Memory:
    la, chunks = model.layout, model.stages_of_rank[rank]
    states, working, update = constant
    if _counts_passes(model):
        peak = rank_peak(model, rank, model.traffic.sharding, known)
        return states + Memory(activations=peak.activations, transient=peak.transient)
    vectors = in_flight(la.schedule, la.pipeline_parallel, la.virtual_stages, model.m)[rank]
    saved = [model.stage_saved_bytes[i] for i in chunks]
    held = activation_peak(vectors, saved)
    if la.activation_offload:
        layers = [la.activation_offload * _saved_by_layers(model, i) for i in chunks]
        states += Memory(host=activation_peak(vectors, layers))
        held = _held_beside_host(vectors, saved, layers, 2 * _largest_layer(model, chunks))
    passes, step = Memory(activations=held, transient=working), Memory(transient=update)
    if comes_late(model.state, model.m, la.pipeline_parallel):
        return _late_peak(model, states, passes, step)
    return states + (step if update > held + working else passes)


def _late_peak(model: StageModel, states: Memory, passes: Memory, step: Memory) -> Memory:
    """The fullest moment of a rank of all layers at whose loss there are no gradients."""
    moments = [
        passes + Memory(gradients=-float(states.gradients)),
        step,
        *(_last_replay(model, place) for place in first_layers(model.setting.model)),
    ]
    return max((states + moment for moment in moments), key=partial(_needed_bytes, model))


def _needed_bytes(model: StageModel, memory: Memory) -> float:
    return float(memory.allocated) + slack_bytes(model, memory)


def _last_replay(model: StageModel, place: int) -> Memory:
    """What is held beside the states in the backward of the layer at `place` (`last_replays`)."""
    modes = [mode for stage in model.layout.stages for mode in stage.modes]
    layers = list(zip(model.setting.model.pattern, modes, strict=True))
    own, on_device = layers[place], 1 - model.layout.activation_offload
    saved = on_device * sum(float(model.layer_saved_bytes(*key)) for key in layers[:place])
    saved += float(model.layer_saved_bytes(*own)) + model.saved_bytes((), (EMBEDDING,))
    saved += sum(float(model.returned_keys_bytes(*key)) for key in layers[place + 1 :])
    return Memory(
        gradients=-float(to_come_bytes(model, place)),
        activations=saved,
        transient=float(model.working_bytes(*own)) + gathered_last_bytes(model, place),
    )


def gathered_last_bytes(model: StageModel, place: int) -> float:
    """What ZeRO-3 holds whole then: of layers, and of the ends where these are one unit."""
    ends = _ends_gathered(model) if model.state.ends_in_one_unit else 0.0
    return float(gathered_then_bytes(model, place)) + ends


def _kept(model: StageModel, chunks: tuple[int, ...]) -> float:
    """Buffers of these chunks that outlive their use."""
    kinds = sorted({kind for i in chunks for kind, _ in model.stage_counts[i]})
    head = len(model.layout.stages) - 1 in chunks
    modules = model.has_modules and model.stage_of_end[2] in chunks
    return float(outliving_bytes(model, kinds, model.m, head=head, modules=modules))


def _saved_by_layers(model: StageModel, chunk: int) -> float:
    """What the layers of a chunk, its ends apart, keep of a micro-batch."""
    counts = model.stage_counts[chunk].items()
    return sum(float(model.layer_saved_bytes(*key)) * count for key, count in counts)


def _largest_layer(model: StageModel, chunks: tuple[int, ...]) -> float:
    """The most that one layer of these chunks keeps of a micro-batch."""
    keys = {key for i in chunks for key in model.stage_counts[i]}
    return max((float(model.layer_saved_bytes(*key)) for key in keys), default=0.0)


def _held_beside_host(
    vectors: Sequence[Vector], saved: list[float], layers: list[float], buffers: float
) -> float:
    """The fullest moment where what `layers` saved waits on the host: the rest of what is `saved`,
    and no more of theirs than `buffers`.
    """
    stays = [whole - part for whole, part in zip(saved, layers, strict=True)]
    return max(
        sum(n * size for n, size in zip(vector, stays, strict=True))
        + min(sum(n * part for n, part in zip(vector, layers, strict=True)), buffers)
        for vector in vectors
    )


def _transient(model: StageModel, chunks: tuple[int, ...]) -> float:
    """Logits on the last rank, what a layer's backward makes, ZeRO-3's gathered layers."""
    last = len(model.layout.stages) - 1
    kinds = {kind for i in chunks for kind, _ in model.stage_counts[i]}
    layers = {key for i in chunks for key in model.stage_counts[i]}
    working = max((float(model.working_bytes(*key)) for key in layers), default=0.0)
    if model.setting.places_modules and model.stage_of_end[2] in chunks:
        kinds.add(len(model.setting.model.kinds))
    whole = (float(gathered_bytes(model, model.layer_parameters(kind))) for kind in kinds)
    gathered = max(whole, default=0.0)
    if last not in chunks:
        return working + 2 * gathered
    return max(float(logits_bytes(model.site)), working) + 2 * gathered + _ends_gathered(model)


def _ends_gathered(model: StageModel) -> float:
    """What ZeRO-3 holds whole of the ends on the last stage at the loss."""
    last = len(model.layout.stages) - 1
    embedding, head, modules = model.end_parameters
    if not model.setting.places_modules and last in (*model.stage_of_end, last)[2:3]:
        head = head + modules
    whole = float(head_gathered_bytes(model, head))
    if model.stage_of_end[0] != last:
        return whole
    return whole + float(embedding_gathered_bytes(model, embedding))
