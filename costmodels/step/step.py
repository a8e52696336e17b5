"""One training step of one layout, where all costs meet: its time and its memory."""

from dataclasses import replace
from functools import cached_property

from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.ranks.memory import context_bytes
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.memory import (
    is_pressed,
    reserved_bytes,
    returned_bytes,
    slack_bytes,
    step_memory,
)
from meshplan.costmodels.step.seconds import StepTime, reduce_s, schedule_work, step_time, update_s
from meshplan.costmodels.step.stages import StageModel

__all__ = ["Setting", "StepModel", "StepTime"]


class StepModel(StageModel):
    """The stages of one layout in one setting, asked for a whole step."""

    work = cached_property(schedule_work)
    reduce_s = reduce_s
    update_s = update_s
    slack_bytes = slack_bytes
    reserved_bytes = reserved_bytes
    returned_bytes = returned_bytes
    _memory = cached_property(step_memory)

    @cached_property
    def context_bytes(self) -> float:
        """Device memory outside the allocator."""
        return float(context_bytes(self))

    def memory(self) -> tuple[Memory, ...]:
        """Peak of each pipeline rank, by category."""
        return self._memory

    def time(self) -> StepTime:
        """Seconds of one step, by cause. An allocator that must give blocks back to the device
        before it can take others stops each micro-batch: the search leaves that out, the simulation
        does not.
        """
        time, stall_s = step_time(self), self.setting.tuning.pressed_s
        if not (stall_s and is_pressed(self, self.memory())):
            return time
        return replace(time, fixed_s=time.fixed_s + stall_s * self.m)
