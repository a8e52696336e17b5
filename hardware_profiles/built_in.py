"""The profiles that come with the package, by name: exact, or an error that lists what is close.

A measured file may say `based_on = "h100-sxm"`: everything it does not state itself is taken over
from that part, rates scaled by the ratio of the datasheet peaks.
"""

from functools import cache
from typing import Any

from meshplan.hardware_profiles.files.profile_file import (
    HERE,
    UnknownProfile,
    index,
    names,
    read_profile,
    resolve,
    validated,
)
from meshplan.hardware_profiles.local_cpu import LOCAL_CPU, detect_cpu, local_cluster, num_cores
from meshplan.hardware_profiles.network_schema import Link
from meshplan.hardware_profiles.schema import Cluster, Gpu, Kernels


def gpu_names() -> tuple[str, ...]:
    """Names that `load_gpu` knows, without their aliases."""
    return tuple(sorted({*names("gpus"), "cpu"}))


def cluster_names() -> tuple[str, ...]:
    """Names that `load_cluster` knows, without their aliases."""
    return names("clusters")


def gpu_aliases() -> dict[str, str]:
    """Other names of GPUs (those of published runs among them), each with ours."""
    return dict(index()["gpu_alias"])


def load_gpu(name: str) -> Gpu:
    """The datasheet of `name` or of what it is an alias of; "cpu" is the machine this runs on.

    Raises `UnknownProfile`.
    """
    name = resolve(name, gpu_names(), index()["gpu_alias"], "GPU")
    if name == "cpu":
        return detect_cpu(processes=num_cores())
    return _datasheet(name)


@cache
def _datasheet(name: str) -> Gpu:
    return validated(Gpu, read_profile(HERE / "gpus" / f"{name}.toml"), f"gpus/{name}.toml")


def load_kernels(gpu_name: str) -> Kernels:
    """What was measured (or published) about kernels on `gpu_name`. Raises `UnknownProfile`."""
    return _measured(resolve(gpu_name, gpu_names(), index()["gpu_alias"], "GPU"))


@cache
def _measured(gpu_name: str) -> Kernels:
    return validated(Kernels, _kernels_document(gpu_name), f"measured/{gpu_name}.toml")


def _kernels_document(gpu_name: str) -> dict[str, Any]:
    path = HERE / "measured" / f"{gpu_name}.toml"
    if not path.exists():
        known = ", ".join(names("measured"))
        raise UnknownProfile(f"nothing measured for {gpu_name!r}; measured: {known}")
    own = read_profile(path)
    base_name = own.pop("based_on", None)
    if base_name is None:
        return own
    base = _scaled(_kernels_document(base_name), load_gpu(base_name), load_gpu(gpu_name))
    sources = {key: f"as {base_name}: {text}" for key, text in base["sources"].items()}
    conditions = {key: f"as {base_name}: {text}" for key, text in base["conditions"].items()}
    return {
        **base,
        **own,
        "sources": {**sources, **own.get("sources", {})},
        "conditions": {**conditions, **own.get("conditions", {})},
    }


def _scaled(document: dict[str, Any], base: Gpu, target: Gpu) -> dict[str, Any]:
    """`document` with rates scaled from the peaks of `base` to those of `target`."""

    def scaled(point: dict[str, Any]) -> dict[str, Any]:
        ratio = target.peak_flops_per_s[point["dtype"]] / base.peak_flops_per_s[point["dtype"]]
        return {**point, "flops_per_s": float(point["flops_per_s"]) * ratio}

    points = {
        key: [scaled(p) for p in document.get(key, []) if p["dtype"] in target.peak_flops_per_s]
        for key in ("matmul_points", "attention_points")
    }
    known = {
        key: {d: v for d, v in document.get(key, {}).items() if d in target.peak_flops_per_s}
        for key in ("matmul_efficiency", "grouped_efficiency")
    }
    absolute = ("burst_flops_per_s", "pointwise_bytes_per_s")
    kept = {key: value for key, value in document.items() if key not in absolute}
    return {**kept, **points, **known, "gpu": target.name}


def named_cluster(name: str) -> Cluster:
    """The cluster of that name, which is no alias; or this machine, as `local-cpu[:PROCESSES]`.

    Raises `UnknownProfile`.
    """
    return _this_machine(name) if name.split(":")[0] == LOCAL_CPU else _built_in(name)


def _this_machine(text: str) -> Cluster:
    _, _, count = text.partition(":")
    if count and not (count.isdigit() and int(count) > 0):
        raise UnknownProfile(f"{text!r}: processes must be a positive number, as in {LOCAL_CPU}:4")
    document = read_profile(HERE / "clusters" / f"{LOCAL_CPU}.toml")
    document["kernels"] = load_kernels("cpu")
    return validated(Cluster, local_cluster(document, int(count) if count else num_cores()), text)


@cache
def _built_in(name: str) -> Cluster:
    return described_cluster(
        read_profile(HERE / "clusters" / f"{name}.toml"), f"clusters/{name}.toml"
    )


def described_cluster(document: dict[str, Any], where: str) -> Cluster:
    """The cluster of a document, which may name its GPU and its links. Raises `UnknownProfile`."""
    gpu = document.get("gpu")
    if isinstance(gpu, str):
        document["gpu"] = load_gpu(gpu)
        document.setdefault("kernels", load_kernels(gpu))
    node = document.get("node")
    if isinstance(node, dict) and (link := node.pop("measured_as", None)):
        node["collective_fits"] = _collectives_on(str(link))
    return validated(Cluster, document, where)


def _collectives_on(link: str) -> list[dict[str, Any]]:
    """What collectives took on one kind of link. Raises `UnknownProfile`."""
    name = resolve(link, names("links"), {}, "link")
    fits: list[dict[str, Any]] = read_profile(HERE / "links" / f"{name}.toml")["collective_fits"]
    return fits


@cache
def usual_cluster(gpu: str, gpus_per_node: int = 1) -> Cluster:
    """The cluster whose nodes a GPU is usually found in; one of nodes that several share, with the
    GPU as it is there, where the usual ones hold one; with the links of a board of four, where
    nodes of four have such a board. Raises `UnknownProfile`.
    """
    name = resolve(gpu, gpu_names(), index()["gpu_alias"], "GPU")
    if gpus_per_node > 1 and name in index()["shared_node_of"]:
        return named_cluster(index()["shared_node_of"][name])
    cluster = named_cluster(index()["node_of"][name])
    node = _board_of_four(name) if gpus_per_node == 4 else None
    return cluster.model_copy(update={
        "gpu": load_gpu(name), "kernels": load_kernels(name), "node": node or cluster.node,
    })  # fmt: skip


def _board_of_four(gpu: str) -> Link | None:
    """The links of a board where each of four GPUs is wired to the other three, if `gpu` comes on
    one.
    """
    name = index()["board_of_four"].get(gpu)
    return named_cluster(name).node.model_copy(update={"meshed": 4}) if name else None
