"""What a launch begins with, and what of it leaves the number of GPUs open.

    torchrun --nnodes $N --nproc-per-node 8 train.py    $N
    torchrun --nnodes 1:4 --nproc-per-node 8 train.py   as many nodes as come
    deepspeed -H hosts train.py                         the hosts, where the file is not there
    accelerate launch --num_machines 2 train.py         the processes
    python train.py                                     one process, of WORLD_SIZE where it is set

Sources: pytorch torch/distributed/run.py (nnodes) and distributed_c10d.py (env://); DeepSpeed
0.19.8 deepspeed/launcher/runner.py (parse_args); huggingface/accelerate@16cb6eb8
src/accelerate/commands/launch.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.shell.launching.ranks import STARTERS, STARTS_MORE
from meshplan.planner.case.reading import Fact

_BEFORE = re.compile(r"\w+=.*|(.*/)?(nohup|exec|env|time)", re.S)
"""What may stand before a command, and starts no more processes of it."""
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_COUNTS = (
    *("nproc_per_node", "nnodes", "num_gpus", "num_nodes", "num_processes", "num_machines"),
    *("ntasks", "nodes", "gpus", "ntasks_per_node", "gpus_per_node", "per_node"),
)
_WORDS = {"ntasks": "a number of processes", "per_node": "a number of processes of each host"}
"""Of options that are mostly written short."""
_HOSTS = ("hostfile", "include", "exclude")


def starter_of(words: Sequence[Fact], inherited: Mapping[str, str]) -> dict[str, Fact]:
    """`starter`, the launcher's name, and of a program that python alone starts its `ranks`, the
    WORLD_SIZE that it inherits.
    """
    left = list(dropwhile(lambda word: _BEFORE.fullmatch(str(word.value)), words))
    if not left or str(left[0].value).startswith("-"):
        return {}
    first = next(filter(None, (_first(left, test) for test in _LAUNCHERS)), left[0])
    text = str(first.value)
    name = text if "$" in text else text.rpartition("/")[2]
    found = {"starter": Fact("python" if _PYTHON.fullmatch(name) else name, first.line)}
    if found["starter"].value == "python" and "WORLD_SIZE" in inherited:
        found["ranks"] = Fact(inherited["WORLD_SIZE"], first.line)
    return found


def _first(words: Sequence[Fact], test: Callable[[str], object]) -> Fact | None:
    return next((word for word in words if test(str(word.value))), None)


_LAUNCHERS: tuple[Callable[[str], object], ...] = (
    STARTS_MORE.search,
    lambda text: text.rpartition("/")[2] in STARTERS,
)
"""Which words are launchers; one whose processes are not those of `srun` or `mpirun` first."""


def open_count(launcher: Values) -> Fact | None:
    """Why a launch whose GPUs are not known does not say how many; None where there is none."""
    found = launcher.found
    for name in _COUNTS:
        if name in found and _is_open(name, str(found[name].value)):
            said = f"{_WORDS.get(name, f'--{name}')} {shown(found[name].value)}"
            return Fact(f"{said} leaves the number of GPUs open", found[name].line)
    for name in _HOSTS:
        if name in found:
            said = f"the hosts of --{name} {shown(found[name].value)} are not known"
            return Fact(said, found[name].line)
    starter = found.get("starter")
    return starter and Fact(_open_by(str(starter.value), found), starter.line)


def _is_open(name: str, value: str) -> bool:
    """Whether it is no number; one of Slurm's may have a GPU's name before it (`h100:8`)."""
    return "$" in value if name.startswith("gpus") else not re.fullmatch(r"[0-9]+", value)


def _open_by(starter: str, found: Mapping[str, Fact]) -> str:
    if starter == "python":
        world = found.get("ranks", Fact("not set", 1)).value
        return f"python without a launcher starts one process, and WORLD_SIZE is {world}"
    if starter == "accelerate":
        return "accelerate launch has no --num_processes"
    return f"{shown(starter)} does not state how many GPUs there are in all"
