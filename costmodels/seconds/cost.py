"""What operations cost a rank: seconds of each direction by cause, FLOPs, saved bytes; they add."""

from typing import NamedTuple

from meshplan.costmodels.elementwise import Adds, Number
from meshplan.costmodels.operations.kinds import Communication
from meshplan.hardware_profiles.dataclass import dataclass


class Collective(NamedTuple):
    """A collective, the seconds of one of it, and of the product whose kernel sends it, if any."""

    op: Communication
    seconds: Number
    product_s: Number = 0.0


class Computing(NamedTuple):
    """Seconds in which the device computes in one direction, by kind of kernel."""

    matmul_s: Number
    attention_s: Number
    pointwise_s: Number

    @property
    def total_s(self) -> Number:
        """All of them."""
        return self.matmul_s + self.attention_s + self.pointwise_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Adds):
    """Seconds of one direction, by cause; adds, and `total_s` is their sum.

    host_s       what the host adds because it cannot issue kernels fast enough
    offload_s    copies to and from its memory that nothing hides
    more_room_s  by how much the traffic of weights has its links longer than the device computes,
                 less than 0 where others have them meanwhile (`shared_links`): no part of the sum
    wrapped_s    of `host_s`, by how much a checkpoint makes a forward longer: no part of the sum
    """

    matmul_s: Number = 0.0
    attention_s: Number = 0.0
    pointwise_s: Number = 0.0
    tensor_s: Number = 0.0
    context_s: Number = 0.0
    expert_s: Number = 0.0
    data_s: Number = 0.0
    host_s: Number = 0.0
    offload_s: Number = 0.0
    more_room_s: Number = 0.0
    wrapped_s: Number = 0.0

    @property
    def compute_s(self) -> Number:
        """Seconds that the device computes or waits for its host."""
        return self.matmul_s + self.attention_s + self.pointwise_s + self.host_s

    @property
    def room_s(self) -> Number:
        """Seconds under which the traffic of weights may hide."""
        return self.compute_s + self.more_room_s

    @property
    def once_room_s(self) -> Number:
        """Seconds under which traffic that comes once per step may hide: no more of them where a
        checkpoint makes the pass longer, as the search takes forwards to hide as much of it
        whatever recomputes.
        """
        return self.room_s - self.wrapped_s

    @property
    def exposed_s(self) -> Number:
        """Seconds that the device waits for communication."""
        return self.tensor_s + self.context_s + self.expert_s + self.data_s + self.offload_s

    @property
    def total_s(self) -> Number:
        """Computing and exposed communication."""
        return self.compute_s + self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Adds):
    """What a list of operations costs one rank and micro-batch; adds.

    model_flops       forward and backward without replay, causal attention
    full_model_flops  the same with attention counted without the causal mask
    replay_flops      executed on top by recompute
    saved_bytes       kept until the backward
    """

    forward: Pass
    input_grad: Pass
    weight_grad: Pass
    replay: Pass
    model_flops: Number
    full_model_flops: Number
    replay_flops: Number
    saved_bytes: Number

    @property
    def backward_s(self) -> Number:
        """Replay, input and weight gradients."""
        return self.replay.total_s + self.input_grad.total_s + self.weight_grad.total_s

    @property
    def backward_room_s(self) -> Number:
        """Seconds of the backward under which the traffic of weights may hide."""
        return self.replay.room_s + self.input_grad.room_s + self.weight_grad.room_s

    @property
    def total_s(self) -> Number:
        """Forward and backward of one micro-batch."""
        return self.forward.total_s + self.backward_s


NOTHING = Cost(
    forward=Pass(), input_grad=Pass(), weight_grad=Pass(), replay=Pass(),
    model_flops=0.0, full_model_flops=0.0, replay_flops=0.0, saved_bytes=0.0,
)  # fmt: skip
