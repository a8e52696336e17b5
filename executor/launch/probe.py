"""What accelerators a host has, asked of torch in a process of its own.

`python -m meshplan.executor.launch.probe` prints a `Found` as JSON.
"""

import importlib.util
import os
import socket
import subprocess
import sys
from typing import Literal, Self

from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.local_cpu import memory_bytes, num_cores


class NoTorch(ValueError):
    """torch is not installed; one line that says how to install it."""


class Found(Frozen):
    """One host as torch sees it.

    devices       accelerators; on a host without, its cores, each of which can be a rank
    memory_bytes  of one accelerator; of the whole host where there is none
    load          processes that were running, of others
    """

    host: str
    device: Literal["cuda", "cpu"]
    devices: int
    name: str
    memory_bytes: float
    torch: str
    cuda: str | None = None
    load: float = 0.0

    def as_cpu(self) -> Self:
        """The same host without its GPUs, for a plan that is made for its cores."""
        cores = {"device": "cpu", "devices": num_cores(), "name": "cpu", "cuda": None}
        return self.model_copy(update={**cores, "memory_bytes": memory_bytes()})


def check_torch() -> None:
    """Raise `NoTorch` where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise NoTorch("torch is not installed; install it with: pip install 'meshplan[torch]'")


def find_hardware() -> Found:
    """The accelerators of this host. Raises `NoTorch`."""
    check_torch()
    answer = subprocess.run(
        [sys.executable, "-m", "meshplan.executor.launch.probe"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        said = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise NoTorch(f"torch does not start: {said[-1]}")
    return Found.model_validate_json(answer.stdout)


def look() -> Found:
    """The accelerators of this host; imports torch."""
    import torch

    host = socket.gethostname()
    if not torch.cuda.is_available():
        return Found(
            host=host,
            device="cpu",
            devices=num_cores(),
            name="cpu",
            memory_bytes=memory_bytes(),
            torch=torch.__version__,
            load=os.getloadavg()[0],
        )
    return Found(
        host=host,
        device="cuda",
        devices=torch.cuda.device_count(),
        name=torch.cuda.get_device_name(0),
        memory_bytes=torch.cuda.get_device_properties(0).total_memory,
        torch=torch.__version__,
        cuda=torch.version.cuda or torch.version.hip,
    )


if __name__ == "__main__":
    print(look().model_dump_json())
