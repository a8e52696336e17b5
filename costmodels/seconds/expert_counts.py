"""The host's wait for how many rows its experts get, in a forward pass.

The splits of an exchange, and the sizes of the experts' products, are counted on the device. The
host has to read them before it can issue what follows, so once a layer it is not ahead of the
device. With the operations in the order that follows the wait (from the exchange through the
experts to the next layer's attention and router, and the next wait):

    H_j      seconds of the host until operation j is issued, from the wait on, reading included
    D_j      seconds of the device from operation j on
    forward = max over j of H_j + D_j

It is at least what the host issues (j the last) and what the device takes after the host's first
launch (j the first). It is longer than both where long kernels come behind many short ones. What a
CUDA graph holds costs the host nothing, but lies behind what is issued. Where the host never waits
(a backward pass, whose counts are known; a layer without experts), it runs ahead over many layers,
and the longer of both sums decides.

Source: Megatron-Core reads the counts before the exchange, and without one before the experts
(`cuda_sync_point`: NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/moe/token_dispatcher.py);
torchtitan before its exchange, and after HybridEP's where buffers have no fixed size
(pytorch/torchtitan@e04d67ef torchtitan/models/common/token_dispatcher.py). PyTorch's own grouped
product (torch._grouped_mm) takes its sizes on the device, so without an exchange nothing waits
there.
Leaves out: rows copied while the host reads, that libraries read behind their exchange, and what
the host's lead saves behind the last layer.
"""

from collections.abc import Sequence

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.operations.kinds import Operation

ROUTER, EXCHANGE = "router", "dispatch"


def wait_at(operations: Sequence[Operation]) -> int | None:
    """Before which of these the host reads the counts; None where it has none to read."""
    names = [op.name for op in operations]
    return names.index(EXCHANGE) if ROUTER in names and EXCHANGE in names else None


def in_step_s(issued: Sequence[Number], lasting: Sequence[Number], wait: int) -> list[Number]:
    """H_j + D_j of a layer's operations that take the host and the device so long each, where the
    host waits before number `wait`; the last operation first.
    """
    found: list[Number] = []
    ahead: Number = sum(issued)
    left: Number = 0.0
    for number in (*reversed(range(wait)), *reversed(range(wait, len(issued)))):
        left = left + lasting[number]
        found.append(ahead + left)
        ahead = ahead - issued[number]
    return found
