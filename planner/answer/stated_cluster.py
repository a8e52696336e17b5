"""The cluster that a question names: a profile, or a GPU with its nodes and their network."""

import re

from meshplan.costmodels.units import GB, counted, parse_bandwidth
from meshplan.hardware_profiles.built_in import usual_cluster
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.local_cpu import LOCAL_CPU
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.arguments import Arguments
from meshplan.planner.answer.sizes import BadQuestion


def stated_cluster(a: Arguments) -> tuple[str, Cluster]:
    """The name that finds it again, and the cluster. Raises `BadQuestion`, `UnknownProfile`."""
    if a.cluster and (a.gpu or a.gpus_per_node or a.network):
        raise BadQuestion("--cluster already says --gpu, --gpus-per-node and --network; drop one")
    if a.cluster == LOCAL_CPU:
        name = f"{LOCAL_CPU}:{a.gpus}"
    elif a.cluster or a.gpu:
        name = a.cluster or _composed_name(a)
    else:
        raise BadQuestion("say what to train on: --cluster dgx-h100, or --gpu h100-sxm")
    cluster = load_cluster(name)
    check_gpus(a.gpus, name, cluster)
    return name, cluster


def check_gpus(gpus: int, name: str, cluster: Cluster) -> None:
    """Raise `BadQuestion` for more GPUs than the cluster has."""
    if cluster.max_gpus is not None and gpus > cluster.max_gpus:
        raise BadQuestion(f"--gpus {gpus}, but {name} has {cluster.max_gpus}; take at most these")


def _composed_name(a: Arguments) -> str:
    """`GPU:PER_NODE:NETWORK`, or the GPU's name, which stands for the cluster it is usual in."""
    assert a.gpu is not None
    usual = usual_cluster(a.gpu)
    if a.network is None:
        if a.gpus_per_node not in (None, usual.gpus_per_node):
            raise BadQuestion(f"--gpus-per-node {a.gpus_per_node} needs --network too: 400Gb/s")
        return usual.gpu.name
    per_node = a.gpus_per_node or usual.gpus_per_node
    network_bytes_per_s = _network_of_each(a.network, per_node)
    return f"{usual.gpu.name}:{per_node}:{network_bytes_per_s * 8e-9:g}Gb"


def _network_of_each(text: str, gpus_per_node: int) -> float:
    """Bytes per second of each GPU's share: "400Gb/s" is each GPU's card, "8x400Gb/s" the cards of
    a node.
    """
    found = re.fullmatch(r"\s*(\d{1,3})\s*x\s*(.+)", text)
    try:
        each = parse_bandwidth(found[2] if found else text)
    except ValueError as error:
        raise BadQuestion(f"--network {error}, or 8x400Gb/s for all cards of a node") from None
    return int(found[1]) * each / gpus_per_node if found else each


MOST_CARD_GBPS = 800
"""The fastest network card of one GPU: ConnectX-8 (NVIDIA's ConnectX-8 SuperNIC User Manual)."""


def network_notes(a: Arguments, cluster: Cluster) -> list[str]:
    """How a network is understood that was stated, or that goes with a GPU of which nothing is; and
    how many GPUs the last node gives, if not all.
    """
    said = [_usual_said(a.gpu)] if a.gpu and a.gpus > 1 else []
    if a.network:
        said = [_network_said(a.network, cluster)]
    return [*said, *_part_of_a_node(a.gpus, cluster.gpus_per_node)]


def _part_of_a_node(gpus: int, per_node: int) -> list[str]:
    """What the GPUs are beside whole nodes, where they are both."""
    whole, rest = divmod(gpus, per_node)
    nodes, more = counted(whole, "whole node"), counted(rest, "GPU")
    said = f"assumed: {gpus:,} GPUs are {nodes} of {per_node} and {more} of another one"
    return [said] if whole and rest else []


def _network_said(text: str, cluster: Cluster) -> str:
    """The network as it was understood, per GPU and per node."""
    per_node = cluster.gpus_per_node
    each_gb = _network_of_each(text, per_node) * 8 / GB
    each = f"network {each_gb:g} Gb/s of each GPU, {each_gb * per_node:g} Gb/s of a node"
    return f"as stated: {each}{_doubted(each_gb, per_node)}"


def _doubted(each_gb: float, per_node: int) -> str:
    """What a rate is probably of that no card of one GPU has, and how to say so."""
    if each_gb <= MOST_CARD_GBPS or per_node == 1:
        return ""
    whole = f"{per_node}x{each_gb / per_node:g}Gb/s"
    return (
        f"; no card of one GPU that we know has more than {MOST_CARD_GBPS} Gb/s: for {each_gb:g} "
        f"Gb/s of a node write {whole}"
    )


def _usual_said(gpu: str) -> str:
    """Where a GPU stands of which nothing else is said."""
    usual = usual_cluster(gpu)
    said = f"nodes of {counted(usual.gpus_per_node, 'GPU')} and the network of {usual.name}"
    return f"assumed: {said} (--network and --gpus-per-node choose others)"
