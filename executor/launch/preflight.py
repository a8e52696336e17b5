"""What must hold before a plan is started, and what is worth saying although it does."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.units import format_bytes
from meshplan.executor.launch.probe import Found
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.local_cpu import free_memory_bytes
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, StageMemory

MEMORY_TOLERANCE = 0.05
RANKS_PER_CORE = 8
"""Most ranks of a plan for CPUs on each core: with more, ranks mostly wait for their turn, and the
memory of so many interpreters is what runs out.
"""


class CannotRun(ValueError):
    """A plan that this machine or job cannot run; one line with the values and a fix."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """How many ranks on how many hosts."""

    processes_per_node: int
    nodes: int


def place(plan: Plan, nodes: int, found: Found | None) -> RankPlacement:
    """Spread the plan's ranks over `nodes` hosts.

    found  this host's devices, None when the ranks run elsewhere (Slurm)

    Raises `CannotRun` when the ranks do not divide, or a host has too few GPUs.
    """
    ranks = plan.layout.world_size
    per_node, left = divmod(ranks, nodes)
    if left:
        raise CannotRun(f"{ranks} ranks ({plan.layout.label}) do not divide by {nodes} nodes")
    if found and found.device == "cuda" and per_node > found.devices:
        raise CannotRun(
            f"the plan needs {per_node} GPUs on this host, which has {found.devices}; "
            f"give --nodes {-(-ranks // found.devices)}, or make a plan with --gpus {found.devices}"
        )
    return RankPlacement(per_node, nodes)


def nodes_of(plan: Plan, priced_by: Cluster | None) -> int:
    """Hosts of the plan's ranks, where its profile says how many GPUs one has; else 1."""
    return -(-plan.layout.world_size // priced_by.gpus_per_node) if priced_by else 1


MOST_GPUS_OF_A_HOST = 8


def gpus_of_a_host(priced_by: Cluster | None) -> int:
    """GPUs that one launch command starts, by default: those of the plan's node, 8 where its
    profile is not here. A rack on one NVLink (72 in an NVL72) is many hosts: at most 8.
    """
    node = priced_by.gpus_per_node if priced_by else MOST_GPUS_OF_A_HOST
    return min(node, MOST_GPUS_OF_A_HOST)


_COUNTS = re.compile(r"(?:--(?:nodes|ntasks|ntasks-per-node)(?:=.*)?|-[Nn](?:=?\d.*)?)")
"""Options of sbatch that the job's own script states of its ranks."""


def sbatch_options(text: str, launcher: str) -> tuple[str, ...]:
    """The words of `--slurm`, as a shell reads them; raises `CannotRun`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise CannotRun(f"--slurm {text!r}: {error}; quote it as a shell would") from None
    if words and launcher != "slurm":
        raise CannotRun(f"--slurm {text!r} is of a job under Slurm; add --launcher slurm")
    if counted := next(filter(_COUNTS.fullmatch, words), None):
        raise CannotRun(
            f"--slurm {text!r}: {counted} is what the script says of its ranks; leave it out, "
            "--nodes of this command sets the hosts"
        )
    return words


def check_data(path: Path) -> None:
    """Raise `CannotRun` unless the tokens' file can be opened; its length each rank checks."""
    if path.exists() and not path.is_file():
        raise CannotRun(f"--data {path}: not a file; give a flat file of tokens")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise CannotRun(f"--data {path}: {error.strerror}; give a flat file of tokens") from None
    if empty:
        raise CannotRun(f"--data {path}: empty; give a flat file of tokens")
    if path.stat().st_size % 2:
        raise CannotRun(
            f"--data {path}: an odd number of bytes; its tokens must be numbers of 2 or 4 bytes "
            "(uint16 up to a vocabulary of 65536, else uint32)"
        )


def check_host(
    plan: Plan, placement: RankPlacement, found: Found, priced_by: Cluster | None
) -> None:
    """Raise `CannotRun` for a plan that this host cannot run: before anything is started.

    found  this host's devices as the plan would use them: its cores, for a plan made for CPUs
    """
    if found.device == "cpu":
        _check_made_for_cpus(plan, priced_by)
        most = RANKS_PER_CORE * found.devices
        if placement.processes_per_node > most:
            raise CannotRun(
                f"{placement.processes_per_node} ranks on a host of {found.devices} cores; at most "
                f"{RANKS_PER_CORE} for each core ({most}) are started: give --nodes, or --dry-run"
            )
    _check_memory(plan, placement, found)


def _check_made_for_cpus(plan: Plan, priced_by: Cluster | None) -> None:
    if priced_by and priced_by.gpu.vendor == "cpu":
        return
    made_for = (
        priced_by.gpu.title if priced_by
        else f"the profile {plan.cluster.name!r} (--cluster gives its file if it is of CPUs)"
    )  # fmt: skip
    ranks = plan.layout.world_size
    raise CannotRun(
        f"the plan is for {ranks} x {made_for}, and this host has no GPU: look at it with "
        "--dry-run, print its command with --print, or submit it with --launcher slurm"
    )


def _check_memory(plan: Plan, placement: RankPlacement, found: Found) -> None:
    """Compare what the ranks of this host need, as predicted, with what is free now."""
    if plan.prediction is None or not plan.prediction.memory:
        return
    stages = plan.prediction.memory
    if found.device == "cuda":
        needed, free = max(map(_resident, stages)), found.memory_bytes
        where = f"a rank needs {format_bytes(needed)} and {found.name} has {format_bytes(free)}"
    else:
        needed = placement.processes_per_node * sum(map(_resident, stages)) / len(stages)
        free = free_memory_bytes()
        where = (
            f"{placement.processes_per_node} ranks need {format_bytes(needed)} of this host, which "
            f"has {format_bytes(free)} free"
        )
    if needed > free:
        raise CannotRun(f"{where}: nothing was started; spread it with --nodes, or plan a smaller")


def _resident(stage: StageMemory) -> float:
    """Bytes that a rank of this stage takes: what its allocator reserves, and its context."""
    return stage.context + stage.reserved


def notices(
    plan: Plan, placement: RankPlacement, found: Found | None, cluster: Cluster | None
) -> list[str]:
    """What differs from what the plan was made for, one line each."""
    said = list(_of_cores(placement, found)) if found and found.device == "cpu" else []
    pinned = pinned_torch()
    if found and pinned and found.torch.split("+")[0] != pinned:
        said.append(f"torch {found.torch} is installed; the engine is tested with {pinned}")
    model = model_from_config(plan.model.config, plan.model.name)
    if plan.engine == NATIVE and any(kind.recurrent for kind in model.kinds):
        said.append(
            "the native engine scans recurrent layers in plain torch, without a fused kernel: "
            "steps take longer than predicted, on a GPU in more memory"
        )
    if cluster is None:
        said.append(f"profile {plan.cluster.name!r} is not at hand: give it with --cluster")
    elif cluster_hash(cluster) != plan.cluster.sha256:
        said.append(f"profile {cluster.name} is not the one that priced this plan; plan again")
    return [*said, *_of_gpu_memory(plan, found)]


def _of_cores(placement: RankPlacement, found: Found) -> Iterator[str]:
    processes, slower = placement.processes_per_node, "steps take longer than predicted"
    if processes > found.devices:
        yield f"{processes} processes share {found.devices} cores: {slower}"
    if found.load > found.devices / 4:
        yield f"other work is running (load {found.load:.1f} on {found.devices} cores): {slower}"


def _of_gpu_memory(plan: Plan, found: Found | None) -> Iterator[str]:
    if found and plan.prediction and found.device == "cuda":
        has, assumed = found.memory_bytes, plan.prediction.gpu_memory_bytes
        if abs(has / assumed - 1) > MEMORY_TOLERANCE:
            made_for = f"the plan was made for {format_bytes(assumed)}"
            yield f"{found.name} has {format_bytes(has)}; {made_for}"


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
