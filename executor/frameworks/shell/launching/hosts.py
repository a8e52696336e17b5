"""GPUs of DeepSpeed's launcher and of mpirun, which take them from a file of hosts.

    deepspeed --hostfile hosts train.py             all slots of the file's hosts
    deepspeed --hostfile hosts --num_nodes 2 ...    those of its first two hosts
    deepspeed --hostfile hosts --num_gpus 4 ...     four on each host
    deepspeed --include a:0,1@b train.py            two of a, and all of b
    deepspeed --exclude a:0 train.py                all but one of a
    CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py     two, where nothing else says how many
    mpirun --hostfile hosts -N 4 python train.py    four on each host, else all slots

Each line of the file is `HOST slots=N`. Sources: DeepSpeed 0.19.8 deepspeed/launcher/runner.py
(_parse_hostfile, parse_node_config_list, parse_resource_filter, apply_num_nodes_and_gpus, main);
open-mpi/ompi v4.1, man page of mpirun (--hostfile, -N). Leaves out: the file that DeepSpeed looks
for where none is named (/job/hostfile).
"""

import re
from collections.abc import Callable, Mapping
from itertools import islice

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact, IllegalConfig, UnreadableConfig

Read = Callable[[str], str | None]
"""The text of a file that a launch names; None where it is not there."""
_HOST = re.compile(r"(\S+)\s+slots=([0-9]{1,4})\b")
_SLOTS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
_MOST_HOSTS = 100_000
_TRIMS = ("num_gpus", "num_nodes")
_EACH = "per_node"  # the processes that mpirun starts on each host
_FILTERS = ("include", "exclude")


_LONG = {"-H": "--hostfile", "-i": "--include", "-e": "--exclude"}


def long_options(words: list[Fact]) -> list[Fact]:
    """What starts a program, with the options of `deepspeed` by their long names."""
    if not _is_deepspeed(words):
        return words
    return [Fact(_LONG.get(str(word.value), word.value), word.line) for word in words]


def seen_by_deepspeed(
    words: list[Fact], given: Mapping[str, Fact], held: Mapping[str, Fact]
) -> dict[str, Fact]:
    """The filter that `deepspeed`, started by `words` with the options `given`, makes of the
    devices that are visible: those of this host, where no option says which.
    """
    seen = held.get("CUDA_VISIBLE_DEVICES")
    said = given.keys() & {"hostfile", *_FILTERS, *_TRIMS}
    if seen is None or said or not _is_deepspeed(words) or not _SLOTS.fullmatch(str(seen.value)):
        return {}
    return {"include": Fact(f"localhost:{seen.value}", seen.line)}


def _is_deepspeed(words: list[Fact]) -> bool:
    return any(str(word.value).rpartition("/")[2] == "deepspeed" for word in words)


def nothing(name: str) -> str | None:
    """Of a launch whose other files are not read."""
    return None


def is_of_hosts(launcher: Values) -> bool:
    """Whether the GPUs are those of hosts that are named, here or in a file; `mpirun -np` and
    torchrun, that may have a file of hosts too, start as many as they say.
    """
    named = launcher.found.keys() & {"hostfile", *_FILTERS}
    return bool(named) and not launcher.found.keys() & {"ntasks", "nproc_per_node"}


def gpus_of_hosts(launcher: Values, read: Read) -> Fact | None:
    """GPUs of the hosts; None where a file of them is not there, or not in this form. Raises
    `IllegalConfig` for options that exclude each other, and for a host that the file lacks.
    """
    hosts = _hosts(launcher, read)
    for name in _FILTERS:
        if stated := launcher.found.get(name):
            _check_alone(launcher, name)
            hosts = _filtered(hosts, stated, keep=name == "include")
    hosts = _trimmed(hosts, launcher) if hosts else hosts
    line = next(fact.line for name, fact in launcher.found.items()
                if name in ("hostfile", *_FILTERS))  # fmt: skip
    gpus = sum(map(len, hosts.values())) if hosts else 0
    return Fact(gpus, line) if gpus else None


def _check_alone(launcher: Values, name: str) -> None:
    for other in (*_TRIMS, *_FILTERS):
        if other in launcher.found and other != name:
            line = launcher.found[name].line
            raise IllegalConfig(f"DeepSpeed takes no --{other} beside --{name}", line)


def _hosts(launcher: Values, read: Read) -> dict[str, set[int]] | None:
    """The slots of each host of the file; None where there is none that is known."""
    named = launcher.found.get("hostfile")
    try:
        text = read(str(named.value)) if named else None
    except (UnreadableConfig, OSError):
        text = None
    lines = [line.strip() for line in (text or "").splitlines()]
    found = [_HOST.match(line) for line in lines if line and not line.startswith("#")]
    known = [match for match in found if match]
    hosts = {match[1]: set(range(int(match[2]))) for match in known}
    if not known or len(hosts) < len(found) or len(known) > _MOST_HOSTS:  # DeepSpeed refuses it
        return None
    return hosts


def _filtered(
    hosts: dict[str, set[int]] | None, said: Fact, *, keep: bool
) -> dict[str, set[int]] | None:
    """The hosts that `said` names, or the others; a host without slots stands for all of its."""
    named: dict[str, set[int]] = {}
    for node in str(said.value).split("@"):
        host, colon, slots = node.partition(":")
        if colon and not _SLOTS.fullmatch(slots):
            return None
        named.setdefault(host, set()).update(map(int, slots.split(",") if colon else ()))
    if unknown := [host for host in named if hosts is not None and host not in hosts]:
        raise IllegalConfig(f"the file of hosts has no {shown(unknown[0])}", said.line)
    if keep and all(named.values()):
        return named
    if hosts is None:
        return None
    named = {host: slots or hosts.get(host, set()) for host, slots in named.items()}
    return named if keep else {host: hosts[host] - named.get(host, set()) for host in hosts}


def _trimmed(hosts: dict[str, set[int]], launcher: Values) -> dict[str, set[int]] | None:
    """The first `--num_nodes` of them, with `--num_gpus` of each, or mpirun's `-N`; None where one
    is no number.
    """
    given = {name: launcher.found.get(name, Fact(-1, 1)) for name in _TRIMS}
    given["num_gpus"] = launcher.found.get(_EACH, given["num_gpus"])
    stated = [fact.value for fact in given.values()]
    if not all(re.fullmatch(r"-1|[0-9]{1,6}", str(value)) for value in stated):
        return None
    each, nodes = map(int, stated)
    held = islice(hosts.items(), nodes if nodes > 0 else None)
    return {host: set(range(each)) if each > 0 else slots for host, slots in held}
