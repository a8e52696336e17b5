"""What one rank of each layout of a grid computes, communicates and keeps.

The formulas are those of `StageModel` for one layout, which hold for arrays too; they are asked
here for what does not depend on how many layers a stage holds. Every number is an array over the
rows, or a float where no row differs.
"""

from dataclasses import dataclass
from typing import cast

from costmodels.blocks import input_bytes, layer_operations
from costmodels.collectives import send_s
from costmodels.elementwise import Number, where
from costmodels.grid import Grid
from costmodels.layer import Cost, Pass
from costmodels.layout import Layout, RecomputeModule
from costmodels.memory import kept_state
from costmodels.params import RankParameters, layer_parameters_per_rank
from costmodels.step import Setting, StepModel
from hardware_profiles.engine_schema import State

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

    def backward_room_s(self, mode: int) -> Number:
        """Seconds of the backward, replay included, under which traffic of weights may hide."""
        return self.cost.backward_room_s + self.replay[mode].room_s


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

    @property
    def send_s(self) -> Number:
        """What a virtual stage waits for its neighbours, both directions of one micro-batch."""
        setting, step = self.setting, self.step
        size = step.site.itemsize * step.site.shard.tokens_outside * setting.model.hidden
        across = step.neighbour_stride >= setting.cluster.gpus_per_node
        hop = send_s(setting.cluster, size, across_nodes=across)
        shown = (1.0 - setting.engine.overlap.pipeline) * setting.tuning.collective_scale * hop
        waits = step.boundary_s
        return where(self.grid.pipeline_parallel > 1, 2 * (shown + waits), 0.0)
