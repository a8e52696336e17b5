"""How many processes `srun` or `mpirun` starts: the ranks of a program that starts none itself.

    srun -N 8 -n 64 python pretrain_gpt.py     mpirun -np 16 -N 8 python pretrain_gpt.py
    srun -n 64 bash -c "python pretrain_gpt.py"

Each process of Megatron's, or of transformers', drives one GPU. Sources: SchedMD/slurm, man page of
srun; open-mpi/ompi v4.1, man page of mpirun; pmodels/mpich, `mpiexec.hydra --help`. Leaves out
several programs of one command (`:`), and options of their own files (`--app`, `--multi-prog`).
"""

import re
from collections.abc import Iterable, Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.shell.variables import Text, plain
from meshplan.planner.case.reading import Fact

_SRUN: Mapping[str, str] = {
    "N": "nodes", "n": "ntasks", "G": "gpus",
    **{name: name for name in ("nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gpus")},
}  # fmt: skip
_MPIRUN: Mapping[str, str] = {
    **dict.fromkeys(("n", "np", "c"), "ntasks"),
    **dict.fromkeys(("N", "npernode", "ppn"), "per_node"),
    **dict.fromkeys(("hostfile", "machinefile"), "hostfile"),
}
STARTERS = {
    "srun": _SRUN,
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), _MPIRUN),
}
STARTS_MORE = re.compile(
    r"(^|[/.])(torchrun|torch\.distributed(\.\w+)?|accelerate|deepspeed|composer|llamafactory-cli)$"
)
"""Launchers whose processes are not those of `srun`."""
_NAMES_MORE = re.compile(
    r"\b(torchrun|torch\.distributed|accelerate launch|deepspeed|composer|llamafactory-cli)\b"
)
_SHELL = re.compile(r"(.*/)?(ba|z|)sh")
_PROGRAM = re.compile(r"\.py$")


def started(words: Iterable[Fact]) -> dict[str, Fact]:
    """The options of `srun` or `mpirun` before the program, by the long names of `srun`; where
    nothing between them and the program starts more processes, `ranks` too, or `tasks_of_job` where
    their number is the job's.
    """
    texts = [(str(word.value), word.line) for word in words]
    at = next((at for at, (text, _) in enumerate(texts) if _name(text) in STARTERS), None)
    if at is None:
        return {}
    known, found = STARTERS[_name(texts[at][0])], dict[str, Fact]()
    pairs = zip(texts[at + 1 :], [*texts[at + 2 :], ("", 0)], strict=True)
    for (text, line), (after, _) in pairs:
        if _PROGRAM.search(text):
            break
        if STARTS_MORE.search(text):
            return found
        option, value = _split(text, after)
        if option in known:
            found.setdefault(known[option], Fact(value, line))
    name = "ranks" if "ntasks" in found else "tasks_of_job"
    return found | {name: found.get("ntasks", Fact("", texts[at][1]))}


def starts_more(text: str) -> bool:
    """Whether a script names a launcher whose processes are not those of `srun`."""
    return _NAMES_MORE.search(text) is not None


def started_shell(words: list[Text]) -> list[Text]:
    """`srun -n 8` of `srun -n 8 bash -c SCRIPT`: the script's program runs in as many processes as
    without the shell. Nothing where another command starts the shell.
    """
    texts = [plain(word) for word in words]
    at = next((at for at, text in enumerate(texts) if _SHELL.fullmatch(text)), 0)
    return words[:at] if texts and _name(texts[0]) in STARTERS else []


def ranks_of(launcher: Values) -> Fact | None:
    """The processes that `started` found; None where it is no plain number."""
    ranks = launcher.found.get("ranks")
    return launcher.count("ranks") if ranks and str(ranks.value).isdecimal() else None


def _name(text: str) -> str:
    return text.rpartition("/")[2]


def _split(text: str, after: str) -> tuple[str, str]:
    """An option and its value: `-n 8`, `-n8`, `--ntasks=8`, `--ntasks 8`, `-np 8`."""
    short = re.fullmatch(r"-([A-Za-z])([0-9]+)", text)
    if short:
        return short[1], short[2]
    option, equals, value = text.lstrip("-").partition("=")
    return (option if text.startswith("-") else ""), value if equals else after
