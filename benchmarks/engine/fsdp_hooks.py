"""What Megatron-FSDP's hooks take the host of a layer, beside the same layer without them.

    python -m benchmarks.engine.fsdp_hooks SRC [--rounds 200]

`SRC` is the folder megatron/core/distributed/fsdp/src of NVIDIA/Megatron-LM. Two ranks are faked
(torch's fake process group: collectives return at once), CUDA's streams and events do nothing, and
weights are tiny, so that the host alone is timed; the least of the rounds counts. A layer is a unit
of so many products with one weight each. Printed in microseconds: what a layer takes longer forward
and backward, with few and with many weights, and the line through both (`sharding_hooks.STAGES`).
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from time import process_time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

STRATEGIES = ("optim", "optim_grads", "optim_grads_params")
LAYERS, FEW, MANY = 12, 8, 40


class Idle:
    """A stream or an event of CUDA's on a machine without one."""

    def __init__(self, *_: object, **__: object) -> None:
        self.priority = 0

    def __getattr__(self, name: str) -> Callable[..., "Idle"]:
        return lambda *_, **__: self


@contextmanager
def _beside(_: Idle) -> Iterator[None]:
    yield


class Weight(nn.Module):
    """A product with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of its weight's first row."""
        return x * self.weight[0]


class Layer(nn.Sequential):
    """So many of them, a unit of Megatron-FSDP's."""

    def __init__(self, weights: int) -> None:
        super().__init__(*(Weight() for _ in range(weights)))


def stub_cuda() -> None:
    """Lets code that asks for streams and events run without a GPU."""
    idle = Idle()
    for name, stand_in in {
        "Stream": Idle, "Event": Idle, "stream": _beside, "current_stream": lambda *_: idle,
        "current_device": lambda: 0, "synchronize": lambda *_: None, "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, stand_in)


def least_us(model: nn.Module, rounds: int) -> tuple[float, float]:
    """Microseconds of a layer forward and backward, the least of the rounds."""
    found = [_once(model) for _ in range(rounds)]
    forward, backward = (min(each) / LAYERS * 1e6 for each in zip(*found, strict=True))
    return forward, backward


def _once(model: nn.Module) -> tuple[float, float]:
    x = torch.randn(4, 16, requires_grad=True)
    began = process_time()
    y = model(x).sum()
    turned = process_time()
    y.backward()
    return turned - began, process_time() - turned


def added_us(strategy: str, weights: int, rounds: int) -> tuple[float, float]:
    """What a layer of so many weights takes longer under a strategy, forward and backward."""
    plain, sharded = (nn.Sequential(*(Layer(weights) for _ in range(LAYERS))) for _ in range(2))
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("fsdp", "tp"))
    wrapped = import_module("megatron_fsdp.fully_shard").fully_shard_model(
        sharded, device_mesh=mesh, dp_shard_dim="fsdp", tp_dim="tp", fsdp_unit_modules=[Layer],
        zero_dp_strategy=strategy, device=torch.device("cpu"), sync_model_each_microbatch=False,
    )  # fmt: skip
    without, with_hooks = least_us(plain, rounds), least_us(wrapped, rounds)
    return with_hooks[0] - without[0], with_hooks[1] - without[1]


def main() -> None:
    """Prints a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src")
    parser.add_argument("--rounds", type=int, default=200)
    asked = parser.parse_args()
    sys.path.insert(0, asked.src)
    torch.set_num_threads(1)
    stub_cuda()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    print(f"torch {torch.__version__}, {platform.processor()}, {datetime.now(UTC):%Y-%m-%d}")
    print("strategy | pass | 8 weights | 40 weights | unit | each weight")
    for strategy in STRATEGIES:
        few, many = (added_us(strategy, weights, asked.rounds) for weights in (FEW, MANY))
        for name, low, high in zip(("forward", "backward"), few, many, strict=True):
            each = (high - low) / (MANY - FEW)
            line = f"{low:.0f} | {high:.0f} | {low - FEW * each:.0f} | {each:.1f}"
            print(f"{strategy} | {name} | {line}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
