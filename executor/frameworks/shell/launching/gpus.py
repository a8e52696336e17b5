"""How many GPUs a launch has: the launcher's arguments, else Slurm's headers."""

import re
from collections.abc import Mapping
from itertools import takewhile

from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.shell.launching.hosts import (
    Read,
    gpus_of_hosts,
    is_of_hosts,
    nothing,
)
from meshplan.executor.frameworks.shell.launching.ranks import ranks_of
from meshplan.executor.frameworks.shell.launching.starters import open_count
from meshplan.planner.case.reading import Fact, IllegalConfig

_LAUNCHERS = (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes"))  # torchrun's, DeepSpeed's
_OF_NODE = ("gpus_per_node", "gres", "nproc_per_node", "ntasks_per_node")


def launched(
    launcher: Values, text: str, of_job: Fact | None = None, read: Read = nothing
) -> dict[str, Fact]:
    """`gpus` of a launch, or the `nodes` of which it takes whole ones, else `gpus_open`, what of it
    leaves them open. The arguments are those of `gpus_of`.
    """
    gpus = gpus_of(launcher, text, of_job, read)
    nodes = None if gpus else _whole_nodes(launcher)
    left = None if gpus or nodes else open_count(launcher)
    found = {"gpus": gpus, "nodes": nodes, "gpus_open": left}
    return {name: fact for name, fact in found.items() if fact is not None}


def gpus_of(
    launcher: Values, text: str, of_job: Fact | None = None, read: Read = nothing
) -> Fact | None:
    """GPUs by the launcher's arguments, else by Slurm's headers; raises `IllegalConfig`.

    of_job  those that a job's document asks for (0: not known how many): all of them, where the
            launcher states no number of nodes, because a job's operator says it by the environment
            (torchrun reads `PET_NNODES`: pytorch torch/distributed/run.py, kubeflow/trainer)
    read    the text of a file of hosts
    """
    stated = _gpus_of(launcher, text, read)
    alone = not launcher.found.keys() & {"nnodes", "num_nodes", "nodes", "include", "hostfile"}
    if of_job is None or not (stated is None or alone):
        return stated
    return of_job if of_job.value else None


def _gpus_of(launcher: Values, text: str, read: Read) -> Fact | None:
    if is_of_hosts(launcher) and (gpus := gpus_of_hosts(launcher, read)):
        return gpus
    for each_name, nodes_name in _LAUNCHERS:
        each, nodes = launcher.found.get(each_name), _nodes(launcher, nodes_name)
        stated = [fact for fact in (each, nodes) if fact is not None]
        unknown = each_name == "num_gpus" and nodes is None and is_of_hosts(launcher)
        if each is not None and not unknown and all(str(f.value).isdecimal() for f in stated):
            count = launcher.count(each_name)
            others = nodes and Values({nodes_name: nodes}).count(nodes_name)
            if count is not None:
                return Fact(count.value * (others.value if others else 1), count.line)
    ranks = ranks_of(launcher) or _srun_gpus(launcher) or _slurm_gpus(text)
    return ranks or _slurm_tasks(launcher, text) or _pbs_gpus(text)


def _nodes(launcher: Values, name: str) -> Fact | None:
    """The number of nodes; `2:2` of torchrun, from two to two, is two."""
    stated = launcher.found.get(name)
    fixed = stated and re.fullmatch(r"([0-9]{1,6}):\1", str(stated.value))
    return Fact(fixed[1], stated.line) if stated and fixed else stated


def _whole_nodes(launcher: Values) -> Fact | None:
    """The nodes of which all GPUs are used: DeepSpeed's default, and torchrun's word `gpu`.

    Sources: DeepSpeed 0.19.8 deepspeed/launcher/runner.py (num_gpus), pytorch
    torch/distributed/run.py (determine_local_world_size).
    """
    of_torchrun = launcher.found.get("nproc_per_node", Fact("", 1)).value in ("gpu", "auto")
    nodes = _nodes(launcher, "nnodes" if of_torchrun else "num_nodes")
    some = of_torchrun or not launcher.found.keys() & {"num_gpus", "include", "exclude"}
    if not some or nodes is None or not _NUMBER.fullmatch(str(nodes.value)):
        return None
    return Fact(int(nodes.value), nodes.line) if int(nodes.value) else None


def _srun_gpus(launcher: Values) -> Fact | None:
    """GPUs by options of `srun` itself: all of the job (`--gpus`), or `--nodes` and those of a node
    (SchedMD/slurm, man page of srun); None where one is missing or no plain number.
    """
    found = launcher.found
    nodes, whole = found.get("nodes"), found.get("gpus")
    of_node = next((found[name] for name in _OF_NODE if name in found), None)
    by_node = None
    if "gpus_per_node" not in found and "gres" in found:
        of_node = Fact(_gpus_of_gres(str(found["gres"].value)), found["gres"].line)
    if of_node and nodes and _NUMBER.fullmatch(str(nodes.value)):
        by_node = _count_of_gpus(of_node, int(nodes.value))
    by_srun = whole and found.keys() & {"nodes", "ranks", "tasks_of_job"}
    return by_node or (_count_of_gpus(whole, 1) if whole and by_srun else None)


def _count_of_gpus(stated: Fact, times: int) -> Fact | None:
    """So many times the GPUs of `8`, `h100:8` or `gpu:h100:8`; None for none."""
    count = int(_gpus_of_node({"gpus-per-node": str(stated.value)}) or 0) * times
    return Fact(count, stated.line) if count else None


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
    tasks = _tasks(header)
    if whole is None and each is not None and _NUMBER.fullmatch(tasks):
        return int(each) * int(tasks)
    return int(whole or 0)


def _slurm_tasks(launcher: Values, text: str) -> Fact | None:
    """The job's tasks, where `srun` starts the program in each of them."""
    tasks = slurm_variables(text).get("SLURM_NTASKS") if "tasks_of_job" in launcher.found else None
    return Fact(int(tasks), _header(text)[1]) if tasks and int(tasks) else None


_SIZES = ("ntasks-per-node", "gpus-per-node", "gpus-per-task", "gres")
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
    tasks, gpus = _tasks(header), _gpus_of_node(header) or ""
    found = {
        "SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes, "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": each, "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": header.get("gpus-per-node", ""),
    }  # fmt: skip
    known = {name: value for name, value in found.items() if _NUMBER.fullmatch(value)}
    if _NUMBER.fullmatch(nodes) and _NUMBER.fullmatch(each):
        known["SLURM_TASKS_PER_NODE"] = each if int(nodes) == 1 else f"{each}(x{int(nodes)})"
    return known


def _tasks(header: Mapping[str, str]) -> str:
    """The tasks of a job as they are stated, else those of each node by the nodes, "" for none."""
    nodes, each = header.get("nodes", ""), header.get("ntasks-per-node", "")
    plain = _NUMBER.fullmatch(nodes) and _NUMBER.fullmatch(each)
    return header.get("ntasks") or (str(int(nodes) * int(each)) if plain else "")


_COMPONENTS = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.M)
_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_OPTION = re.compile(r"(?<!\S)(?:--([a-z-]+)(?:=|\s+)|-([NGn])=?\s*)(?!-)(\S+)")
_WORD = re.compile(r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'])+")


def _header(text: str) -> tuple[dict[str, str], int]:
    """Options of `#SBATCH` lines, of which the last counts, and the first one's line. A line may
    have several, and a remark behind ` #`. sbatch reads none behind a script's first command; a
    script in a here-document begins with its `#!` anew. A heterogeneous job (`#SBATCH hetjob`) has
    a header for each component: then none counts.
    """
    if _COMPONENTS.search(text):
        return {}, 1
    header: dict[str, str] = {}
    line, in_header = 0, True
    for at, each in enumerate(text.split("\n"), start=1):
        in_header = (in_header and (not each.strip() or each.startswith("#"))) or each[:2] == "#!"
        said = _DIRECTIVE.fullmatch(each) if in_header else None
        for match in _OPTION.finditer(_options(said[1])) if said else ():
            header[match[1] or _SHORT[match[2]]] = match[3]
            line = line or at
    return header, max(line, 1)


def _options(line: str) -> str:
    """The words of a directive before its remark, each without quotes and what spaces they hold."""
    words = _WORD.findall(line)
    kept = takewhile(lambda word: not word.startswith("#"), words)
    return " ".join(re.sub(r"[\"']", "", re.sub(r"\s", "_", word)) for word in kept)


def without_header(text: str) -> str:
    """A script without the `#SBATCH` lines before its first command, as bash reads it, each other
    line where it was.
    """
    lines = text.split("\n")
    commands = (at for at, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    end = next(commands, len(lines))
    header = ("#" if _DIRECTIVE.fullmatch(line) else line for line in lines[:end])
    return "\n".join((*header, *lines[end:]))


def is_job(text: str) -> bool:
    """Whether a script's header asks for nodes, tasks or GPUs."""
    return bool(_header(text)[0].keys() & {*_SHORT.values(), *_SIZES})


def _gpus_of_node(header: Mapping[str, str]) -> str | None:
    stated = header.get("gpus-per-node") or _gpus_of_gres(header.get("gres", ""))
    each = re.search(r"(?:^|:)([0-9]{1,6})(?:\(|,|$)", stated)
    return each[1] if each else None


def _gpus_of_gres(stated: str) -> str:
    """The GPUs among generic resources, of which a node may have others (`nvme:1,gpu:h100:8`), one
    where no number is stated; all of it where none is called a GPU.
    """
    of_gpu = re.search(r"(?:^|,)gpu(?::([^,]+))?(?=,|$)", stated)
    return (of_gpu[1] or "1") if of_gpu else stated
