"""The budget of the search under the event simulation: what each kind of work costs of it.

It counts work, not seconds: equal questions give equal answers. Only a deadline is of the clock.
"""

import time
from dataclasses import dataclass, field

from meshplan.planner.cuts.known_chains import Shape, actions_of

BUDGET = 20_000_000  # in the time of one played action, some 60 to 90 ns: 1.6 seconds
ROW = 16  # a legal row, enumerated and priced or let go before there is a proof
LEAST = 3  # however many rows there are, so small a part is left
OPENED, LOOKED_AT = 25_000, 5_000  # a layout is looked up for the simulation; one of its cuts
WAYS, STEP = 13_000, 100  # one that may be cut anywhere; each interval of its layers
WAY, LABEL = 20_000, 4  # the likeliest of its cuts; each beginning of one
ORDERED = 50  # a layer of a rank with several kinds, of what the rank must recompute
RUNNERS, OPEN = 12_000_000, 3  # the most for runners-up; so large a part where the proof stays open
RUNNERS_UP = 6  # and the least, so small a part of all
CLOSER = 12  # and for closer bounds of what the rest leaves
WIDE, MORE = 0.97, 1_000_000  # what is open below so much of the best gets more of what rows took
BEYOND = 19_000_000  # and then so much: some 1.6 seconds
EARLY = 6  # so small a part is spent before layers are moved: a better plan leaves less
NEW_SHAPE = 15  # an action whose order is written out first costs so many
CHAINED, CHAINS = 20, 150_000  # a bound by means of chains: for each action, and for each bound
KNOWN_MEAN = 30_000  # by the mean of another cut
KNAPSACKS = 14_000  # each time that the knapsacks of all ranks are solved for it
EXACT, SOLVED = 500_000, 40_000_000  # the exact mixes of a cut; a deterministic second of CP-SAT
MOST_CHAINED = 60_000  # actions of a step that is bounded so


def after_rows(rows: int) -> int:
    """What is left of the budget where so many rows are legal."""
    return max(BUDGET // LEAST, BUDGET - ROW * rows)


@dataclass
class Tally:
    """What was done: layouts opened, cuts simulated, cuts mixed before their turn, and what is left
    of the budget; nothing new is begun after the deadline, of `time.perf_counter`.
    """

    opened: int = 0
    dived: int = 0
    simulated: int = 0
    left: int = BUDGET
    deadline: float | None = None
    shapes: set[Shape] = field(default_factory=set)

    @property
    def late(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    @property
    def ended(self) -> bool:
        """Whether it is, or nothing is left."""
        return self.left <= 0 or self.late

    def spend(self, shape: Shape) -> None:
        """Count one simulation."""
        self.simulated += 1
        self.left -= actions_of(shape) * (1 if shape in self.shapes else NEW_SHAPE)
        self.shapes.add(shape)
