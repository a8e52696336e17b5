"""The layout that a plan makes of a row and its variant."""

from meshplan.costmodels.layout import (
    CONTEXT_KINDS,
    DISPATCHERS,
    SELECTIVE,
    Layout,
    Stage,
)
from meshplan.costmodels.layouts import Layouts
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.space.legal_layouts import Variant


def layout_of_row(layouts: Layouts, row: int, variant: Variant, plan: StagePlan) -> Layout:
    """The layout that `plan` makes of a row and its variant."""
    zero = int(layouts.zero_stage[row])
    replicas = int(layouts.data_parallel[row]) * int(layouts.context_parallel[row])
    group = int(layouts.shard_group[row])
    stages = layers_of(plan.stages) if variant.placed else plan.stages
    selective = any(stage.selective_layers for stage in stages)
    return Layout(
        data_parallel=int(layouts.data_parallel[row]),
        tensor_parallel=int(layouts.tensor_parallel[row]),
        pipeline_parallel=int(layouts.pipeline_parallel[row]),
        virtual_stages=variant.virtual_stages,
        context_parallel=int(layouts.context_parallel[row]),
        expert_parallel=int(layouts.expert_parallel[row]),
        expert_tensor_parallel=int(layouts.expert_tensor_parallel[row]),
        sequence_parallel=bool(layouts.sequence_parallel[row]),
        zero_stage=zero,
        shard_group=0 if zero == 0 or group == replicas else group,
        micro_batch_size=int(layouts.micro_batch_size[row]),
        schedule=variant.schedule,
        context_kind=("", *CONTEXT_KINDS)[layouts.context_kind[row]],
        dispatcher=("", *DISPATCHERS)[layouts.dispatcher[row]],
        stages=stages,
        selective_modules=variant.replayed if selective else SELECTIVE,
        optimizer_offload=float(layouts.optimizer_offload[row]),
        activation_offload=float(layouts.activation_offload[row]),
        modules_apart=variant.placed and plan.stages[-1].layers == 0,
    )


def layers_of(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """`stages` of a stack without the modules at its end, which nothing replays."""
    held = list(stages)
    at = max(j for j, stage in enumerate(stages) if stage.layers)
    last, left = held[at], held[at].layers - 1
    full = min(last.full_layers, left)
    held[at] = Stage(left, min(last.selective_layers, left - full), full)
    return tuple(held)
