"""Seconds, FLOPs and saved bytes of a list of operations on one rank, for each recompute mode.

    forward      every operation once
    input_grad   the backward but for weight gradients (I of the zero-bubble papers)
    weight_grad  the weight gradients (W)
    replay       the operations that the recompute mode runs again before the backward

A pass takes the device's time and the communication that the engine cannot hide, or the host's time
to issue all that if it is longer; both, where the host waits for each kernel (`launches_block`):

    beside  = overlap * communication
    exposed = communication - beside + max(beside - room, beside i / (1 + i))

    room  seconds of computing that it may run under     i  interference: computing takes 1 + i as
          long beside it, which nobody sees where the communication is what takes longer

How long the host takes is counted in `issuing`.

Ranks that meet within the layer wait for stragglers (`collectives.straggler_fraction`), as long as
on the axis that waits longest: a wait on one axis is not repeated on another.

Leaves out: hiding communication under operations other than the ones named by `hidden_by`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import reduce
from typing import get_args

from meshplan.costmodels.elementwise import Condition, Number, anywhere, everywhere, maximum, where
from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.operations.adapters import (
    adapter_forward_flops,
    feeds_frozen_alone,
    kept_bytes,
)
from meshplan.costmodels.operations.by_operator import Listing
from meshplan.costmodels.operations.kinds import (
    Axis,
    Communication,
    Matmul,
    Operation,
)
from meshplan.costmodels.operations.replayed import (
    kept_and_replayed,
    read_again_bytes,
    replayed_of,
    without_unread,
)
from meshplan.costmodels.seconds.adapters import beside_frozen_s
from meshplan.costmodels.seconds.checkpoints import hooks_s
from meshplan.costmodels.seconds.collectives import ALL_SENT, collective_s, waits_s
from meshplan.costmodels.seconds.cost import Collective, Computing, Cost, Pass
from meshplan.costmodels.seconds.interference import exposed_s, interference_of
from meshplan.costmodels.seconds.issuing import Issuing
from meshplan.costmodels.seconds.kernels import pointwise_s
from meshplan.costmodels.seconds.operation import (
    SENDING,
    Direction,
    count_of,
    device_s,
    is_kept_cast,
    mean_flops_of,
    room_s,
    scale_of,
    sending_s,
    summed,
)
from meshplan.costmodels.seconds.shared_links import Traffic, more_room_s
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Overlap

AXES: tuple[Axis, ...] = get_args(Axis)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True, slots=True)
class Pricer(Issuing):
    """Turns operations into costs: what the host issues, and what the device computes and sends
    beside it.

    overlap         how much of its communication the engine hides
    deduplicates    whether tokens are sent once to each node and rank
    packed_bytes    of a frozen number of a linear layer's weight, 0 where it is not unpacked
    weights_leave   1 where the ranks that share weights are on several nodes, else 0
    drops_unread    whether a replay leaves out what no backward reads
    keeps_unread    whether a checkpoint by operator keeps what no backward reads
    launches_block  whether the host waits for each kernel
    checkpoint_hooks  whether PyTorch's checkpoints wrap what nothing compiles
    """

    overlap: Overlap = field(kw_only=True)
    deduplicates: Condition = False
    packed_bytes: float = 0.0
    expert_overlap: Number = 0.0
    weights_leave: Number = 0.0
    drops_unread: bool = False
    keeps_unread: bool = False
    launches_block: bool = False
    checkpoint_hooks: bool = False

    def cost(self, operations: Sequence[Operation]) -> Cost:
        """The cost of `operations`, of which none run again in the backward."""
        saved_bytes = self.saved_bytes(operations)
        return self.replaying(self._cost(operations), operations, (), saved_bytes)

    def saved_bytes(
        self, operations: Sequence[Operation], replayed: Iterable[RecomputeModule] = ()
    ) -> Number:
        """Bytes kept for the backward if operations of the `replayed` modules run again in it."""
        modules = tuple(replayed)
        kept, _ = kept_and_replayed(operations, modules, self._listing)
        return sum(self._saved(op) for op in kept) + read_again_bytes(operations, modules)

    @property
    def _listing(self) -> Listing:
        """What checkpoints by operator list of this training."""
        recipe = self.device.recipe
        return Listing(recipe.listed, self.keeps_unread, recipe.itemsize)

    def replaying(
        self,
        plain: Cost,
        operations: Sequence[Operation],
        modules: Iterable[RecomputeModule] | None,
        saved_bytes: Number,
    ) -> Cost:
        """`plain`, the cost of `operations`, when those of `modules` (None: all of them) run again
        and `saved_bytes` are kept.
        """
        again = self.run_again(operations, modules)
        forward, replay = self._checkpointed(plain.forward, operations, again, modules)
        return replace(
            plain,
            forward=forward,
            replay=replay,
            replay_flops=sum(map(mean_flops_of, again)) + self._adapter_flops(again),
            saved_bytes=saved_bytes + 0.0 * plain.model_flops,
        )

    def _checkpointed(
        self,
        forward: Pass,
        operations: Sequence[Operation],
        again: Sequence[Operation],
        modules: Iterable[RecomputeModule] | None,
    ) -> tuple[Pass, Pass]:
        """The forward that a checkpoint wraps, and its replay, which runs `again`."""
        whole = len(again) == len(operations)
        ahead_s, replay_s = hooks_s(modules) if self.checkpoint_hooks else (0.0, 0.0)
        if not replay_s:
            if whole:
                return forward, forward
            return forward, self._pass(again, "forward", self._collectives(again))
        share = self.launches(operations) / maximum(self.launches(again), 1)
        passes = ((operations, ahead_s), (again, replay_s * share))
        ahead, replay = (
            self._pass(run, "forward", self._collectives(run), hook_s) for run, hook_s in passes
        )
        return replace(ahead, wrapped_s=ahead.room_s - forward.room_s), replay

    def run_again(
        self, operations: Sequence[Operation], modules: Iterable[RecomputeModule] | None
    ) -> Sequence[Operation]:
        """What of them a replay of `modules` (None: all) runs."""
        again = operations if modules is None else replayed_of(operations, modules, self._listing)
        return without_unread(again, self.lora) if self.drops_unread else again

    def _cost(self, operations: Sequence[Operation]) -> Cost:
        collectives = self._collectives(operations)
        return Cost(
            forward=self._pass(operations, "forward", collectives),
            input_grad=self._pass(operations, "input_grad", collectives),
            weight_grad=Pass() if self.lora else self._pass(operations, "weight_grad", ()),
            replay=Pass(),
            model_flops=self._model_flops(operations),
            full_model_flops=self._model_flops(operations, full=True),
            replay_flops=0.0,
            saved_bytes=0.0,
        )

    def _model_flops(self, operations: Sequence[Operation], *, full: bool = False) -> Number:
        """Forward, and twice that backward; once of a frozen product, whose weight has no gradient,
        and all of its adapter. Of the busiest expert rank those of the mean one.
        """
        forward = sum(mean_flops_of(op, full=full) for op in operations)
        frozen = [mean_flops_of(op) for op in operations if self.lora and isinstance(op, Matmul)]
        return 3 * (forward + self._adapter_flops(operations)) - sum(frozen)

    def _adapter_flops(self, operations: Sequence[Operation]) -> Number:
        return adapter_forward_flops(operations, self.lora) if self.lora else 0.0

    def _saved(self, op: Operation) -> Number:
        if self.lora and feeds_frozen_alone(op, self.lora, self.adapter_casts):
            return 0.0
        saved = op.saved_bytes * (self.device.recipe.saved_fraction if is_kept_cast(op) else 1.0)
        if self.lora and isinstance(op, Matmul):
            itemsize = self.device.recipe.itemsize
            saved = saved + kept_bytes(op, self.lora, self.adapter_casts, itemsize)
        return saved

    def _pass(
        self,
        operations: Sequence[Operation],
        direction: Direction,
        collectives: Sequence[Collective],
        hook_s: Number | None = None,
    ) -> Pass:
        """One direction of `operations`, in which the `collectives` among them run; where hooks are
        around them, the host takes `hook_s` longer for each kernel than it issues it.
        """
        working = operations
        if direction == "weight_grad":  # of matrix products alone
            working = [op for op in operations if isinstance(op, Matmul)]
        each_s = [device_s(self.device, op, direction) for op in working]
        own = self._computing(working, direction, each_s)
        waits = self._waits_s(operations, own.total_s)
        traffic = [self._traffic(each, direction, own) for each in collectives]
        shown: dict[Axis, Number] = dict.fromkeys(AXES, 0.0)
        for each in traffic:
            shown[each.axis] = shown[each.axis] + each.exposed_s
        exposed = {axis: waits.get(axis, 0.0) + seconds for axis, seconds in shown.items()}
        context_s = sum(exposed[axis] for axis in AXES if axis.startswith("cp"))
        busy = own.total_s + sum(exposed.values())
        under = 0.0 if self.launches_block else busy
        issued = [self._issue_s(op, direction) for op in working]
        if hook_s is not None:
            slowed_s = hook_s * self.cluster.host_slowdown
            issued = [
                own_s + slowed_s * self._launches(op, direction)
                for own_s, op in zip(issued, working, strict=True)
            ]
        host_s = maximum(self._with_routing_s(working, direction, sum(issued)) - under, 0.0)
        ahead = direction == "forward"
        if ahead and (chains := self._chains_s(operations, each_s, issued, traffic)):
            idle_s = (reduce(maximum, chains) - busy) * self._reads_counts
            host_s = maximum(host_s, idle_s)
        return Pass(
            matmul_s=own.matmul_s, attention_s=own.attention_s, pointwise_s=own.pointwise_s,
            host_s=host_s,
            tensor_s=exposed["tp"], context_s=context_s,
            expert_s=exposed["ep"] + exposed["etp"],
            more_room_s=more_room_s(exposed, traffic, self.groups, self.weights_leave, own.total_s),
        )  # fmt: skip

    def _computing(
        self, operations: Sequence[Operation], direction: Direction, each_s: Sequence[Computing]
    ) -> Computing:
        """The device's own seconds in one direction, of operations that take `each_s`."""
        matmul, attention, pointwise = summed(each_s)
        if direction == "weight_grad":
            pointwise = pointwise + sum(self._gradient_s(op) for op in operations)
        elif self.lora:
            backward = direction == "input_grad"
            pointwise = pointwise + beside_frozen_s(
                self.device, operations, self.lora, self.packed_bytes, self.adapter_casts,
                backward=backward,
            )  # fmt: skip
        return Computing(matmul, attention, pointwise)

    def _waits_s(self, operations: Sequence[Operation], computing_s: Number) -> dict[Axis, Number]:
        """Seconds that ranks wait for the slowest of those they meet, by axis."""
        met = {"tp", "cp", *(op.axis for op in operations if isinstance(op, Communication))}
        meeting = {axis: self.groups[axis] for axis in AXES if axis in met}
        return waits_s(self.cluster, meeting, computing_s)

    def _collectives(self, operations: Sequence[Operation]) -> list[Collective]:
        """The collectives among `operations`, priced once for both directions."""
        sent = [op for op in operations if isinstance(op, Communication)]
        under = (sending_s(self.device, op, operations) for op in sent)
        return list(map(Collective, sent, map(self._collective_s, sent), under))

    def chains_s(self, operations: Sequence[Operation]) -> list[Number]:
        """Seconds of the chains through host and device of which a forward pass takes the longest;
        none where the host does not wait (`expert_counts`).
        """
        if self._wait_at(operations) is None:
            return []
        each_s = [device_s(self.device, op, "forward") for op in operations]
        own = self._computing(operations, "forward", each_s)
        traffic = [self._traffic(each, "forward", own) for each in self._collectives(operations)]
        issued = [self._issue_s(op, "forward") for op in operations]
        return self._chains_s(operations, each_s, issued, traffic)

    def _gradient_s(self, op: Operation) -> Number:
        """Seconds of adding a weight's gradient to the gradient buffer, where that is a kernel."""
        if not (isinstance(op, Matmul) and self.gradient_bytes):
            return 0.0
        moved_bytes = self.gradient_bytes * op.k * op.n * op.groups * op.parts
        return pointwise_s(self.device, moved_bytes, 1, "gradient_add") * scale_of(self.device, op)

    def _traffic(self, each: Collective, direction: Direction, beside: Computing) -> Traffic:
        op, tuning = each.op, self.device.tuning
        count = count_of(op, direction)
        if self.lora and direction == "input_grad":
            count = count - op.regathers * feeds_frozen_alone(op, self.lora, self.adapter_casts)
        scale = tuning.expert_scale if "moe" in op.modules else tuning.collective_scale
        whole = scale * count * each.seconds
        overlap = self._overlap(op)
        if isinstance(overlap, float) and overlap == 0.0:
            return Traffic(op.axis, whole)
        slowed = interference_of(self.cluster, tuning.interference, self.groups[op.axis])
        seen = exposed_s(whole, room_s(each, beside, self.groups["cp"].size), overlap, slowed)
        return Traffic(op.axis, seen, whole - seen)

    def _collective_s(self, op: Communication) -> Number:
        single, all_sent = self.deduplicates, op.routing == ALL_SENT
        sent = (self.cluster, op.kind, op.size_bytes, self.groups[op.axis])
        if all_sent or not anywhere(single):
            return collective_s(*sent)
        once = collective_s(*sent, op.routing)
        return once if everywhere(single) else where(single, once, collective_s(*sent))

    def _overlap(self, op: Communication) -> Number:
        hides: dict[str, Number] = {
            "linear": self.overlap.tensor, "attention": self.overlap.context,
            "first_chunk": self.overlap.context_gather, "expert": self.expert_overlap,
        }  # fmt: skip
        return hides.get(op.hidden_by, 1.0 if op.hidden_by in SENDING else 0.0)
