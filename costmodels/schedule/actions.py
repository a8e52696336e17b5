"""Actions of a pipeline (`2F0`), the seconds that they take, and a timeline of them.

An action is `2F0`: virtual stage 2, forward, micro-batch 0. `B` is a whole backward; zero-bubble
schedules split it into `I` (input gradient, which the previous stage waits for) and `W` (weight
gradient, which nobody does).
"""

from typing import Literal, NamedTuple

from meshplan.hardware_profiles.dataclass import dataclass

Kind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One piece of work of one virtual stage; prints as `2F0`."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of each virtual stage's actions, and of handing an activation to the next rank.

    forward_s, input_grad_s, weight_grad_s  by virtual stage in model order
    send_s                                  arrival after the sender is done
    """

    forward_s: tuple[float, ...]
    input_grad_s: tuple[float, ...]
    weight_grad_s: tuple[float, ...]
    send_s: float

    def seconds(self, action: Action) -> float:
        """How long `action` keeps its rank busy."""
        stage = action.stage
        if action.kind == "F":
            return self.forward_s[stage]
        if action.kind == "I":
            return self.input_grad_s[stage]
        if action.kind == "W":
            return self.weight_grad_s[stage]
        return self.input_grad_s[stage] + self.weight_grad_s[stage]

    @property
    def table(self) -> list[float]:
        """`seconds` of every action, at the place that `place_in_table` gives."""
        backward = [i + w for i, w in zip(self.input_grad_s, self.weight_grad_s, strict=True)]
        return [*self.forward_s, *backward, *self.input_grad_s, *self.weight_grad_s]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each action started and ended, by pipeline rank, and when each rank was done."""

    actions: tuple[tuple[tuple[Action, float, float], ...], ...]

    @property
    def end_s(self) -> tuple[float, ...]:
        """When each rank ended its last action."""
        return tuple(rank[-1][2] for rank in self.actions)

    @property
    def makespan_s(self) -> float:
        """When the last rank was done."""
        return max(self.end_s)
