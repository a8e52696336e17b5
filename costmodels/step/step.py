"""One training step of one layout, where all costs meet: its time and its memory."""

from dataclasses import replace
from functools import cached_property

from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.step.memory import is_pressed, reserved_bytes, slack_bytes, step_memory
from meshplan.costmodels.step.rank_memory import context_bytes
from meshplan.costmodels.step.seconds import StepTime, reduce_s, schedule_work, step_time, update_s
from meshplan.costmodels.step.setting import Setting
from meshplan.costmodels.step.stages import StageModel

__all__ = ["Setting", "StepModel", "StepTime"]


class StepModel(StageModel):
    """The stages of one layout in one setting, asked for a whole step."""

    work = cached_property(schedule_work)
    reduce_s = reduce_s
    update_s = update_s
    context_bytes = cached_property(context_bytes)
    slack_bytes = slack_bytes
    reserved_bytes = reserved_bytes
    _memory = cached_property(step_memory)

    def memory(self) -> tuple[Memory, ...]:
        """Peak of each pipeline rank, by category."""
        return self._memory

    def time(self) -> StepTime:
        """Seconds of one step, by cause. An allocator that must give blocks back to the device
        before it can take others stops the step each time: the search leaves that out, the
        simulation does not.
        """
        time, slowdown = step_time(self), self.setting.tuning.pressed_slowdown
        if not (slowdown and is_pressed(self, self.memory())):
            return time
        return replace(time, fixed_s=time.fixed_s + slowdown * time.step_time_s)
