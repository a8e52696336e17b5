"""Whether a measured run's layout holds in memory, and what it must have recomputed to do so."""

from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import stages_with
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.schema import Cluster


def holds(model: StepModel) -> bool:
    """Whether every rank has room for its peak, slow as a step is whose allocator has to give back
    what it holds.
    """
    room = model.setting.cluster.capacity_bytes - model.context_bytes + model.returned_bytes()
    needed = (float(memory.allocated) + model.slack_bytes(memory) for memory in model.memory())
    return max(needed) <= room


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
