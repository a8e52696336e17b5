"""What a followed script knows: its variables, and the text that they hold.

A value is text in parts, each with the line that wrote it. A part that is `unset` stands for
something that the script does not say (an environment variable, an argument, the output of a
command).

Source: GNU Bash manual 5.2, 3.4 Shell Parameters, 6.7 Arrays.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Part:
    """Text with the line that wrote it; `unset` text stands for something unknown."""

    text: str
    line: int
    unset: bool = False


Text = tuple[Part, ...]


class Guesses(dict[int, str]):
    """Line and name of each unknown value that decided a condition; `made`: how often one did, or
    an answer of the machine.
    """

    made = 0

    def __setitem__(self, line: int, what: str) -> None:
        self.made += 1
        super().__setitem__(line, what)


OF_LAUNCHERS = frozenset(
    (
        *("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "WORLD_SIZE", "NNODES"),
        *("PET_NNODES", "PET_NPROC_PER_NODE"),
    )
)
"""Numbers of nodes and processes that whoever starts a job sets: Slurm (man page of sbatch), and
torchrun's `PET_...` and its kind (pytorch torch/distributed/run.py, kubeflow/trainer).
"""


@dataclass(slots=True)
class Variables:
    """Variables by name: one value, or the elements of an array. `arguments` are `$1`, `$2`, ...

    told     whether the script itself has set its arguments
    arrays   names that hold several elements
    maps     associative arrays: elements by key
    aliases  what `declare -n` makes another name of, by the new name
    integers names whose values are arithmetic (`declare -i`)
    guesses  what is unknown and decided a condition
    demanded names without which the shell ends (`${TP:?}`), and the line
    left     defaults taken of what a launcher sets (`${SLURM_NNODES:-1}`), and the line
    options  what `set` switches on: `allexport`, `errexit`, `pipefail`, ...
    """

    values: dict[str, list[Text]] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    arguments: list[Text] = field(default_factory=list)
    told: bool = False
    maps: dict[str, dict[str, Text]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    integers: set[str] = field(default_factory=set)
    guesses: Guesses = field(default_factory=Guesses)
    demanded: dict[str, int] = field(default_factory=dict)
    left: dict[str, tuple[str, int]] = field(default_factory=dict)
    options: set[str] = field(default_factory=set)

    def copied(self) -> Self:
        """The same, for a shell of its own; what decided conditions there is known here too."""
        own = {each.name: copy(getattr(self, each.name)) for each in fields(self)}
        own["maps"] = {name: dict(items) for name, items in self.maps.items()}
        own |= {"guesses": self.guesses, "left": self.left}
        return type(self)(**own)

    def become(self, other: Self) -> None:
        """Take what `other` holds."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def restore(self, before: dict[str, list[Text] | None]) -> None:
        """What names held before; None: they were not set."""
        for name, items in before.items():
            if items is None:
                self.values.pop(name, None)
            else:
                self.values[name] = items

    def shift(self, by: int) -> bool:
        """Drop the first arguments, or none where there are fewer, and say which. Where none are
        known they are left to the script's start, which is taken to give enough.
        """
        if (self.arguments or self.told) and by > len(self.arguments):
            return False
        del self.arguments[:by]
        return True

    def shown(self, names: Iterable[str]) -> dict[str, str]:
        """The values of those of the names that are set."""
        return {name: shown_text(self.values[name][0]) for name in names if self.values.get(name)}

    def forget(self, name: str) -> None:
        """As `unset` does."""
        for known in (self.values, self.maps, self.aliases):
            known.pop(name, None)
        self.arrays.discard(name)
        self.integers.discard(name)


def plain(text: Text) -> str:
    """As a condition takes it: what is not set is empty."""
    return "".join(part.text for part in text if not part.unset)


def shown_text(text: Text) -> str:
    """As a message or a flag takes it: what is not set is named."""
    return "".join(part.text for part in text)


def is_unset(text: Text) -> bool:
    """Whether any of it is unknown."""
    return any(part.unset for part in text)


def line_of(text: Text, otherwise: int) -> int:
    """The line that wrote the start of it."""
    return text[0].line if text else otherwise


def without_line_ends(parts: list[Part]) -> Text:
    """The parts as `$( )` takes them: without the line ends behind them."""
    left = list(parts)
    while left and not left[-1].unset and not left[-1].text.rstrip("\n"):
        left.pop()
    if left and not left[-1].unset:
        last = left[-1]
        left[-1] = Part(last.text.rstrip("\n"), last.line)
    return tuple(left)
