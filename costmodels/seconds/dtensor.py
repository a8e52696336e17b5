"""What tensor parallelism by DTensor takes the host where nothing is compiled.

PyTorch looks up for each operator on DTensors what it does to their shards, and redistributes its
inputs and outputs in Python. A dense layer under tensor parallelism has four boundaries (into and
out of attention and feed-forward); what its plan adds to plain tensors is spread over them evenly.

Leaves out attention's own dispatch, the optimizer's (FSDP2 has DTensors with and without tensor
parallelism), routers and experts, and what NCCL's calls take the host.
"""

from meshplan.costmodels.seconds.operation import Direction
from meshplan.hardware_profiles.kernel_habits import DTensorPlan

BOUNDARIES = 4
LAYER_S: dict[DTensorPlan, tuple[float, float]] = {
    "columns": (1.8e-3, 2.9e-3),
    "sequence": (3.2e-3, 4.8e-3),
    "prepared": (2.4e-3, 3.8e-3),
    "kept": (3.1e-3, 4.8e-3),
}
"""By which a plan makes the host's forward and backward of a dense layer longer: processor-seconds
with torch 2.13 and collectives that do nothing on an AMD EPYC (Zen 4), 2026-11-28
(`python -m benchmarks.engine.dtensor_host`); of "kept" with norms of queries and keys, as Qwen3 has
them: Llama under torchtitan 0.3, without, takes a tenth less forward and a fifth less backward (one
run on a busier machine), which is not counted. With torch 2.9.1, before dispatch in C++, operators
take twice and gathers half as long, plans 0.84 to 1.18 times. Other x86 hosts are taken to be as
fast: a detach takes torch 2.9.1 40 us there, and took 36 to 40 on a Skylake (pytorch/pytorch pull
request 166371, before it).
"""


def dispatched_s(plan: DTensorPlan, direction: Direction) -> float:
    """Of the host at one boundary."""
    if not plan or direction == "weight_grad":
        return 0.0
    return LAYER_S[plan][direction != "forward"] / BOUNDARIES
