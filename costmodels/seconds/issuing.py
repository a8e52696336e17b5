"""What the host of one rank issues of a list of operations, and how long it takes.

    issued  = (launches * launch_s * share + operators * operator_s + hooks) * host_slowdown + waits

    share   launch_share, of a dense layer in 16 bits times product_share  (`KernelHabits`)
    hooks   of Megatron-FSDP, around layers and their weights  (`sharding_hooks`)
    waits   at tensor parallel's collectives, by DTensor and in pipelines across nodes, and at a
            router

In a forward pass with experts the host waits for the number of rows that they get, which is more
than the longer of what it issues and what the device runs (`expert_counts`).
"""

from collections.abc import Iterable, Sequence

from meshplan.costmodels.elementwise import Condition, Number
from meshplan.costmodels.operations.kinds import (
    AttentionCore,
    Axis,
    Communication,
    Matmul,
    Operation,
    Pointwise,
    Scan,
)
from meshplan.costmodels.seconds.adapters import adapter_launches
from meshplan.costmodels.seconds.cost import Computing
from meshplan.costmodels.seconds.dtensor import dispatched_s
from meshplan.costmodels.seconds.expert_counts import in_step_s, wait_at
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.operation import (
    Direction,
    cast_calls,
    core_kernels,
    count_of,
    is_sent,
    of_dense_layer,
    operators_s,
    part_of_layer,
)
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.sharding_hooks import Hooks
from meshplan.costmodels.seconds.shared_links import Traffic
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.kernel_habits import AdapterCasts, DTensorPlan
from meshplan.hardware_profiles.schema import Cluster


@dataclass(frozen=True, slots=True)
class Issuing:
    """What the host issues: to which device, for which groups, with the engine's habits.

    lora            what is trained beside frozen weights, None: all weights
    gradient_bytes  moved for each number of a weight's gradient after its product
    graphed         parts of a layer that the host issues as one graph
    products_apart  whether the host issues a product for each expert
    fixed_capacity  whether experts take as many rows whatever routers choose
    hooks           around layers and their weights, which add gradients to their buffers too
    from launch_share on    see `KernelHabits`
    """

    device: Device
    cluster: Cluster
    groups: dict[str, Group]
    crosses_nodes: Number = 0.0
    lora: Lora | None = None
    gradient_bytes: float = 0.0
    graphed: tuple[str, ...] = ()
    products_apart: bool = False
    fixed_capacity: bool = False
    launch_share: float = 1.0
    product_share: float = 1.0
    adapter_casts: AdapterCasts = "none"
    dtensor: DTensorPlan = ""
    functions_alone: tuple[Axis, ...] = ()
    hooks: Hooks | None = None

    def issued_s(self, operations: Sequence[Operation], direction: Direction) -> Number:
        """Seconds in which the host issues `operations`. Frozen weights have no gradient, and those
        of adapters are issued beside the input's.
        """
        if direction == "weight_grad" and self.lora:
            return 0.0
        issued = sum(self._issue_s(op, direction) for op in operations)
        return self._with_routing_s(operations, direction, issued)

    def _with_routing_s(
        self, operations: Sequence[Operation], direction: Direction, issued: Number
    ) -> Number:
        """With the host's seconds of a router, where one is among `operations`."""
        routed = any(op.name == "router" for op in operations)
        if routed and direction != "weight_grad" and not self.fixed_capacity:
            issued = issued + self.device.tuning.routing_s
        return issued + self._hooks_s(operations, direction)

    @property
    def _unhooked(self) -> Number:
        """1 where no hook adds gradients up, else 0."""
        return 1 if self.hooks is None else 1 - self.hooks.present

    def _hooks_s(self, operations: Sequence[Operation], direction: Direction) -> Number:
        if self.hooks is None:
            return 0.0
        each = self.device.loops_over_experts
        hooks_s = self.hooks.issued_s(operations, direction, each_expert=each)
        return hooks_s * self.cluster.host_slowdown

    def _issue_s(self, op: Operation, direction: Direction) -> Number:
        """Of one."""
        light = of_dense_layer(op) and not self.device.recipe.cast_bytes
        share = self.launch_share * (self.product_share if light else 1.0)
        kernels_s = self.device.tuning.launch_s * share * self._launches(op, direction)
        loops = None if self.products_apart else self.device
        calls_s = operators_s(op, direction, self.graphed, loops)
        issuing_s = (kernels_s + calls_s) * self.cluster.host_slowdown
        return issuing_s + self._waiting_s(op, direction)

    def launches(self, operations: Sequence[Operation]) -> Number:
        """Kernels that the host issues for `operations` forward."""
        return sum(self._launches(op, "forward") for op in operations)

    def _launches(self, op: Operation, direction: Direction) -> Number:
        if self.graphed and part_of_layer(op) in self.graphed:
            return 0
        if isinstance(op, Pointwise):
            return 0 if direction == "weight_grad" else op.kernels * op.issued_share
        if isinstance(op, Matmul):
            is_backward = direction != "forward"
            beside = adapter_launches(op, self.lora, self.adapter_casts, backward=is_backward)
            added = (direction == "weight_grad" and self.gradient_bytes > 0) * self._unhooked
            products = op.groups if self.products_apart and "experts" in op.modules else 1
            return beside + products + added + cast_calls(self.device.recipe, op, direction)
        if isinstance(op, (AttentionCore, Scan)):
            forward, backward = core_kernels(op)
            return {"forward": forward, "input_grad": backward, "weight_grad": 0}[direction]
        function = op.differentiable and op.axis in self.functions_alone
        applied = function and direction != "weight_grad"
        return op.present * (applied or is_sent(op, direction, self.groups[op.axis].size))

    def _waiting_s(self, op: Operation, direction: Direction) -> Number:
        """Of the host at tensor parallel's: by DTensor, and in pipelines across nodes [fitted]."""
        if not isinstance(op, Communication) or op.axis != "tp":
            return 0.0
        ranks = self.groups["tp"].size
        each = self.device.tuning.pipelined_rank_s * self.crosses_nodes * ranks
        calls_s = dispatched_s(self.dtensor, direction) * self.cluster.host_slowdown
        return (each * count_of(op, direction) + calls_s) * (ranks > 1)

    @property
    def _reads_counts(self) -> Condition:
        """Whether the host reads the counts of experts whose rows routers choose."""
        on_device = self.device.uses_grouped_mm and not self.products_apart
        return (self.groups["ep"].size > 1) | (not on_device)

    def _wait_at(self, operations: Sequence[Operation]) -> int | None:
        """Before which of them the host reads the counts; None where it reads none."""
        return None if self.fixed_capacity else wait_at(operations)

    def _chains_s(
        self,
        operations: Sequence[Operation],
        each_s: Sequence[Computing],
        issued: Sequence[Number],
        traffic: Iterable[Traffic],
    ) -> list[Number]:
        """Of operations that compute `each_s`, take the host `issued`, and send as `traffic`."""
        wait = self._wait_at(operations)
        if wait is None:
            return []
        seen = (each.exposed_s for each in traffic)
        lasting = [
            next(seen) if isinstance(op, Communication) else computing.total_s
            for op, computing in zip(operations, each_s, strict=True)
        ]
        in_order = list(issued)
        in_order[wait] = in_order[wait] + self.device.tuning.routing_s
        in_order[0] = in_order[0] + self._hooks_s(operations, "forward")
        return in_step_s(in_order, lasting, wait)
