"""A plan as a SkyPilot task: machines of a cloud, on each of which torchrun is started.

The task brings the plan (and the tokens) to every node; each node keeps its ranks' records in its
own home, from where they are copied back.

Source: skypilot 0.14.1 (`sky/utils/schemas.py` the keys, `sky/utils/cluster_utils.py` the nodes'
names for ssh); docs.skypilot.co/en/stable, "Distributed Multi-Node Jobs" (the variables of a node)
and "GPUs and Accelerators" (their names).
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from meshplan.executor.launch.plain_yaml import plain_yaml
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.torchrun import TorchrunJob, shell_command

FILE = "skypilot.yaml"
KEYS = ("setup", "name", "infra", "accelerators", "image_id")
PORT = 29500
TOKENS = "tokens.bin"
ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "a100-40gb-sxm": ("A100",), "a100-40gb-pcie": ("A100",), "a100-80gb-pcie": ("A100-80GB",),
    "a100-80gb-sxm": ("A100-80GB-SXM", "A100-80GB"), "a10g": ("A10G",), "b200": ("B200",),
    "gh200": ("GH200",), "h100-nvl": ("H100-NVL",), "h100-sxm": ("H100", "H100-SXM"),
    "h200": ("H200",), "l4": ("L4",), "l40s": ("L40S",), "mi300x": ("MI300X",),
    "rtx-6000-ada": ("RTX6000-Ada",), "rtx-a6000": ("RTXA6000",), "v100-16gb": ("V100",),
    "v100-32gb": ("V100-32GB",),
}  # fmt: skip
"""Their names for a profile's GPU: each cloud has its own, and any of them will do."""


def task(
    job: TorchrunJob, given: Mapping[str, str], *, gpu: str | None, plan: Path, data: Path | None
) -> str:
    """The task file. The job's folder is `@run@`, which is a folder in the home of a node; `data`
    is brought there as `TOKENS`.

    given  `setup` (a command that installs meshplan with torch), `name`, `infra`, `accelerators`,
           `image_id`
    gpu    the profile's GPU; None for CPUs

    Raises `CannotRun` without `setup`, and for a GPU whose name there is not known here.
    """
    if "setup" not in given:
        raise CannotRun(
            "a new machine has no meshplan; give --set setup='...', a command that installs "
            "meshplan[torch] there"
        )
    name = given.get("name", "meshplan")
    files = {f"~/{name}.run/plan.yaml": str(plan)}
    if data is not None:
        files[f"~/{name}.run/{TOKENS}"] = str(data.resolve())
    document = {
        "name": name,
        "num_nodes": job.nodes,
        "resources": _resources(job, given, gpu),
        "file_mounts": files,
        "setup": given["setup"],
        "run": _run(job, name),
    }
    return plain_yaml(document)


def _resources(job: TorchrunJob, given: Mapping[str, str], gpu: str | None) -> dict[str, object]:
    each = job.processes_per_node
    said: dict[str, object] = {key: given[key] for key in ("infra", "image_id") if key in given}
    if "accelerators" in given:
        return {"accelerators": {given["accelerators"]: each}, **said}
    if gpu is None:
        return {"cpus": f"{each}+", **said}
    if gpu not in ACCELERATORS:
        raise CannotRun(
            f"SkyPilot's name of {gpu} is not known here; give --set accelerators=NAME "
            "(`sky show-gpus` lists them)"
        )
    return {"accelerators": dict.fromkeys(ACCELERATORS[gpu], each), **said}


def _run(job: TorchrunJob, name: str) -> str:
    """What each node runs."""
    command = shell_command(
        job, '"$RUN/logs"', endpoint=f'"$HEAD:{PORT}"', python="python3",
        is_first="$((SKYPILOT_NODE_RANK == 0))",
    )  # fmt: skip
    lines = (
        "set -eu",
        f'export RUN="$HOME/{name}.run"',
        *(f"export {key}={shlex.quote(value)}" for key, value in job.environment.items()),
        'HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        'mkdir -p "$RUN/ranks" "$RUN/logs"',
        f"exec {command}".replace("@run@", '"$RUN"'),
    )
    return "\n".join(lines) + "\n"


def next_commands(given: Mapping[str, str], file: Path, nodes: int) -> tuple[str, ...]:
    """The commands that start the task, and bring back what its ranks measured."""
    name = given.get("name", "meshplan")
    hosts = [name, *(f"{name}-worker{number}" for number in range(1, nodes))]
    copied = file.parent / "ranks"
    return (
        shlex.join(["sky", "launch", "-c", name, str(file)]),
        *(shlex.join(["rsync", "-r", f"{host}:{name}.run/ranks/", f"{copied}/"]) for host in hosts),
    )
