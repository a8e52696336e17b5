"""Whether a measured run's layout holds in memory, and what it must have recomputed to do so."""

from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import stages_with
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.schema import Cluster

SPARE = 0.02
"""Of a device's memory, what no run had for its tensors beside the context: the fullest of four
engines that state what they reserved had 0.961 to 0.976 of it (torchtitan on H200 and GB200, FSDP1
on an RTX 4090, nanotron on H100: 134.4 of 139.8, 179.9 of 184.3, 23.05 of 23.64, 77.1 of 79.2 GiB).
"""


def holds(model: StepModel) -> bool:
    """Whether every rank has room for its peak, slow as a step is whose allocator has to give back
    what it holds.

    Weights, gradients and the optimizer's state are blocks that stay, so that nothing beside them
    is lost once the allocator has given back what it caches (PyTorch c10/cuda/
    CUDACachingAllocator.cpp, release_cached_blocks before it fails). Engines whose allocator's
    constants were learnt with gathers that it holds keep all of their slack, and the margin that
    was chosen with them (`MEMORY_MARGIN`).
    """
    room = _room_bytes(model) - model.context_bytes + model.returned_bytes()
    return max(_needed_bytes(model, memory) for memory in model.memory()) <= room


def _needed_bytes(model: StepModel, memory: Memory) -> float:
    whole = float(memory.allocated) + model.slack_bytes(memory)
    if _holds_gathers(model):
        return whole
    return whole - model.setting.tuning.state_slack_fraction * float(memory.states)


def _room_bytes(model: StepModel) -> float:
    cluster = model.setting.cluster
    if _holds_gathers(model) or cluster.usable_memory_bytes:
        return cluster.capacity_bytes
    return cluster.gpu.memory_bytes * (1 - SPARE)


def _holds_gathers(model: StepModel) -> bool:
    tuning = model.setting.tuning
    return tuning.held_gathers > 0 or tuning.held_gathers_pipelined > 0


def recomputing(layout: Layout) -> Layout:
    """`layout` with every layer recomputed in full."""
    counts = tuple(stage.layers for stage in layout.stages)
    return replace(layout, stages=stages_with(counts, "full"))


def as_it_held(
    layout: Layout, model: Model, training: Training, cluster: Cluster, engine: Engine
) -> Layout:
    """What a run that leaves recompute open, and did not run out of memory, must have been: with
    all layers recomputed where it does not fit without and the engine knows nothing in between.
    """
    if "selective" in engine.legality.recompute:
        return layout
    fits = holds(StepModel(Setting.fitted(model, training, cluster, engine), layout))
    return layout if fits else recomputing(layout)
