"""What tensor parallelism by DTensor takes the host where nothing is compiled.

PyTorch looks up for each operator on DTensors what it does to their shards, and redistributes its
inputs and outputs in Python. A dense layer under tensor parallelism has four boundaries (into and
out of attention and feed-forward); what its plan adds to plain tensors is spread over them evenly.

Leaves out attention's own dispatch, the optimizer's (FSDP2 has DTensors with and without tensor
parallelism), and releases before PyTorch 2.10, which dispatch in Python alone (pytorch/pytorch pull
request 167051; without it and its neighbours a detach took 36 to 40 us instead of 24 to 26 on a
Skylake host, pull request 166371).
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
(`python -m benchmarks.engine.dtensor_host`); of "kept" with norms of queries and keys, which its
models have. They are taken as they are for other x86 hosts.
"""


def dispatched_s(plan: DTensorPlan, direction: Direction) -> float:
    """Of the host at one boundary."""
    if not plan or direction == "weight_grad":
        return 0.0
    return LAYER_S[plan][direction != "forward"] / BOUNDARIES
