"""The order of a pipeline rank's actions, as torch.distributed.pipelining generates it.

F forward, B backward, I its input gradient only, W its weight gradients. Virtual stages are placed in
loops (stage s on rank s mod pp) except in the V schedules (zb_v, dualpipe_v), where rank r holds stages
r and 2 pp - 1 - r. zb_h1 is torch's InterleavedZeroBubble with one stage per rank.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from torch.distributed.pipelining import schedules

from costmodels.layout import Layout

V_SCHEDULES = ("zb_v", "dualpipe_v")
GENERATORS: dict[str, Any] = {
    "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
    "zb_h1": schedules.ScheduleInterleavedZeroBubble,
    "zb_v": schedules.ScheduleZBVZeroBubble,
    "dualpipe_v": schedules.ScheduleDualPipeV,
}
KINDS: dict[Any, Literal["F", "B", "I", "W"]] = {
    schedules.FORWARD: "F",
    schedules.FULL_BACKWARD: "B",
    schedules.BACKWARD_INPUT: "I",
    schedules.BACKWARD_WEIGHT: "W",
}


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a pipeline rank does to one micro-batch in one virtual stage."""

    kind: Literal["F", "B", "I", "W"]
    stage: int
    micro_batch: int


def stages_of(layout: Layout, pp_rank: int) -> list[int]:
    """The virtual stages that a pipeline rank holds, in model order."""
    pp = layout.pipeline_parallel
    if layout.schedule in V_SCHEDULES:
        return [pp_rank, 2 * pp - 1 - pp_rank]
    return [pp_rank + chunk * pp for chunk in range(layout.virtual_stages)]


def rank_of(layout: Layout, stage: int) -> int:
    """The pipeline rank that holds a virtual stage."""
    pp = layout.pipeline_parallel
    if layout.schedule in V_SCHEDULES and stage >= pp:
        return 2 * pp - 1 - stage
    return stage % pp


def actions(layout: Layout, num_micro_batches: int) -> list[list[Action]]:
    """What each pipeline rank does, in order."""
    pp = layout.pipeline_parallel
    if layout.schedule == "gpipe":
        return [_one_stage(rank, num_micro_batches, num_micro_batches) for rank in range(pp)]
    if layout.schedule == "1f1b":
        return [_one_stage(rank, num_micro_batches, pp - rank) for rank in range(pp)]
    held = [_Held(layout, index) for index in stages_of(layout, 0)]
    order = GENERATORS[layout.schedule](
        held, num_micro_batches, loss_fn=_never_called, scale_grads=False
    ).pipeline_order
    return [_flatten(order[rank]) for rank in range(pp)]


def _one_stage(rank: int, num_micro_batches: int, ahead: int) -> list[Action]:
    """Forward `ahead` micro-batches, then one backward per forward, then the rest of the backward."""
    ahead = min(ahead, num_micro_batches)
    done = [Action("F", rank, i) for i in range(ahead)]
    for i in range(num_micro_batches):
        done.append(Action("B", rank, i))
        if ahead + i < num_micro_batches:
            done.append(Action("F", rank, ahead + i))
    return done


class _Held(SimpleNamespace):
    """What torch's generators ask of a stage: its number and the size of its pipeline."""

    def __init__(self, layout: Layout, index: int) -> None:
        super().__init__(
            stage_index=index,
            num_stages=len(layout.stages),
            group_size=layout.pipeline_parallel,
            group_rank=0,
            group=None,
            submod=None,
            is_first=index == 0,
            is_last=index == len(layout.stages) - 1,
            has_backward=True,
            stage_index_to_group_rank={},
        )


def _never_called(*_: Any) -> Any:
    raise AssertionError("the engine computes the loss in the last stage")


def _flatten(order: list[Any]) -> list[Action]:
    """Torch's actions without its idle slots; an overlapped pair becomes its two parts."""
    found: list[Action] = []
    for action in order:
        if action is None:
            continue
        for part in action.sub_actions or (action,):
            found.append(
                Action(KINDS[part.computation_type], part.stage_index, part.microbatch_index)
            )
    return found
