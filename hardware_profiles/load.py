"""Profiles by name: exact, or an error that lists what is close; never a guess.

    gpus/NAME.toml      the datasheet of one accelerator            Gpu
    measured/NAME.toml  how close kernels come to it                Kernels
    clusters/NAME.toml  the links of one kind of machine            Cluster, its `gpu` by name
    links/NAME.toml     collectives on one kind of link in a node   `measured_as` of a `node`
    index.toml          other names, and whose node a GPU sits in

A measured file may say `based_on = "h100-sxm"`: everything it does not state itself is taken over
from that part, rates scaled by the ratio of the datasheet peaks.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from meshplan.hardware_profiles.local_cpu import LOCAL_CPU, detect_cpu, local_cluster, num_cores
from meshplan.hardware_profiles.names import near_names
from meshplan.hardware_profiles.network_schema import BusBandwidth, Link
from meshplan.hardware_profiles.schema import Cluster, Gpu, Kernels
from meshplan.hardware_profiles.toml_io import read_toml, write_toml

HERE = Path(__file__).parent
Model = TypeVar("Model", bound=BaseModel)


class UnknownProfile(ValueError):
    """No profile of that name, or no readable profile file: one line that says what to do."""


@cache
def _index() -> dict[str, dict[str, str]]:
    return read_toml(HERE / "index.toml")


@cache
def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (HERE / folder).glob("*.toml")))


def gpu_names() -> tuple[str, ...]:
    """Names that `load_gpu` knows, without their aliases."""
    return tuple(sorted({*_names("gpus"), "cpu"}))


def cluster_names() -> tuple[str, ...]:
    """Names that `load_cluster` knows, without their aliases."""
    return _names("clusters")


def gpu_aliases() -> dict[str, str]:
    """Other names of GPUs (those of published runs among them), each with ours."""
    return dict(_index()["gpu_alias"])


def _resolve(name: str, known: tuple[str, ...], aliases: dict[str, str], what: str) -> str:
    if name in known:
        return name
    if name in aliases:
        return aliases[name]
    raise unknown(name, (*known, *aliases), what)


def unknown(name: str, known: Iterable[str], what: str) -> UnknownProfile:
    """The error for a `name` that is no `what`, with the closest of the `known` ones."""
    known = tuple(known)
    close = near_names(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UnknownProfile(f"no {what} called {name!r}; {hint} (`meshplan profiles` lists all)")


def _read(path: Path) -> dict[str, Any]:
    try:
        if not (document := read_toml(path)):
            raise ValueError("it is empty")
        return document
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        if path.suffix in OTHER_FORMATS and path.is_file():
            reason = f"a profile is TOML (`meshplan profile` writes it), not {path.suffix}"
        elif isinstance(error, UnicodeDecodeError):
            reason = "not UTF-8 text"
        raise UnknownProfile(f"{path}: cannot be read as a profile: {reason}") from error


def _validate(model: type[Model], document: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise UnknownProfile(f"{where}: {first_fault(error, model.__name__)}") from error


def first_fault(error: ValidationError, whole: str) -> str:
    """The fault that a reader should hear of first, in one line; `whole` names the document.

    An unknown key is most often a slip of the pen, and the cause of a missing one.
    """
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    field, shown = ".".join(map(str, first["loc"])) or whole, repr(first["input"])
    fault = "no such field" if first["type"] == "extra_forbidden" else first["msg"]
    fault = fault.removeprefix("Value error, ")  # pydantic's, before what we say ourselves
    got = f" (got {shown})" if len(shown) <= SHOWN_INPUT else ""
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field}: {fault}{got}{more}"


SHOWN_INPUT = 60


def load_gpu(name: str) -> Gpu:
    """The datasheet of `name` or of what it is an alias of; "cpu" is the machine this runs on.

    Raises `UnknownProfile`.
    """
    name = _resolve(name, gpu_names(), _index()["gpu_alias"], "GPU")
    if name == "cpu":
        return detect_cpu(processes=num_cores())
    return _datasheet(name)


@cache
def _datasheet(name: str) -> Gpu:
    return _validate(Gpu, _read(HERE / "gpus" / f"{name}.toml"), f"gpus/{name}.toml")


def load_kernels(gpu_name: str) -> Kernels:
    """What was measured (or published) about kernels on `gpu_name`. Raises `UnknownProfile`."""
    return _measured(_resolve(gpu_name, gpu_names(), _index()["gpu_alias"], "GPU"))


@cache
def _measured(gpu_name: str) -> Kernels:
    return _validate(Kernels, _kernels_document(gpu_name), f"measured/{gpu_name}.toml")


def _kernels_document(gpu_name: str) -> dict[str, Any]:
    path = HERE / "measured" / f"{gpu_name}.toml"
    if not path.exists():
        known = ", ".join(_names("measured"))
        raise UnknownProfile(f"nothing measured for {gpu_name!r}; measured: {known}")
    own = _read(path)
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


COMPOSED = re.compile(r"[^:/]+:\d+:.+")  # GPU:PER_NODE:NETWORK
NETWORK = re.compile(r"(?:([1-9]\d{0,2})x)?(\d+(?:\.\d+)?)G([bB])(?:/s)?")


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
        return _in_bytes_per_s(_cluster(_read(Path(text)), text), text)
    if text.split(":")[0] == LOCAL_CPU:
        return _local(text)
    if ":" in text:
        return _composed(text)
    aliases = _index()["cluster_alias"]
    if text not in (*cluster_names(), *aliases) and text in (*gpu_names(), *gpu_aliases()):
        return usual_cluster(text)
    name = _resolve(text, cluster_names(), aliases, "cluster")
    return _built_in(name)


OTHER_FORMATS = (".yaml", ".yml", ".json")


def is_path(text: str) -> bool:
    """Whether a cluster is given as a file."""
    return text.endswith((".toml", *OTHER_FORMATS)) or (
        "/" in text and not COMPOSED.fullmatch(text)
    )


@cache
def _built_in(name: str) -> Cluster:
    return _cluster(_read(HERE / "clusters" / f"{name}.toml"), f"clusters/{name}.toml")


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


def _composed(text: str) -> Cluster:
    gpu, per_node, network = (*text.split(":", 2), "", "")[:3]
    card = NETWORK.fullmatch(network)
    if not (per_node.isdigit() and int(per_node) > 0 and card and float(card[2]) > 0):
        known = gpu if gpu in (*gpu_names(), *gpu_aliases()) else "h100"
        raise UnknownProfile(
            f"{text} is not a cluster: write GPU:PER_NODE:NETWORK, as in "
            f"{known}:8:400Gb (bits per second and GPU), or {known}:8:8x400Gb (of a node)"
        )
    share = int(card[1]) / int(per_node) if card[1] else 1.0  # of each GPU in a card
    card_bytes_per_s = float(card[2]) * 1e9 / (8 if card[3] == "b" else 1)
    return compose_cluster(gpu, int(per_node), share * card_bytes_per_s)


def _local(text: str) -> Cluster:
    _, _, count = text.partition(":")
    if count and not (count.isdigit() and int(count) > 0):
        raise UnknownProfile(f"{text!r}: processes must be a positive number, as in {LOCAL_CPU}:4")
    document = _read(HERE / "clusters" / f"{LOCAL_CPU}.toml")
    document["kernels"] = load_kernels("cpu")
    return _validate(Cluster, local_cluster(document, int(count) if count else num_cores()), text)


def _cluster(document: dict[str, Any], where: str) -> Cluster:
    gpu = document.get("gpu")
    if isinstance(gpu, str):
        document["gpu"] = load_gpu(gpu)
        document.setdefault("kernels", load_kernels(gpu))
    node = document.get("node")
    if isinstance(node, dict) and (link := node.pop("measured_as", None)):
        node["collective_fits"] = _collectives_on(str(link))
    return _validate(Cluster, document, where)


def _collectives_on(link: str) -> list[dict[str, Any]]:
    """What collectives took on one kind of link. Raises `UnknownProfile`."""
    name = _resolve(link, _names("links"), {}, "link")
    fits: list[dict[str, Any]] = _read(HERE / "links" / f"{name}.toml")["collective_fits"]
    return fits


@cache
def usual_cluster(gpu: str, gpus_per_node: int = 1) -> Cluster:
    """The cluster whose nodes a GPU is usually found in; one of nodes that several share, with the
    GPU as it is there, where the usual ones hold one; with the links of a board of four, where
    nodes of four have such a board. Raises `UnknownProfile`.
    """
    name = _resolve(gpu, gpu_names(), _index()["gpu_alias"], "GPU")
    if gpus_per_node > 1 and name in _index()["shared_node_of"]:
        return load_cluster(_index()["shared_node_of"][name])
    cluster = load_cluster(_index()["node_of"][name])
    node = _board_of_four(name) if gpus_per_node == 4 else None
    return cluster.model_copy(update={
        "gpu": load_gpu(name), "kernels": load_kernels(name), "node": node or cluster.node,
    })  # fmt: skip


def _board_of_four(gpu: str) -> Link | None:
    """The links of a board where each of four GPUs is wired to the other three, if `gpu` comes on
    one.
    """
    name = _index()["board_of_four"].get(gpu)
    return load_cluster(name).node.model_copy(update={"meshed": 4}) if name else None


NETWORK_EFFICIENCY = 0.85
"""Bus bandwidth over card rate that well-kept fabrics reach (nccl-tests: 335/400 on AWS p5, 385/400
on NDR with SHARP, 382/400 on p6-b200)."""
NETWORK_LATENCY_S = 14e-6
"""One ring step over a network, NCCL's own model (src/graph/tuning.cc, hwLat, ring, Simple)."""


