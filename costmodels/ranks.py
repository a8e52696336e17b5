"""What one rank of each layout of a grid computes, communicates and keeps.

The formulas are those of `StageModel` for one layout, which hold for arrays too; they are asked
here for what does not depend on how many layers a stage holds. Every number is an array over the
rows, or a float where no row differs.
"""

from dataclasses import dataclass
from typing import cast

from costmodels.blocks import input_bytes, layer_operations
from costmodels.collectives import collective_s, hops_s, send_s
from costmodels.elementwise import Number, where
from costmodels.grid import Grid
from costmodels.layer import Cost, Pass
from costmodels.layout import Layout, RecomputeModule
from costmodels.memory import Sharding, expert_ranks, kept_state
from costmodels.params import RankParameters, layer_parameters_per_rank
from costmodels.step import UPDATE_BYTES, Setting, StepModel
from hardware_profiles.engine_schema import State
from hardware_profiles.schema import CollectiveKind

SELECTIVE: tuple[RecomputeModule, ...] = ("core_attention",)  # the default of `Layout`


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The cost of a layer, and by recompute mode what its backward replays and what it keeps.

    Only the replay differs between modes, so the other passes are priced once.
    """

    cost: Cost
    replay: tuple[Pass, Pass, Pass]
    saved_bytes: tuple[Number, Number, Number]

    def total_s(self, mode: int) -> Number:
        """Forward and backward of one micro-batch."""
        return self.cost.total_s + self.replay[mode].total_s

    def backward_compute_s(self, mode: int) -> Number:
        """Seconds that the device computes in the backward, replay included."""
        return backward_compute_s(self.cost) + self.replay[mode].compute_s


def forward_compute_s(cost: Cost) -> Number:
    """Seconds that the device computes in the forward."""
    return cost.forward.compute_s


def backward_compute_s(cost: Cost) -> Number:
    """Seconds that the device computes in the backward of what recomputes nothing."""
    return cost.input_grad.compute_s + cost.weight_grad.compute_s


class Ranks:
    """One rank under each layout of `grid`."""

    def __init__(self, setting: Setting, grid: Grid) -> None:
        self.setting, self.grid = setting, grid
        # Only what a layout and a grid share is asked of it: places, costs and shapes.
        self.step = StepModel(setting, cast(Layout, grid))

    @property
    def state(self) -> State:
        """Bytes per parameter that the engine keeps under this training."""
        return kept_state(self.setting.engine.state, self.setting.training)

    @property
    def state_scale(self) -> float:
        """Reserved over allocated, of weights, gradients and optimizer state."""
        return 1 + self.setting.tuning.state_slack_fraction

    @property
    def working_scale(self) -> float:
        """Reserved over allocated, of activations and whatever else a step holds for a while."""
        return 1 + self.setting.tuning.activation_slack_fraction

    def layer_work(self, kind: int) -> "LayerWork":
        """One layer of `kind` and micro-batch."""
        site, pricer = self.step.site, self.step.pricer
        operations = layer_operations(site, self.setting.model.kinds[kind])
        cost = pricer.cost(operations)
        again = pricer.cost([op for op in operations if set(SELECTIVE) & set(op.modules)])
        return LayerWork(
            cost=cost,
            replay=(Pass(), again.forward, cost.forward),
            saved_bytes=(cost.saved_bytes, cost.saved_bytes - again.saved_bytes, input_bytes(site)),
        )

    def layer_parameters(self, kind: int) -> RankParameters:
        """Parameters of one layer of `kind` on this rank."""
        grid, model = self.grid, self.setting.model
        degrees = (grid.tensor_parallel, grid.expert_parallel, grid.expert_tensor_parallel)
        tp, ep, etp = (degree * 1.0 for degree in degrees)
        return layer_parameters_per_rank(model, model.kinds[kind], tp, ep, etp)

    def collective_s(
        self, kind: CollectiveKind, parameters: RankParameters, bytes_each: float
    ) -> Number:
        """A collective over the ranks that share `parameters`, dense and expert ones apart."""
        cluster, step = self.setting.cluster, self.step
        dense = collective_s(cluster, kind, parameters.dense * bytes_each, step.dense_group)
        expert = collective_s(cluster, kind, parameters.expert * bytes_each, step.expert_group)
        expert = where(parameters.expert > 0, expert, 0.0)
        return self.setting.tuning.collective_scale * (dense + expert)

    def latency_s(self, kind: CollectiveKind, parameters: RankParameters) -> Number:
        """The part of `collective_s` that does not grow with the parameters."""
        cluster, step = self.setting.cluster, self.step
        expert = where(parameters.expert > 0, hops_s(cluster, kind, step.expert_group), 0.0)
        dense = hops_s(cluster, kind, step.dense_group)
        return self.setting.tuning.collective_scale * (dense + expert)

    def update_s(self, parameters: RankParameters) -> Number:
        """The optimizer's update of this rank's share of `parameters`."""
        if self.setting.training.adapters_only:
            return 0.0
        sharded, step = self.grid.zero_stage >= 1, self.step
        dense = parameters.dense / where(sharded, step.dense_group.size, 1.0)
        expert = parameters.expert / where(sharded, step.expert_group.size, 1.0)
        moved_bytes = (dense + expert) * UPDATE_BYTES[self.setting.training.optimizer]
        return moved_bytes / step.pricer.device.bandwidth_bytes_per_s

    @property
    def sharding(self) -> Sharding:
        """How ZeRO divides the states; rows without it have a shard group of 1."""
        grid, replicas = self.grid, self.step.dense_group.size
        ranks = where(grid.zero_stage > 0, grid.shard_group * 1.0, replicas)
        return Sharding(
            zero_stage=grid.zero_stage * 1.0, dense_ranks=ranks,
            expert_ranks=expert_ranks(
                self.state, ranks, self.step.expert_group.size,
                grid.tensor_parallel / (grid.expert_parallel * grid.expert_tensor_parallel),
            ),
            pipelined=(grid.pipeline_parallel > 1) * 1.0,
        )  # fmt: skip

    @property
    def send_s(self) -> Number:
        """What a virtual stage waits for its neighbours, both directions of one micro-batch."""
        setting, step = self.setting, self.step
        size = 2.0 * step.site.shard.tokens_outside * setting.model.hidden
        across = step.neighbour_stride >= setting.cluster.gpus_per_node
        hop = send_s(setting.cluster, size, across_nodes=across)
        shown = (1.0 - setting.engine.overlap.pipeline) * setting.tuning.collective_scale * hop
        waits = setting.tuning.boundary_s * step.pricer.crosses_nodes
        return where(self.grid.pipeline_parallel > 1, 2 * (shown + waits), 0.0)
