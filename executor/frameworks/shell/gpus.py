"""How many GPUs a launch has: the launcher's arguments, else Slurm's headers."""

import re

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact, IllegalConfig

_LAUNCHERS = (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes"))  # torchrun's, DeepSpeed's


def gpus_of(launcher: Values, text: str) -> Fact | None:
    """GPUs by the launcher's arguments, else by Slurm's headers; raises `IllegalConfig`."""
    if included := launcher.found.get("include"):
        for name in ("num_gpus", "num_nodes"):
            if name in launcher.found:
                raise IllegalConfig(f"DeepSpeed takes no --{name} beside --include", included.line)
        return _included(included)
    for each_name, nodes_name in _LAUNCHERS:
        each, nodes = launcher.found.get(each_name), launcher.found.get(nodes_name)
        stated = [fact for fact in (each, nodes) if fact is not None]
        if each is not None and all(str(fact.value).isdecimal() for fact in stated):
            count = launcher.count(each_name)
            others = launcher.count(nodes_name) if nodes else None
            if count is not None:
                return Fact(count.value * (others.value if others else 1), count.line)
    return _slurm_gpus(text)


def _included(stated: Fact) -> Fact | None:
    """GPUs of DeepSpeed's `--include host1:0,1@host2:0,1`, each counted once; None where a host is
    named whole, or its GPUs are not yet known.

    Source: deepspeedai/DeepSpeed@2d991ba3 deepspeed/launcher/runner.py (parse_node_config_list,
    parse_resource_filter).
    """
    hosts: dict[str, set[int]] = {}
    for node in str(stated.value).split("@"):
        host, colon, gpus = node.partition(":")
        if colon and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", gpus):
            return None
        hosts.setdefault(host, set()).update(map(int, gpus.split(",") if colon else ()))
    return Fact(sum(map(len, hosts.values())), stated.line) if all(hosts.values()) else None


def _slurm_gpus(text: str) -> Fact | None:
    """GPUs by `#SBATCH` lines: nodes x GPUs of each; None when either is not a plain number."""
    header: dict[str, str] = {}
    line = 1
    for match in re.finditer(r"^#SBATCH\s+(?:--([a-z-]+)|-([NG]))(?:[= ]\s*)?(\S+)", text, re.M):
        name = match[1] or {"N": "nodes", "G": "gpus"}[match[2]]
        header.setdefault(name, match[3].strip("\"'"))
        line = line if line > 1 else text.count("\n", 0, match.start()) + 1
    each = re.search(
        r"(?:^|:)([0-9]{1,6})(?:\(|,|$)", header.get("gpus-per-node") or header.get("gres", "")
    )
    nodes = re.fullmatch(r"[0-9]{1,6}", header.get("nodes", "1"))
    if each is None or nodes is None:
        return None
    gpus = int(each[1]) * int(nodes[0])
    if not gpus:
        raise IllegalConfig("#SBATCH asks for 0 GPUs; it must be at least 1", line)
    return Fact(gpus, line)
