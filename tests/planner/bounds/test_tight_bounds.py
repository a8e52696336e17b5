"""Bounds of equal stages, and of one that is slower than the others, are the step itself.

What only loosens a bound is below every step as well, so no law of lower bounds sees it; the search
looks at more layouts then.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from simulated_oracle import PINNED, random_question
from stage_problems import problem_of

from meshplan.costmodels.layout import Schedule, Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import play
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.late import SHOWN, Lines
from meshplan.planner.bounds.simulated import Passes, mean_rank_bounds, simulated_bounds
from meshplan.planner.bounds.split_chains import bounds_of_splits
from meshplan.planner.bounds.split_times import rows_below
from meshplan.planner.bounds.stage_chains import cut_bounds
from meshplan.planner.problem.closed_form import Passes as PassNanoseconds
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as
from meshplan.planner.problem.stage_problem import End, StagePlan
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.space.pins import parse_pins

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
        passes_ns=PassNanoseconds(1, 1, 1),
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


def test_no_second_of_one_rank_is_left_out() -> None:
    """Of layouts without a pipeline, where nothing must be recomputed: all that is not counted is
    what a rank's last backward and its rounds hide of traffic differently.
    """
    asked = 0
    for seed, engine in enumerate(("native", "megatron", "deepspeed", "torchtitan")):
        question = random_question(seed)
        found = list(_of_one_rank(replace(
            question, model=replace(question.model, mtp_layers=0), engine=load_engine(engine),
            pins=parse_pins({**PINNED, "pipeline_parallel": "1", "virtual_stages": "1"}),
        )))  # fmt: skip
        asked += len(found)
        assert min(found) > 0.9995, engine
        assert max(found) < 1 + 1e-9, engine
    assert asked > 40


def _of_one_rank(question: Question) -> Iterator[float]:
    """Of some layouts, which part of the step the bound is."""
    space, setting = space_of(question), question.setting
    space = space.take(np.arange(0, len(space.layouts), 5))
    prices = replace(price_space(question, space, closed_form), cap_kib=10**12)
    found, stages = pass_seconds(space.layouts, setting), (Stage(question.model.num_layers),)
    for row in range(len(space.layouts)):
        for variant in [each for each in space.variants(row) if 0 in each.modes][:1]:
            at = np.array([row])
            same = run_as(space, prices, at, variant)
            layout = layout_of_row(space.layouts, row, variant, StagePlan(stages, 0, ()))
            times = CutTimes(setting, layout, found, row, variant.columns)
            bound = simulated_bounds(same, Passes.of(found, at, same), BEYOND_S)
            yield float(bound[0]) / times.step_s(stages)


@pytest.mark.parametrize(
    ("shape", "name", "expected_s"),
    [
        pytest.param(("1f1b", 4, 1, 8), "mean rank", 16 + 0.75 + 16 + 128 + 100 + 11,
                     id="down 16 + 3 x 0.25, (8 - 4) F of 16 / 4, 8 B of 64 / 4"),
        pytest.param(("1f1b", 4, 1, 2), "mean rank", 16 + 0.75 + 32 + 100 + 11,
                     id="all 2 forwards are begun"),
        pytest.param(("gpipe", 4, 1, 8), "mean rank", 32 + 128 + 100 + 11, id="8 F, 8 B"),
        pytest.param(("zb_v", 2, 2, 4), "any split", 160 + 2.125 + 200 + 11,
                     id="4 x 40, down (0 + 4 + 0.25) / 2, half as many ranks"),
    ],
)  # fmt: skip
def test_the_mean_rank_has_its_share_of_what_is_reduced(
    shape: tuple[Schedule, int, int, int], name: str, expected_s: float
) -> None:
    """400 s that no backward hides on one rank of four, or of two; a chunk has 4, 6 and 10 s, a
    message 0.25 s, and 11 s come once.
    """
    passes = seconds(hop=0.25, late=400.0)
    passes.late.ends[:, SHOWN] = 0.0
    assert BOUNDS[name](pipeline(*shape), passes)[0] == pytest.approx(expected_s)


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
