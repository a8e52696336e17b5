"""Bounds of equal stages, and of one that is slower than the others, are the step itself.

What only loosens a bound is below every step as well, so no law of lower bounds sees it; the search
looks at more layouts then.
"""

from collections.abc import Callable

import numpy as np
import pytest
from stage_problems import problem_of

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import play
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.late import Lines
from meshplan.planner.bounds.simulated import Passes, mean_rank_bounds, simulated_bounds
from meshplan.planner.bounds.split_chains import bounds_of_splits
from meshplan.planner.bounds.split_times import rows_below
from meshplan.planner.bounds.stage_chains import cut_bounds
from meshplan.planner.problem import closed_form
from meshplan.planner.problem.same_pipeline import SamePipeline
from meshplan.planner.problem.stage_problem import End

LAYER_S, ONCE_S = (2.0, 3.0, 5.0), 11.0
NOTHING = np.zeros(1)
BEYOND_S = 1e6  # a limit
BOUNDS: dict[str, Callable[[SamePipeline, Passes], Floats]] = {
    "mean rank": mean_rank_bounds,
    "whole layers": lambda same, passes: simulated_bounds(same, passes, BEYOND_S),
    "cut": lambda same, passes: cut_bounds(same, passes, NOTHING, BEYOND_S),
    "any split": bounds_of_any_split,
    "splits": lambda same, passes: bounds_of_splits(same, passes, BEYOND_S)[0],
}


def pipeline(schedule: Schedule, pp: int, vpp: int, m: int) -> SamePipeline:
    """One layout with two layers on each chunk, of which nothing must be recomputed."""
    return problem_of(
        pattern=(0,) * 2 * pp * vpp, schedule=schedule, pp=pp, vpp=vpp, m=m, modes=(0,),
        splits=((2,) * pp * vpp,), layer_ns=((100, 0, 0),), saved_kib=((1, 1, 1),), state_kib=(1,),
        update_kib=(0,), step_ns=(0,), transient_kib=(0, 0, 0), embedding=End(), head=End(),
        send_ns=0, fixed_kib=0, cap_kib=10**9, fixed_step_ns=0,
        passes_ns=closed_form.Passes(1, 1, 1),
    ).alone  # fmt: skip


def seconds(
    *,
    embedding: tuple[float, ...] = (0.0, 0.0, 0.0),
    head: tuple[float, ...] = (0.0, 0.0, 0.0),
    extra: float = 0.0,
    hop: float = 0.0,
    late: float = 0.0,
) -> Passes:
    """Of one row; the rank with the embedding reduces that for `late`, no other rank anything."""
    ends = np.zeros((1, 4, 2))
    ends[..., 0] = late
    return Passes(
        layer=np.array([[LAYER_S]]), longer=np.zeros((1, 1, 3)), embedding=np.array([embedding]),
        head=np.array([head]), extra=np.array([extra]), hop=np.array([hop]), update=NOTHING,
        once=np.array([ONCE_S]), replays=NOTHING,
        late=Lines(np.zeros((1, 4, 1)), ends, np.zeros((1, 4))),
    )  # fmt: skip


def step_s(same: SamePipeline, passes: Passes) -> float:
    """The step of these passes, played action by action; then the first rank reduces."""
    chunks = np.array([2 * np.array(LAYER_S)] * same.chunks)
    chunks[:, :2] += passes.extra
    chunks[0] += passes.embedding[0]
    chunks[-1] += passes.head[0]
    forward, input_grad, weight_grad = (tuple(each) for each in chunks.T.tolist())
    work = Work(forward, input_grad, weight_grad, float(passes.hop[0]))
    first_s, *others_s = play(same.schedule, same.pp, same.vpp, int(same.m[0]), work).end_s
    return max(first_s + float(passes.late.ends[0, 0, 0]), *others_s) + ONCE_S


EVEN, EXTRA = {}, {"extra": 0.5}
MESSAGES, SLOW_MESSAGES = {"hop": 0.25}, {"hop": 100.0}
FIRST, LAST = {"embedding": (7.0, 11.0, 13.0)}, {"head": (17.0, 19.0, 23.0)}
REDUCED = {"late": 29.0}
ONE_CHUNK = ("whole layers", "cut")
CHUNKS = ("any split", "splits")


@pytest.mark.parametrize(
    ("shape", "slower", "names"),
    [
        *((("1f1b", 4, 1, 8), each, ONE_CHUNK) for each in (EVEN, EXTRA)),
        *(((schedule, 4, 1, 8), REDUCED, ("whole layers",))
          for schedule in ("1f1b", "gpipe", "zb_h1")),
        *((("1f1b", 4, 1, 2), each, ONE_CHUNK) for each in (MESSAGES, SLOW_MESSAGES)),
        *((("gpipe", 4, 1, 8), each, ("mean rank", *ONE_CHUNK))
          for each in (EVEN, EXTRA, MESSAGES, SLOW_MESSAGES)),
        *((("zb_h1", 4, 1, m), each, ONE_CHUNK)
          for m in (3, 8) for each in (EVEN, EXTRA, MESSAGES)),
        *(((schedule, 4, 1, 8), each, ("cut",))
          for schedule in ("1f1b", "gpipe", "zb_h1") for each in (FIRST, LAST)),
        *((("interleaved_1f1b", 4, 2, 8), each, CHUNKS)
          for each in (EVEN, EXTRA, LAST, REDUCED)),
        *(((schedule, pp, 2, 8), each, CHUNKS)
          for schedule, pp in (("zb_v", 2), ("dualpipe_v", 4)) for each in (FIRST, LAST)),
        *(((schedule, pp, 2, 8), FIRST | REDUCED, ("splits",))
          for schedule, pp in (("zb_v", 2), ("dualpipe_v", 4))),
    ],
)  # fmt: skip
def test_some_chain_of_equal_stages_is_the_step(
    shape: tuple[Schedule, int, int, int],
    slower: dict[str, float],
    names: tuple[str, ...],
) -> None:
    """Where ranks wait for one path alone: of equal ones for any, else for the slower rank's."""
    same, passes = pipeline(*shape), seconds(**slower)
    expected_s = step_s(same, passes)
    for name in names:
        assert BOUNDS[name](same, passes)[0] == pytest.approx(expected_s), name
    if "splits" in names:
        limits = (expected_s * (1 - 1e-6), expected_s * (1 + 1e-6))
        assert [len(rows_below(same, passes, limit_s)) for limit_s in limits] == [0, 1]
