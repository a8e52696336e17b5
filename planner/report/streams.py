"""The communication of a step as streams beside the computing of each pipeline rank.

What an action sends is known as a whole, and how much of it the engine cannot hide; not when within
the action each collective runs. So a stream begins with its action and lasts as long as its
collectives take together: its length is the model's, its place within the action is not.

    tensor, context, expert   collectives of the passes, by axis
    weights                   ZeRO's gathering and scattering beside the passes; the reduction of
                              the gradients, which ends when the rank's step does (what is hidden of
                              it lies under the last backward passes); the gathering of updated
                              weights that the next forward does not hide
    pipeline                  an activation or its gradient on the way to the next rank

How long all collectives take together is what they would cost an engine that hides nothing.
"""

from functools import cached_property

from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.seconds.cost import Cost, Pass
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.hardware_profiles.dataclass import dataclass

STREAMS = {
    "tensor": "tensor-parallel collectives",
    "context": "context-parallel exchange",
    "expert": "expert dispatch and combine",
    "weights": "gradients and weights",
    "pipeline": "pipeline messages",
}
_PASSES = {
    "F": ("forward",),
    "B": ("replay", "input_grad", "weight_grad"),
    "I": ("replay", "input_grad"),
    "W": ("weight_grad",),
}
_PARTS = {"tensor": "tensor_s", "context": "context_s", "expert": "expert_s", "weights": "data_s"}


@dataclass(frozen=True, slots=True)
class Sent:
    """Seconds of one stream in one action: all of it, and what nothing hides."""

    whole_s: float
    exposed_s: float


class Traffic:
    """What each action and each rank's end of step sends, of one layout."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        setting = model.setting
        nothing = {
            name: 0.0 for name in type(setting.engine.overlap).model_fields if name != _WAITS
        }
        overlap = setting.engine.overlap.model_copy(update=nothing)
        engine = setting.engine.model_copy(update={"overlap": overlap})
        blunt = Setting(setting.model, setting.training, setting.cluster, engine, setting.tuning)
        self._unhidden = StepModel(blunt, model.layout)

    @cached_property
    def by_action(self) -> dict[tuple[int, str], dict[str, Sent]]:
        """What an action of a virtual stage ("F", "B", "I" or "W") sends, by stream."""
        shown, whole = self.model.stage_costs, self._unhidden.stage_costs
        found = {}
        for stage, (seen, all_of_it) in enumerate(zip(shown, whole, strict=True)):
            for kind in _PASSES:
                sent = {
                    name: Sent(_seconds(all_of_it, kind, part), _seconds(seen, kind, part))
                    for name, part in _PARTS.items()
                }
                found[stage, kind] = {name: s for name, s in sent.items() if s.whole_s > 0}
        return found

    @property
    def message(self) -> Sent:
        """One activation or gradient to the next rank."""
        model = self.model
        hop = float(model.hops.hop_s)
        return Sent(hop, hop * (1 - model.setting.engine.overlap.pipeline))

    def reduction(self, rank: int) -> Sent:
        """The gradients of `rank`, once per step."""
        model = self.model
        whole = float(model.traffic.once_s(model.rank_parameters[rank]))
        return Sent(whole, model.reduce_s(rank))

    def gathering(self, rank: int) -> Sent:
        """The updated weights of `rank`, once per step."""
        model = self.model
        parameters = model.rank_parameters[rank]
        shown = model.update_s(rank) - float(model.optimizer_s(parameters))
        return Sent(float(model.traffic.refresh_s(parameters)), shown)

    def neighbour(self, stage: int, kind: str) -> int | None:
        """The rank that waits for what an action of `stage` produces; None if this one or none."""
        la = self.model.layout
        target = stage + 1 if kind == "F" else stage - 1
        if kind == "W" or not 0 <= target < len(la.stages):
            return None
        ranks = [rank_of_chunk(la.schedule, la.pipeline_parallel, i) for i in (stage, target)]
        return ranks[1] if ranks[0] != ranks[1] else None


_WAITS = "waits_at_boundaries"


def _seconds(cost: Cost, kind: str, part: str) -> float:
    passes: list[Pass] = [getattr(cost, name) for name in _PASSES[kind]]
    return sum(float(getattr(each, part)) for each in passes)
