"""The timeline of one training step: what each pipeline rank does when.

The actions are those that `costmodels.schedule.simulation.play` times; each rank then reduces the
gradients that were not hidden, and updates its weights when all ranks have reduced theirs. The
last event ends when the step does, but for what `StepTime.fixed_s` adds once.
"""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.schedule.simulation import play
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass

NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "gradient reduction",
    "U": "weight update",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work of one pipeline rank; `kind` is a key of `NAMES`.

    stage, micro_batch   -1 where the work belongs to none
    """

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start_s: float
    end_s: float

    @property
    def title(self) -> str:
        """Such as "forward 5 (stage 2)", of micro-batch 5; without a stage its kind only."""
        if self.stage < 0:
            return NAMES[self.kind]
        return f"{NAMES[self.kind]} {self.micro_batch} (stage {self.stage})"


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """All events of a step, rank after rank; `micro_batches` of them were played."""

    ranks: int
    micro_batches: int
    events: tuple[Event, ...]

    @property
    def end_s(self) -> float:
        """When the last event ends."""
        return max(event.end_s for event in self.events)

    def of_rank(self, rank: int) -> list[Event]:
        """The events of one pipeline rank, in the order in which they start."""
        return sorted((e for e in self.events if e.rank == rank), key=lambda e: e.start_s)


def step_timeline(step_model: StepModel, most_micro_batches: int | None = None) -> StepTimeline:
    """What `step_model` does in one step, of at most so many micro-batches."""
    la, model = step_model.layout, step_model
    m = shortened(la, model.m, most_micro_batches)
    played = play(la.schedule, la.pipeline_parallel, la.virtual_stages, m, model.work)
    events = [
        Event(rank, action.kind, action.stage, action.micro_batch, start, end)
        for rank, actions in enumerate(played.actions)
        for action, start, end in actions
    ]
    ranks = range(la.pipeline_parallel)
    reduced = [end + model.reduce_s(rank) for rank, end in enumerate(played.end_s)]
    done = max(reduced)
    for rank in ranks:
        events.append(Event(rank, "R", -1, -1, played.end_s[rank], reduced[rank]))
        events.append(Event(rank, "U", -1, -1, done, done + model.update_s(rank)))
    kept = (event for event in events if event.end_s > event.start_s)
    return StepTimeline(la.pipeline_parallel, m, tuple(kept))


def shortened(layout: Layout, micro_batches: int, most: int | None) -> int:
    """At most `most` micro-batches in whole multiples of pipeline_parallel, but two of these."""
    if most is None or micro_batches <= most:
        return micro_batches
    pp = layout.pipeline_parallel
    return min(micro_batches, max(most - most % pp, 2 * pp))
