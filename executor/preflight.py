"""What must hold before a plan is started, and what is worth saying although it does."""

import re
from dataclasses import dataclass
from importlib.metadata import requires

from costmodels.units import format_bytes
from executor.probe import Found
from hardware_profiles.load import UnknownProfile, cluster_hash, load_cluster
from hardware_profiles.schema import Cluster
from planner.plan import Plan

MEMORY_TOLERANCE = 0.05


class CannotRun(ValueError):
    """A plan that this machine or job cannot run; one line with the values and a fix."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How many ranks on how many hosts."""

    processes_per_node: int
    nodes: int


def place(plan: Plan, nodes: int, found: Found | None) -> Placement:
    """Spread the plan's ranks over `nodes` hosts.

    found  this host's devices, None when the ranks run elsewhere (Slurm)

    Raises `CannotRun` when the ranks do not divide, or a host has too few GPUs.
    """
    ranks = plan.layout.world_size
    per_node, left = divmod(ranks, nodes)
    if left:
        raise CannotRun(f"{ranks} ranks ({label(plan)}) do not divide by {nodes} nodes")
    if found and found.device == "cuda" and per_node > found.devices:
        raise CannotRun(
            f"the plan needs {per_node} GPUs on this host, which has {found.devices}; "
            f"give --nodes {-(-ranks // found.devices)}, or make a plan with --gpus {found.devices}"
        )
    return Placement(per_node, nodes)


def label(plan: Plan) -> str:
    """The layout's short name."""
    return plan.layout.label


def notices(
    plan: Plan, placement: Placement, found: Found | None, cluster: Cluster | None
) -> list[str]:
    """What differs from what the plan was made for, one line each."""
    said = []
    if found and found.device == "cpu" and placement.processes_per_node > found.devices:
        said.append(
            f"{placement.processes_per_node} processes share {found.devices} cores: "
            "steps take longer than predicted"
        )
    if found and found.device == "cpu" and found.load > found.devices / 4:
        said.append(
            f"other work is running (load {found.load:.1f} on {found.devices} cores): "
            "steps take longer than predicted"
        )
    pinned = pinned_torch()
    if found and pinned and found.torch.split("+")[0] != pinned:
        said.append(f"torch {found.torch} is installed; the engine is tested with {pinned}")
    if cluster is None:
        said.append(f"profile {plan.cluster.name!r} is not at hand: give it with --cluster")
    elif cluster_hash(cluster) != plan.cluster.sha256:
        said.append(f"profile {cluster.name} is not the one that priced this plan; plan again")
    if found and plan.prediction and found.device == "cuda":
        assumed = plan.prediction.gpu_memory_bytes
        if abs(found.memory_bytes / assumed - 1) > MEMORY_TOLERANCE:
            said.append(
                f"{found.name} has {format_bytes(found.memory_bytes)}; the plan was made for "
                f"{format_bytes(assumed)}"
            )
    return said


def pinned_torch() -> str | None:
    """The torch version that this distribution asks for, None when it does not pin one."""
    for requirement in requires("meshplan") or ():
        match = re.match(r"torch==([\d.]+)", requirement)
        if match:
            return match[1]
    return None


def profile_of(plan: Plan, given: str | None) -> Cluster | None:
    """The profile in `given`, else the built-in one that the plan names, None if there is none.

    Raises `UnknownProfile` for a `given` one that cannot be read.
    """
    if given is not None:
        return load_cluster(given)
    try:
        return load_cluster(plan.cluster.name)
    except UnknownProfile:
        return None
