"""Where a profile was measured: devices, versions, clocks; what its numbers hold for."""

import datetime
import os
import platform
import shutil
import socket
import subprocess

import torch
import torch.distributed as dist

from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measured.matmul import Shape, product_call
from meshplan.executor.profile.record import Header
from meshplan.hardware_profiles.local_cpu import num_cores

CLOCKS = (
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "driver_version",
)
ANSWERS_WITHIN_S = 30.0


def device_name(device: torch.device) -> str:
    """The device as its driver names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {num_cores()} cores"


def header(bench: Bench, *, quick: bool) -> Header:
    """What the records of this run belong to; all ranks must call it."""
    hosts: list[str] = [socket.gethostname()]
    if bench.control is not None:
        gathered: list[str] = [""] * bench.world_size
        dist.all_gather_object(gathered, socket.gethostname(), group=bench.control)
        hosts = sorted(set(gathered))
    return Header(
        device=device_name(bench.device),
        hosts=tuple(hosts),
        world_size=bench.world_size,
        backend="nccl" if bench.is_cuda else "gloo",
        torch=torch.__version__,
        quick=quick,
    )


def conditions(bench: Bench, found: Header) -> dict[str, str]:
    """What a reader must know to compare this profile with another."""
    said = {
        "kind": "measured",  # `Kernels.is_measured`: the planner prices by its points
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": found.device,
        "hosts": f"{len(found.hosts)}: {', '.join(found.hosts[:8])}",
        "ranks": f"{bench.world_size}, {bench.ranks_per_node} per node, measuring at once",
        "torch": found.torch,
        "backend": found.backend,
    }
    if bench.is_cuda:
        said["cuda"] = str(torch.version.cuda or torch.version.hip)
        said["backend"] = "nccl " + ".".join(
            map(str, torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
        )
        said.update(clocks_under_load(bench))
    else:
        said["load"] = f"{os.getloadavg()[0]:.1f} processes running at the end, ours included"
        said["threads"] = f"{torch.get_num_threads()} per rank ({num_cores()} cores shared)"
    return said


def clocks_under_load(bench: Bench) -> dict[str, str]:
    """nvidia-smi's clocks, power and temperature while this GPU multiplies; empty without it."""
    if shutil.which("nvidia-smi") is None:
        return {}
    call = product_call(Shape(8192, 8192, 8192), "fp16", "TN", bench.device)
    one_s = bench.once_s(call)
    for _ in range(int(2.0 / one_s)):  # seconds of queued work, longer than nvidia-smi takes
        call()
    found = asked_clocks(str(torch.cuda.get_device_properties(bench.device).uuid))
    bench.synchronise()
    return found


def asked_clocks(uuid: str) -> dict[str, str]:
    """What nvidia-smi says of a GPU, or why it says nothing: no reason to lose what was measured.

    uuid  without its prefix
    """
    command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(CLOCKS)}",
               "--format=csv,noheader"]  # fmt: skip
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWERS_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        return {"nvidia-smi": f"no answer within {ANSWERS_WITHIN_S:g} s"}
    if answer.returncode:
        return {"nvidia-smi": answer.stderr.strip() or answer.stdout.strip()}
    values = (value.strip() for value in answer.stdout.strip().split(","))
    return {name.replace(".", "_"): value for name, value in zip(CLOCKS, values, strict=True)}
