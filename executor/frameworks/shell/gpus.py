"""How many GPUs a launch has: the launcher's arguments, else Slurm's headers."""

import re
from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.shell.ranks import ranks_of
from meshplan.planner.case.reading import Fact, IllegalConfig

_LAUNCHERS = (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes"))  # torchrun's, DeepSpeed's


def gpus_of(launcher: Values, text: str, of_job: Fact | None = None) -> Fact | None:
    """GPUs by the launcher's arguments, else by Slurm's headers; raises `IllegalConfig`.

    of_job  those that a job's document asks for (0: not known how many): all of them, where the
            launcher states no number of nodes, because a job's operator says it by the environment
            (torchrun reads `PET_NNODES`: pytorch torch/distributed/run.py, kubeflow/trainer)
    """
    stated = _gpus_of(launcher, text)
    alone = not launcher.found.keys() & {"nnodes", "num_nodes", "nodes", "include"}
    if of_job is None or not (stated is None or alone):
        return stated
    return of_job if of_job.value else None


def _gpus_of(launcher: Values, text: str) -> Fact | None:
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
    ranks = ranks_of(launcher) or _srun_gpus(launcher) or _slurm_gpus(text)
    return ranks or _slurm_tasks(launcher, text) or _pbs_gpus(text)


def _srun_gpus(launcher: Values) -> Fact | None:
    """GPUs by options of `srun` itself, `--nodes` and those of a node (SchedMD/slurm, man page of
    srun); None where one is missing or no plain number.
    """
    nodes, *each = (
        launcher.found.get(name)
        for name in ("nodes", "gpus_per_node", "nproc_per_node", "ntasks_per_node")
    )
    of_node = next((fact for fact in each if fact is not None), None)
    if nodes is None or of_node is None:
        return None
    count = _gpus_of_node({"gpus-per-node": str(of_node.value)})
    if count is None or not _NUMBER.fullmatch(str(nodes.value)):
        return None
    return Fact(int(count) * int(nodes.value), nodes.line) if int(count) else None


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
    """GPUs by `#SBATCH` lines: nodes x GPUs of each; None when either is not a plain number, or the
    nodes are left to sbatch's command line.
    """
    header, line = _header(text)
    each = _gpus_of_node(header)
    nodes = header.get("nodes", "" if _COUNTS_NODES.search(text) else "1")
    if each is None or not _NUMBER.fullmatch(nodes):
        whole = _gpus_of_job(header)
        return Fact(whole, line) if whole else None
    gpus = int(each) * int(nodes)
    if not gpus:
        raise IllegalConfig("#SBATCH asks for 0 GPUs; it must be at least 1", line)
    return Fact(gpus, line)


_SELECT = re.compile(r"^#PBS\s+-l\s+select=(\d{1,6})((?::[\w=.-]+)*)", re.M)


def _pbs_gpus(text: str) -> Fact | None:
    """GPUs of `#PBS -l select=2:ngpus=4`, one chunk (PBS Professional, man page of qsub)."""
    chunks = list(_SELECT.finditer(text))
    each = re.search(r":ngpus=(\d{1,6})(?::|$)", chunks[0][2]) if len(chunks) == 1 else None
    if each is None or not int(each[1]) or not int(chunks[0][1]):
        return None
    return Fact(int(chunks[0][1]) * int(each[1]), text.count("\n", 0, chunks[0].start()) + 1)


def _gpus_of_job(header: Mapping[str, str]) -> int:
    """`--gpus=16`, or `--gpus-per-task=1` of so many tasks; 0 where neither is a plain number."""
    whole = _gpus_of_node({"gpus-per-node": header.get("gpus", "")})
    each = _gpus_of_node({"gpus-per-node": header.get("gpus-per-task", "")})
    tasks = header.get("ntasks", "")
    if whole is None and each is not None and _NUMBER.fullmatch(tasks):
        return int(each) * int(tasks)
    return int(whole or 0)


def _slurm_tasks(launcher: Values, text: str) -> Fact | None:
    """The job's tasks, where `srun` starts the program in each of them."""
    tasks = slurm_variables(text).get("SLURM_NTASKS") if "tasks_of_job" in launcher.found else None
    return Fact(int(tasks), _header(text)[1]) if tasks and int(tasks) else None


_NUMBER = re.compile(r"[0-9]{1,6}")
_COUNTS_NODES = re.compile(r"\bSLURM_(?:JOB_NUM_NODES|NNODES|NTASKS|NPROCS|NODEID|PROCID)\b")
"""Slurm's variables of a job on several nodes: a script that reads one and states no nodes leaves
their number to `sbatch --nodes`."""
_SHORT = {"N": "nodes", "G": "gpus", "n": "ntasks"}


def slurm_variables(text: str) -> dict[str, str]:
    """What Slurm sets for a script whose `#SBATCH` lines state plain numbers.

    Source: SchedMD/slurm, man page of sbatch, "OUTPUT ENVIRONMENT VARIABLES".
    """
    header, _ = _header(text)
    nodes, each = header.get("nodes", ""), header.get("ntasks-per-node", "")
    tasks, gpus = header.get("ntasks", ""), _gpus_of_node(header) or ""
    if not tasks and _NUMBER.fullmatch(nodes) and _NUMBER.fullmatch(each):
        tasks = str(int(nodes) * int(each))
    found = {
        "SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes, "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": each, "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": header.get("gpus-per-node", ""),
    }  # fmt: skip
    known = {name: value for name, value in found.items() if _NUMBER.fullmatch(value)}
    if _NUMBER.fullmatch(nodes) and _NUMBER.fullmatch(each):
        known["SLURM_TASKS_PER_NODE"] = each if int(nodes) == 1 else f"{each}(x{int(nodes)})"
    return known


_COMPONENTS = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.M)
_DIRECTIVE = re.compile(r"#SBATCH\s+(?:--([a-z-]+)|-([NGn]))(?:[= ]\s*)?(\S+)")


def _header(text: str) -> tuple[dict[str, str], int]:
    """Options of `#SBATCH` lines, of which the last counts, and the first one's line. sbatch reads
    none behind a script's first command; a script in a here-document begins with its `#!` anew.
    A heterogeneous job (`#SBATCH hetjob`) has a header for each component: then none counts.
    """
    if _COMPONENTS.search(text):
        return {}, 1
    header: dict[str, str] = {}
    line, in_header = 0, True
    for at, each in enumerate(text.split("\n"), start=1):
        in_header = (in_header and (not each.strip() or each.startswith("#"))) or each[:2] == "#!"
        if in_header and (match := _DIRECTIVE.match(each)):
            header[match[1] or _SHORT[match[2]]] = match[3].strip("\"'")
            line = line or at
    return header, max(line, 1)


def _gpus_of_node(header: Mapping[str, str]) -> str | None:
    each = re.search(
        r"(?:^|:)([0-9]{1,6})(?:\(|,|$)", header.get("gpus-per-node") or header.get("gres", "")
    )
    return each[1] if each else None