def compose_cluster(gpu: str, gpus_per_node: int, network_bytes_per_s: float) -> Cluster:
    """A cluster that nobody described: `gpu` in the usual node of its kind, with a network card of
    `network_bytes_per_s` (one direction) for each GPU. Raises `UnknownProfile`.
    """
    donor = usual_cluster(gpu, gpus_per_node)
    gpu_name = donor.gpu.name
    card = network_bytes_per_s * NETWORK_EFFICIENCY
    whole = card * gpus_per_node
    bandwidth = BusBandwidth(
        all_reduce=whole, all_gather=whole, reduce_scatter=whole, all_to_all=card, send=card
    )
    given = f"given: {network_bytes_per_s:g} bytes/s per GPU x {NETWORK_EFFICIENCY:g} reached"
    return Cluster(
        name=f"{gpu_name}-x{gpus_per_node}-{network_bytes_per_s * 8e-9:g}gbit",
        title=f"{gpus_per_node} x {donor.gpu.title} per node, composed",
        gpu=donor.gpu,
        gpus_per_node=gpus_per_node,
        node=donor.node,
        network=Link(latency_s=NETWORK_LATENCY_S, bus_bandwidth=bandwidth),
        kernels=donor.kernels,
        host_memory_bytes=donor.host_memory_bytes,
        host_memory_bytes_per_s=donor.host_memory_bytes_per_s,
        host_link_bytes_per_s=donor.host_link_bytes_per_s,
        host_slowdown=donor.host_slowdown,
        sources={"node": f"as {donor.name}", "network": given},
    )


