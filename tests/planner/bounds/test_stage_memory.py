"""One chunk per rank: what the layers of a stage must recompute at least
(`planner.bounds.stage_memory`), against every mix and by hand.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from nightly import later

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.bounds.stage_memory import LayoutStages
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import End, StageProblem
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.path import Intervals

Problems = Callable[..., StageProblem]


def test_no_mix_of_a_stage_beats_the_prices_of_memory(problem: Problems) -> None:
    """For 120 problems of one chunk per rank: a stage takes no less than bounded beyond its
    fastest modes, and where it is said not to fit no mix of it does; for most the two agree.
    """
    refused = least = bounded = 0
    for seed in range(120):
        case = problem(seed, 1)
        if case.pp == 1:
            continue
        memory, intervals = LayoutStages(case.alone), Intervals(case)
        for stage, first, end in _stages_of(case):
            where = np.zeros(1, np.int64), *map(np.array, (stage, first, end))
            found_ns = memory.beyond_s(*where)[0] * NS_PER_S
            price = intervals.price(stage, first, end)
            beyond_ns = price.ns - intervals.least_ns(stage, first, end) if price else math.inf
            assert found_ns <= beyond_ns, (seed, stage, first, end)
            refused += math.isinf(found_ns)
            least += math.isinf(beyond_ns)
            bounded += 0 < found_ns < math.inf
    assert refused > 0.95 * least > 100
    assert bounded > 100


def _stages_of(case: StageProblem) -> Iterator[tuple[int, int, int]]:
    layers = range(len(case.pattern) + 1)
    for stage in range(case.pp):
        few = case.fewest_layers(stage)
        yield from ((stage, a, b) for a in layers for b in layers if b >= a + few)


@pytest.mark.parametrize(
    ("room_kib", "expected_ns"),
    [
        pytest.param(1620, 0, id="400 + 100 + 2 x (300 + 260) = 1620: all is kept"),
        pytest.param(1420, 50, id="200 less of 2 held: 100 KiB of the first at 0.5 ns"),
        pytest.param(980, 220, id="320 KiB: 200 at 0.5 ns, 120 at 1 ns"),
        pytest.param(899, math.inf, id="400 + 100 + 2 x (100 + 100) = 900 with all recomputed"),
    ],
)
def test_what_a_stage_of_two_kinds_recomputes(
    room_kib: int, expected_ns: float, problem: Problems
) -> None:
    """A layer that saves 300 or, for 100 ns, 100 KiB; and one that saves 260 or, for 160, 100."""
    nothing = End(0, 0, 0, 0)
    case = problem(
        0, 1, pattern=(0, 1, 0, 1), pp=2, schedule="1f1b", m=4, modes=(0, 2),
        layer_ns=((1000, 1000, 1100), (2000, 2000, 2160)),
        saved_kib=((300, 300, 100), (260, 260, 100)), state_kib=(400, 100), update_kib=(0, 0),
        step_ns=(0, 0), transient_kib=(0, 0, 0), embedding=nothing, head=nothing, send_ns=0,
        fixed_kib=100, cap_kib=100 + room_kib,
    )  # fmt: skip
    where = map(np.array, ([0], 0, 0, 2))
    found_s = LayoutStages(case.alone).beyond_s(*where)[0]
    assert found_s * NS_PER_S == pytest.approx(expected_ns, abs=4)  # rounded down, layer by layer


@later(held_by="test_no_mix_of_a_stage_beats_the_prices_of_memory")
def test_layouts_that_fit_in_no_cut_cost_no_budget() -> None:
    """Jamba in 4 stages on 16 H100: layouts whose stages would fit if all their layers were the
    lightest, and do not, were opened one by one until nothing of the budget was left (without the
    pin 12 % above the best).
    """
    answer = solve(
        Question(
            model=read_model("jamba-v0.1")[1],
            training=Training(seq_len=4096, global_batch_size=512),
            gpus=16,
            cluster=load_cluster("dgx-h100"),
            engine=load_engine("native"),
            pins=parse_pins({"pipeline_parallel": "4"}),
        ),
        1,
    )
    assert answer.listed_bound_s >= answer.solutions[0].step_time_s
