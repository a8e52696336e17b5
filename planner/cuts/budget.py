"""The budget of the search under the event simulation: what each kind of work costs of it.

It counts work, not seconds: equal questions give equal answers. Only a deadline is of the clock.
"""

import time
from dataclasses import field

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.cuts.known_chains import Shape, actions_of

BUDGET = 20_000_000  # one unit is the time of one played action, 60 to 90 ns: some 1.6 seconds

# What work costs.
ROW = 16  # each legal row: enumerated, and priced or let go before the proof begins
LEAST = 3  # however many rows there are, one part in so many of the budget is left
OPENED, LOOKED_AT = 25_000, 5_000  # a layout opened for the simulation; each of its cuts simulated
WAYS, STEP = 13_000, 100  # a layout that may be cut anywhere; each interval of its layers
WAY, LABEL = 20_000, 4  # a pass that looks for the likeliest of its cuts; each label of a pass
ORDERED = 50  # where kinds differ: each layer of a rank whose least recomputation is found
NEW_SHAPE = 15  # each action of an order that is written out for the first time
CHAINED, CHAINS = 20, 150_000  # a bound by means of chains: each action of the step; the bound
KNOWN_MEAN = 30_000  # a bound by a mean of chains that was found for another cut
KNAPSACKS = 14_000  # solving the knapsacks of all ranks once, for either
EXACT, SOLVED = 500_000, 40_000_000  # the exact mixes of a cut; each deterministic second of CP-SAT

# How the budget is shared out.
RUNNERS, OPEN = 8_000_000, 4  # runners-up: at most so much; a part of it if the proof stays open
RUNNERS_UP = 6  # runners-up: at least one part in so many, which is set apart
CLOSER = 12  # set apart for closer bounds of what is left open: one part in so many
WIDE, MORE = 0.97, 1_000_000  # while a bound is below so much of the best, so much more at a time,
BEYOND = 19_000_000  # in all as much as the rows took, and so much: some 1.6 seconds
EARLY = 6  # layers are moved once one part in so many is spent: a better plan leaves less to bound

MOST_CHAINED = 60_000  # actions of the longest step that is bounded by means of chains


def after_rows(rows: int) -> int:
    """What is left of the budget where so many rows are legal."""
    return max(BUDGET // LEAST, BUDGET - ROW * rows)


@dataclass
class Tally:
    """Cuts that were simulated, and what is left of the budget; nothing new is begun after the
    deadline, of `time.perf_counter`.
    """

    simulated: int = 0
    left: int = BUDGET
    deadline: float | None = None
    shapes: set[Shape] = field(default_factory=set)

    def end(self) -> None:
        """All that would follow is late, as after Ctrl-C."""
        self.deadline = time.perf_counter()

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