UNSTATED = (
    "grouped_mm_fraction", "grouped_overlap",
    "scan_forward", "scan_backward", "sparse_backward", "sparse_half_backward", "sdpa_forward",
    "sdpa_backward", "sdpa_half_forward", "sdpa_half_backward", "sums16_backward",
    "sums16_half_backward", "uneven_backward", "uneven_half_backward",
)  # fmt: skip
"""Of `Kernels`, what no part of a profile's content is while it is the default."""


def cluster_hash(cluster: Cluster) -> str:
    """First 16 hex digits of the SHA-256 of the profile's content, as plan files quote it.

    Without pods, processor seconds of collectives, ranks that compute apart, and with the usual
    rates of scans, of chosen keys, of PyTorch's kernels and of an attention that sums in 16 bits or
    has uneven heads, of a tier that states no interference and no mesh, and of a host as fast as
    most, it is what it was before profiles had any of them. How much of a GPU a plan may fill is no
    part of it.
    """
    left_out = {"plan_memory_bytes"} if cluster.pod else {"plan_memory_bytes", "pod"}
    if cluster.host_slowdown == 1:
        left_out.add("host_slowdown")
    document = cluster.model_dump(mode="json", exclude=left_out)
    for name in UNSTATED if cluster.kernels else ():
        if document["kernels"][name] == Kernels.model_fields[name].default:
            del document["kernels"][name]
    for tier in ("node", "network"):
        if not document[tier]["meshed"]:
            del document[tier]["meshed"]
        if document[tier]["interference"] is None:
            del document[tier]["interference"]
        if not document[tier]["collective_fits"]:
            del document[tier]["collective_fits"]
    for point in document["collective_points"]:
        for name in ("processor_s", "apart"):
            if point[name] is None:
                del point[name]
    for fit in document["collective_fits"]:
        if fit["apart"] is None:
            del fit["apart"]
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def save_cluster(cluster: Cluster, path: Path) -> None:
    """Write `cluster` as a file that `load_cluster(path)` reads back equal. Raises `OSError`."""
    write_toml(cluster.model_dump(exclude_defaults=True), path)
