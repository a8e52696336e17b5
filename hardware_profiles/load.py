"""A cluster however it is given: by a name, as a file, composed, or this machine."""

from pathlib import Path

from meshplan.hardware_profiles.built_in import (
    cluster_names,
    described_cluster,
    gpu_aliases,
    gpu_names,
    named_cluster,
    usual_cluster,
)
from meshplan.hardware_profiles.composed import COMPOSED, composed_cluster
from meshplan.hardware_profiles.files.profile_file import (
    OTHER_FORMATS,
    UnknownProfile,
    index,
    read_profile,
    resolve,
)
from meshplan.hardware_profiles.files.toml_io import write_toml
from meshplan.hardware_profiles.local_cpu import LOCAL_CPU
from meshplan.hardware_profiles.schema import Cluster


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A built-in cluster by name, a profile file by path, or this machine: `local-cpu[:PROCESSES]`.

    The name of a GPU stands for the cluster it is usually found in, and GPU:PER_NODE:NETWORK
    ("h100-sxm:8:400Gb" is a card of 400 Gb/s per GPU, "h100-sxm:4:8x400Gb" eight in a node) for one
    that is composed.

    A file that names its GPU (`gpu = "h100-sxm"`) gets our datasheet, and our kernels if it has
    none. Raises `UnknownProfile`.
    """
    text = str(name_or_path)
    if is_path(text) or isinstance(name_or_path, Path):
        return _in_bytes_per_s(described_cluster(read_profile(Path(text)), text), text)
    if text.split(":")[0] == LOCAL_CPU:
        return named_cluster(text)
    if ":" in text:
        return composed_cluster(text)
    aliases = index()["cluster_alias"]
    if text not in (*cluster_names(), *aliases) and text in (*gpu_names(), *gpu_aliases()):
        return usual_cluster(text)
    name = resolve(text, cluster_names(), aliases, "cluster")
    return named_cluster(name)


def is_path(text: str) -> bool:
    """Whether a cluster is given as a file."""
    return text.endswith((".toml", *OTHER_FORMATS)) or (
        "/" in text and not COMPOSED.fullmatch(text)
    )


LEAST_BYTES_PER_S = 1e6
"""Of any link: what lies below was written in Gb/s or GB/s."""


def _in_bytes_per_s(cluster: Cluster, where: str) -> Cluster:
    """`cluster`, unless a bandwidth of its file is in another unit; raises `UnknownProfile`."""
    for tier, link in (("node", cluster.node), ("network", cluster.network)):
        for name, rate in link.bus_bandwidth:
            if isinstance(rate, float) and rate < LEAST_BYTES_PER_S:
                raise UnknownProfile(
                    f"{where}: {tier}.bus_bandwidth.{name} is {rate:g} bytes/s; write bytes per "
                    "second: 2.5e10 for 200 Gb/s"
                )
    return cluster


def save_cluster(cluster: Cluster, path: Path) -> None:
    """Write `cluster` as a file that `load_cluster(path)` reads back equal. Raises `OSError`."""
    write_toml(cluster.model_dump(exclude_defaults=True), path)
