"""What tensor parallelism by DTensor takes the host of eager PyTorch, beside plain tensors.

    python -m benchmarks.engine.dtensor_host [--rounds 7]

Eight ranks are faked (torch's fake process group: collectives return at once) and tensors are tiny,
so that the host alone is timed, in processor-seconds; the least of the rounds counts. First the
operators by class without gradients, then a dense layer under each plan of `dtensor_layer`, without
and with norms of queries and keys: forward and backward, what DTensors add to each, and the
collectives that they call.

On a GPU launches come on top of a plain operator, not of what DTensors add to it: the differences
carry over to another host as its processor is fast, ratios to plain operators do not.
"""

import argparse
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import process_time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import rms_norm
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.engine.dtensor_layer import HIDDEN, PLANS, TOKENS, layer_of

RANKS, CALLS = 8, 40

Call = Callable[[], object]


def least_us(call: Call, rounds: int) -> float:
    """Microseconds of the processor for a call: mean of `CALLS`, least of the rounds."""
    call()  # the first looks rules up that the others find
    return min(_mean_us(call) for _ in range(rounds))


def _mean_us(call: Call) -> float:
    began = process_time()
    for _ in range(CALLS):
        call()
    return (process_time() - began) / CALLS * 1e6


def operators(mesh: DeviceMesh) -> dict[str, tuple[Call, Call]]:
    """By class: on tensors, and on DTensors."""
    local, square, gain = (
        torch.randn(TOKENS, HIDDEN),
        torch.randn(HIDDEN, HIDDEN),
        torch.ones(HIDDEN),
    )
    parts, whole = DTensor.from_local(local, mesh, [Shard(0)]), distribute_tensor(local, mesh)
    columns, spread = distribute_tensor(square, mesh, [Shard(1)]), distribute_tensor(gain, mesh)
    linear, shared = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
    shared.weight = nn.Parameter(distribute_tensor(square, mesh, [Shard(0)]))
    return {
        "nn.Linear": (lambda: linear(local), lambda: shared(whole)),
        "product": (lambda: local @ square, lambda: whole @ columns),
        "sum": (lambda: local + local, lambda: parts + parts),
        "view": (lambda: local.view(-1, 1, HIDDEN), lambda: parts.view(-1, 1, HIDDEN)),
        "transpose": (lambda: local.transpose(0, 1), lambda: parts.transpose(0, 1)),
        "detach": (local.detach, parts.detach),
        "norm": (
            lambda: rms_norm(local, (HIDDEN,), gain),
            lambda: rms_norm(parts, (HIDDEN,), spread),
        ),
        "gather": (lambda: None, lambda: parts.redistribute(mesh, [Replicate()])),
        "from_local": (lambda: None, lambda: DTensor.from_local(local, mesh, [Shard(0)])),
        "to_local": (lambda: None, parts.to_local),
    }


def passes_of(plan: str, mesh: DeviceMesh, *, inner: bool) -> tuple[Call, Call]:
    """Forward alone, and forward with backward, of a layer under a plan."""
    layer, x, turn = layer_of(plan, mesh, inner=inner)
    return (lambda: layer(x, turn)), (lambda: layer(x, turn).sum().backward())


def collectives_of(call: Call) -> int:
    """How many a call makes."""
    with CommDebugMode() as seen:  # type: ignore[no-untyped-call]
        call()
    return int(seen.get_total_counts())


def print_operators(mesh: DeviceMesh, rounds: int) -> None:
    """Microseconds of each class."""
    print(f"{'operator':12}{'tensors us':>12}{'DTensors us':>13}")
    with torch.no_grad():
        for name, calls in operators(mesh).items():
            plain, spread = (least_us(call, rounds) for call in calls)
            print(f"{name:12}{plain:12.1f}{spread:13.1f}")


def print_layers(mesh: DeviceMesh, rounds: int, *, inner: bool) -> None:
    """Milliseconds of a layer, by plan."""
    print(f"\n{'with' if inner else 'without'} norms of queries and keys")
    print(f"{'plan':10}{'forward ms':>12}{'backward':>10}{'added':>8}{'added':>7}  collectives")
    own = (0.0, 0.0)
    for plan in PLANS:
        calls = passes_of(plan, mesh, inner=inner)
        forward, both = (least_us(call, rounds) / 1e3 for call in calls)
        taken = forward, both - forward
        own = taken if plan == "plain" else own
        sent, sent_both = map(collectives_of, calls)
        print(
            f"{plan:10}{taken[0]:12.2f}{taken[1]:10.2f}{taken[0] - own[0]:8.2f}"
            f"{taken[1] - own[1]:7.2f}  {sent} forward, {sent_both - sent} backward"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="DTensors' cost on the host")
    parser.add_argument("--rounds", type=int, default=7, help="of which the least counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    print(datetime.now(UTC).date(), f"torch {torch.__version__}", processor())
    print_operators(mesh, args.rounds)
    for inner in (False, True):
        print_layers(mesh, args.rounds, inner=inner)
    dist.destroy_process_group()


def processor() -> str:
    """Its name, family and model."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in said.items()}
    numbers = " ".join(f"{key} {named.get(key, '?')}" for key in ("cpu family", "model"))
    return f"{named.get('model name', platform.machine())}, {numbers}"


if __name__ == "__main__":
    main()
