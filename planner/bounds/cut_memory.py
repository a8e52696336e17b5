"""Whether any cut of one chunk per rank fits in some mix of recomputation, without pricing one.

As in `planner.bounds.split_memory` a mix has a largest transient, and every layer is in whichever
mode of no larger one keeps least. What a stage needs so grows with each layer more, and a stage
that starts later reaches no less far: if stages that each hold all that fits, the first ones first,
leave a layer over, every cut does.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from meshplan.planner.bounds.split_memory import least_kept
from meshplan.planner.problem.stage_problem import StageProblem


def some_cut_fits(problem: StageProblem) -> bool:
    """Whether some cut may fit; false: none does."""
    assert problem.vpp == 1, "one chunk per rank"
    stages, position, near, layers = _Stages.of(problem), 0, 1, len(problem.pattern)
    needed = [problem.fewest_layers(stage) for stage in range(problem.pp)]
    left = sum(needed)
    for stage, fewest in enumerate(needed):
        left -= fewest
        ends = range(position + fewest, layers - left + 1)
        reach = stages.reach(stage, position, ends, position + near)
        if reach is None:
            return False
        position, near = reach, reach - position
    return position == layers


class _Stages(NamedTuple):
    """The stages of a problem.

    states, updates  KiB of the first 0, 1, 2, .. layers
    kept             by largest transient, the least that a micro-batch keeps in them
    """

    problem: StageProblem
    states: list[int]
    updates: list[int]
    kept: list[tuple[int, list[int]]]

    @classmethod
    def of(cls, problem: StageProblem) -> "_Stages":
        """Built from sums over the layers of `problem`."""

        def sums(of_kind: Sequence[int]) -> list[int]:
            return list(accumulate((of_kind[kind] for kind in problem.pattern), initial=0))

        levels = sorted({problem.transient_kib[mode] for mode in problem.modes})
        kept = [(level, sums(least_kept(problem, level).astype(int).tolist())) for level in levels]
        return cls(problem, sums(problem.state_kib), sums(problem.update_kib), kept)

    def reach(self, stage: int, first: int, ends: range, near: int) -> int | None:
        """The last of the `ends` up to which layers from `first` fit, looked for from `near` on;
        None: not to the first.
        """
        if not ends:
            return None
        need_kib = self._needs_kib(stage, first)
        end, cap_kib = min(max(near, ends[0]), ends[-1]), self.problem.cap_kib
        if need_kib(end) <= cap_kib:
            while end < ends[-1] and need_kib(end + 1) <= cap_kib:
                end += 1
            return end
        while end > ends[0]:
            end -= 1
            if need_kib(end) <= cap_kib:
                return end
        return None

    def _needs_kib(self, stage: int, first: int) -> Callable[[int], int]:
        """What the stage holds at its fullest moment, with layers `first` .. end - 1."""
        p, held = self.problem, int(self.problem.in_flight[stage][0][0])
        own = [end for end, at in ((p.embedding, 0), (p.head, p.pp - 1)) if at == stage]
        fixed = p.fixed_kib + sum(end.state_kib for end in own) - self.states[first]
        updated = sum(end.update_kib for end in own) - self.updates[first]
        saved = sum(end.saved_kib for end in own)
        floor = max((end.transient_kib for end in own), default=0)
        levels = [(max(level, floor), kept, saved - kept[first]) for level, kept in self.kept]

        def need_kib(end: int) -> int:
            running = [
                held * (kept[end] + more) + (transient if end > first else floor)
                for transient, kept, more in levels
            ]
            return fixed + self.states[end] + max(min(running), updated + self.updates[end])

        return need_kib
