"""How much of a GPU's memory a layout may fill: one rule for every command.

    of N GiB    what the GPU has: memory is shown beside it everywhere
    fits        what the profile lets a rank use (`Cluster.capacity_bytes`: as measured, or the GPU
                less 4 %), where as many runs failed as ran: beyond it a layout does not fit
    offered     what a plan may fill (`Cluster.fillable_bytes`): so little that it fits with the
                probability `FITS`, or what `--headroom` leaves. `plan` offers nothing beyond it

`explain` and `check` of a plan file take what the plan was allowed, also where `--headroom` allowed
it more than the profile does. A layout between the two limits fits, but less surely than a plan
would, which is said: `check` is a gate, and one that stopped every config that a plan would not
have offered would stop many that run.
"""

from meshplan.costmodels.units import format_bytes
from meshplan.hardware_profiles.errors.memory_needs import FITS, chances_of
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan


def with_usual_headroom(cluster: Cluster, engine: str) -> Cluster:
    """`cluster` with as much left free of each device as a plan leaves unless told: what the
    profile keeps, or what a layout that fills the rest needs to fit with a probability of `FITS`,
    if that is more. Where somebody told how much, that stays; no run says anything of a CPU's
    memory.
    """
    if cluster.plan_memory_bytes is not None or cluster.gpu.vendor == "cpu":
        return cluster
    safe_bytes = cluster.gpu.memory_bytes / chances_of(engine, cluster.gpu.name).room(FITS)
    return cluster if safe_bytes >= cluster.capacity_bytes else with_usable(cluster, safe_bytes)


def with_usable(cluster: Cluster, usable_bytes: float) -> Cluster:
    """`cluster` where a plan may fill so much of each device."""
    return cluster.model_copy(update={"plan_memory_bytes": usable_bytes})


def as_planned(cluster: Cluster, plan: Plan) -> Cluster:
    """`cluster` where a plan may fill what `plan` might, at most all of a GPU; an older file
    does not say.
    """
    filled = plan.prediction.plan_memory_bytes if plan.prediction else None
    if filled is None:
        return cluster
    return with_usable(cluster, min(filled, cluster.gpu.memory_bytes))


def limit_bytes(cluster: Cluster) -> float:
    """Beyond it a layout does not fit."""
    return max(cluster.capacity_bytes, cluster.fillable_bytes)


def limit_words(cluster: Cluster) -> str:
    """The same in words."""
    limit, whole = limit_bytes(cluster), cluster.gpu.memory_bytes
    return f"the {format_bytes(limit)} that a rank may use of {format_bytes(whole)}"


def lacking_words(over_bytes: float, cluster: Cluster) -> str:
    """Why `plan` does not offer a layout that needs `over_bytes` more than a plan may fill."""
    if over_bytes + cluster.fillable_bytes > limit_bytes(cluster):
        return f"does not fit, needs {format_bytes(over_bytes)} more than a plan may fill"
    return f"fills {format_bytes(over_bytes)} of what a plan leaves free"


def crowded_words(needed_bytes: float, cluster: Cluster) -> str:
    """That a layout does not fit, or that `plan` would not offer it; empty where it is neither."""
    over, lacks = needed_bytes - cluster.fillable_bytes, needed_bytes - limit_bytes(cluster)
    if lacks > 0:
        return f"does not fit: needs {format_bytes(lacks)} more than {limit_words(cluster)}"
    return f"{lacking_words(over, cluster)} (plan --headroom)" if over > 0 else ""
