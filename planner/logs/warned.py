"""What a log says itself of why its steps take long.

Sources: NVIDIA/nccl `src/plugin/net.cc` ("Using network Socket"), `src/misc/param.cc` ("set by
environment to"); deepspeedai/DeepSpeed@edaa7221 `deepspeed/runtime/zero/stage3.py` and
pytorch/torchtitan@b5bcd76 `torchtitan/components/metrics.py` (the allocator's retries).
"""

import re

OVER_SOCKETS = "NCCL says that it goes between nodes over TCP sockets, not RDMA"
_SAID = {
    OVER_SOCKETS: re.compile(r"\bNCCL INFO Using network Socket\b"),
    "NCCL says that peer-to-peer copies between GPUs are switched off": re.compile(
        r"\bNCCL_P2P_DISABLE set by environment to 1\b"
    ),
    "the allocator had to give memory back and take it anew, for which a step waits: less memory "
    "would be faster": re.compile(
        r"\b\d{1,9} pytorch allocator cache flushes since last step\b|"
        r"\b\d{1,9} [A-Z]{2,9} memory allocation retries\."
    ),
}


def warned(text: str) -> tuple[str, ...]:
    """One line for each."""
    return tuple(said for said, pattern in _SAID.items() if pattern.search(text))
