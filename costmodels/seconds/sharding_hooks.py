"""What Megatron-FSDP's hooks take the host, in Python, of a layer with W weights.

    forward    unit + W each: the layer's weights are gathered, viewed and marked
    backward   unit + W each: a hook behind each gradient puts it into its buffer and counts it, the
               last one of a bucket sends it; under ZeRO-3 weights are gathered and released

A norm's gain is a weight as a product's is, and an expert's as a layer's: Transformer Engine's
grouped product holds one for each local expert.

Leaves out what CUDA's streams, events and NCCL's calls take, and the unit around the ends.
"""

from collections.abc import Sequence

from meshplan.costmodels.elementwise import Condition, Number, where
from meshplan.costmodels.operations.kinds import Matmul, Operation, Pointwise
from meshplan.costmodels.seconds.operation import Direction
from meshplan.hardware_profiles.dataclass import dataclass

ENDS = ("attention_residual", "feed_forward_residual", "chains")
"""Each half of a layer ends with one of the first two, of which a layer has one half or both; a
traced layer has the last. No part that is replayed has any of them.
"""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Seconds of the host for a layer and for each of its weights, forward and backward; `present`:
    1 where they run, else 0.
    """

    present: Number
    unit_s: tuple[Number, Number]
    weight_s: tuple[Number, Number]

    def issued_s(
        self, operations: Sequence[Operation], direction: Direction, *, each_expert: bool
    ) -> Number:
        """Of `operations`; `each_expert`: whether every local expert has weights of its own."""
        backward = direction != "forward"
        weights = sum(_weights(op, direction, each_expert=each_expert) for op in operations)
        units = _layers(operations) if direction != "weight_grad" else 0
        return self.unit_s[backward] * units + self.weight_s[backward] * weights


NONE = Hooks(0, (0.0, 0.0), (0.0, 0.0))
STAGES = (
    Hooks(1, (42e-6, 44e-6), (3.4e-6, 27e-6)),
    Hooks(1, (47e-6, 137e-6), (2.7e-6, 28e-6)),
    Hooks(1, (179e-6, 246e-6), (14.3e-6, 48e-6)),
)
"""Of ZeRO-1, 2 and 3, by the lines through layers of 8 and of 40 weights: what they take longer
than the same without, in processor-seconds on an AMD EPYC (torch 2.13, two fake ranks, tiny
tensors, collectives that do nothing, 2026-11-29; NVIDIA/Megatron-LM@d98e8a64
megatron/core/distributed/fsdp: `python -m benchmarks.engine.fsdp_hooks SRC`).
"""


def hooks_of(zero_stage: Number, least: int) -> Hooks | None:
    """Of layouts of these stages, where Megatron-FSDP shards from stage `least` on; 0: nowhere."""
    if not least:
        return None
    found = NONE
    for stage, own in list(enumerate(STAGES, start=1))[least - 1 :]:
        found = _where(zero_stage >= stage, own, found)
    return found


def _where(condition: Condition, yes: Hooks, no: Hooks) -> Hooks:
    unit, weight = (
        (where(condition, new[0], old[0]), where(condition, new[1], old[1]))
        for new, old in ((yes.unit_s, no.unit_s), (yes.weight_s, no.weight_s))
    )
    return Hooks(where(condition, yes.present, no.present), unit, weight)


def _layers(operations: Sequence[Operation]) -> int:
    """How many whole layers are in a list."""
    return max(sum(op.name == end for op in operations) for end in ENDS)


def _weights(op: Operation, direction: Direction, *, each_expert: bool) -> Number:
    """Whose hooks run in this direction: a norm's gradient comes with its input's."""
    if isinstance(op, Matmul) and direction != "input_grad":
        return op.groups if each_expert and "experts" in op.modules else 1
    if isinstance(op, Pointwise) and "norm" in op.modules and direction != "weight_grad":
        return op.kernels
    return 0
