"""The bounds of the proof under the event simulation: none is above what it bounds."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from every_row import every_row
from links import link
from nightly import blocks, cases, later
from simulated_oracle import (
    DENSE,
    MOE,
    PINNED,
    every_plan,
    random_question,
)

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.costmodels.step.seconds import step_time
from meshplan.costmodels.step.stages import StageModel
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.simulated import Passes, mean_rank_bounds, simulated_bounds
from meshplan.planner.bounds.split_chains import bounds_of_splits, split_bounds_s
from meshplan.planner.bounds.split_times import SplitTimes
from meshplan.planner.bounds.stage_chains import StageChains, cut_bounds
from meshplan.planner.cuts import exact_mixes
from meshplan.planner.cuts.budget import Tally
from meshplan.planner.cuts.exact_mixes import ExactMixes
from meshplan.planner.cuts.known_chains import KnownChains, shape_of
from meshplan.planner.cuts.path_cuts import PathCuts
from meshplan.planner.cuts.recompute_chains import MeanOfChains, RecomputeChains
from meshplan.planner.cuts.simulated_cuts import cuts_below
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins

CLOSE = 1 + 1e-9
EQUAL = 1 + 1.1e-6  # what the proof says of a step


def simulated(question: Question) -> Simulated | None:
    """The proof of a question before it has begun, None without a legal layout."""
    q = question
    space = space_of(q)
    if not len(space.layouts):
        return None
    return Simulated(
        question, space, every_row(q, space), lambda layout: math.inf,
        lambda row, variant, plan: layout_of_row(space.layouts, row, variant, plan),
    )  # fmt: skip


@pytest.mark.parametrize("block", blocks(1, of=4))
def test_no_bound_is_above_a_simulation(block: int) -> None:
    """Of random layouts with random cuts and mixes that fit, none is faster than its layout's bound
    says, and `CutTimes` gives what `StepModel` does.
    """
    compared = 0
    for seed in range(block * 40, block * 40 + cases(24, nightly=40)):
        proof, draw = simulated(random_question(seed)), random.Random(seed)
        for _ in range(6 if proof else 0):
            compared += _compared(proof, draw)
    assert compared >= 20


@later(held_by="test_no_bound_is_above_a_simulation")
def test_no_bound_of_traffic_beside_chunks_is_above_a_simulation() -> None:
    """The same where links are so slow that of an interleaved pipeline's gradients and weights some
    is not hidden beside rounds of its chunks.
    """
    compared = 0
    for seed in range(cases(12, nightly=80)):
        draw, question = random.Random(seed), random_question(seed)
        bytes_per_s = draw.choice((5e8, 2e9, 5e9, 2e10))
        slow = {"node": link(1e-5, bytes_per_s), "network": link(1e-5, bytes_per_s)}
        proof = simulated(replace(
            question, engine=load_engine(draw.choice(("native", "megatron", "megatron-bridge"))),
            gpus=8, cluster=question.cluster.model_copy(update=slow | {"bandwidth_by_nodes": {}}),
            training=replace(question.training, global_batch_size=draw.choice((4, 16))),
            pins=parse_pins({**PINNED, "pipeline_parallel": "2", "virtual_stages": "2.."}),
        ))  # fmt: skip
        for _ in range(3 if proof else 0):
            compared += _compared(proof, draw)
    assert compared >= 10


def test_no_bound_of_copied_shards_is_above_a_simulation() -> None:
    """The same where each backward gathers weights or scatters gradients over a slow network, and
    the last one sums what several copies of a shard have.
    """
    compared = 0
    for seed in range(6, 6 + cases(1, nightly=30)):
        draw, question = random.Random(seed), random_question(seed)
        slow = {"node": link(1e-5, 1e11), "network": link(1e-5, draw.choice((1e9, 2e9, 5e9)))}
        slow |= {"bandwidth_by_nodes": {}, "gpus_per_node": 2}
        proof = simulated(replace(
            question, engine=load_engine("native"), gpus=8,
            cluster=question.cluster.model_copy(update=slow),
            training=replace(question.training, global_batch_size=draw.choice((8, 16))),
            pins=parse_pins({
                "context_parallel": "1", "tensor_parallel": "1", "zero_stage": "2..",
                "shard_group": "2", "pipeline_parallel": "1..2", "virtual_stages": "1",
            }),
        ))  # fmt: skip
        for _ in range(4 if proof else 0):
            compared += _compared(proof, draw)
    assert compared > 1


def test_no_bound_of_mixed_layers_is_above_a_simulation() -> None:
    """The same where layers of two kinds are cut anywhere, one chunk per rank."""
    compared = 0
    for seed in range(cases(6, nightly=30)):
        draw = random.Random(seed)
        question = random_question(seed)
        kinds, layers = (DENSE, MOE), question.model.num_layers
        pattern = tuple(draw.choice(((0, 1), (1, 0), (0, 0, 1)))) * layers
        proof = simulated(replace(
            question, engine=load_engine(draw.choice(("native", "deepspeed", "generic"))),
            model=replace(question.model, kinds=kinds, pattern=pattern[: max(3, layers)]),
            pins=parse_pins({**PINNED, "pipeline_parallel": "2..", "virtual_stages": "1"}),
        ))  # fmt: skip
        for _ in range(3 if proof else 0):
            compared += _compared(proof, draw)
    assert compared >= 6


def test_no_bound_of_mixed_layers_in_chunks_is_above_a_simulation() -> None:
    """Several chunks of layers of two kinds, with no more memory than some mix of a split needs: no
    mix that fits is faster than its cut's bound. What its ranks must recompute in the order of the
    stack raises some, which is charged.
    """
    raised = 0
    for seed in range(cases(8, nightly=40)):
        draw, question = random.Random(seed), random_question(seed)
        pattern = (0, 1, *draw.choices((0, 1), k=max(4, question.model.num_layers) - 2))
        proof = simulated(replace(
            question, engine=load_engine(draw.choice(("native", "generic", "torchtitan"))),
            model=replace(question.model, kinds=(DENSE, MOE), pattern=pattern),
            pins=parse_pins({**PINNED, "pipeline_parallel": "2", "virtual_stages": "2"}),
        ))  # fmt: skip
        if proof:
            raised += _chunks_bound(proof, draw)
    assert raised > 2


def _chunks_bound(proof: Simulated, draw: random.Random) -> int:
    """How many bounds are raised."""
    row, raised = draw.randrange(len(proof.space.layouts)), 0
    variant = max(proof.space.variants(row), key=lambda each: len(each.modes))
    problem = stage_problem(proof.space, proof.prices, row, variant)
    counts = draw.choice(problem.splits or ())
    alone = replace(problem, splits=(counts,))
    mixes = [(plan, stages) for stages in every_plan(alone) if (plan := evaluate(alone, stages))]
    bare = StagePlan(mixes[0][1] if mixes else tuple(map(Stage, counts)), 0, ())
    layout = layout_of_row(proof.space.layouts, row, variant, bare)
    times = CutTimes(proof.setting, layout, proof.passes, row, variant.columns)
    steps = [(max(plan.peak_kib), times.step_s(stages)) for plan, stages in mixes]
    for cap_kib, _ in draw.sample(steps, min(4, len(steps))):
        tight = replace(alone, prices=replace(alone.prices, cap_kib=cap_kib))
        passes, tally = Passes.of(proof.passes, np.array([row]), tight.alone), Tally()
        (cut,) = cuts_below(tight, passes, KnownChains(), lambda: 1e9, tally)
        rough_s = split_bounds_s(tight.alone, passes, 1e9)[2][0]
        assert cut.bound_s <= min(step_s for kib, step_s in steps if kib <= cap_kib) * CLOSE
        assert tally.left < Tally().left
        raised += cut.bound_s > rough_s * CLOSE
    return raised


def test_limits_leave_bounds_below_them_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a limit spares, windows of layers and recomputation of what is slower anyway, changes no
    bound below it.
    """
    below, layers = [0, 0], StageChains.most_layers
    for seed in range(cases(5, nightly=24)):
        question = random_question(seed)
        pattern = (0, 0, 1) * question.model.num_layers
        proof = simulated(replace(
            question, engine=load_engine(("native", "generic")[seed % 2]),
            model=replace(question.model, kinds=(DENSE, MOE), pattern=pattern[: 4 + seed % 4]),
            pins=parse_pins({**PINNED, "pipeline_parallel": "2.."}),
        ))  # fmt: skip
        for row in range(0, len(proof.space.layouts), 17) if proof else ():
            for variant in proof.space.variants(row):
                same = run_as(proof.space, proof.prices, np.array([row]), variant)
                passes = Passes.of(proof.passes, np.array([row]), same)
                several = variant.virtual_stages > 1
                if several:
                    every = bounds_of_any_split(same, passes)
                    limit_s = every[0] * (0.9, 1.1)[row % 2]
                    found = bounds_of_any_split(same, passes, limit_s)
                else:
                    limit_s = 1.3 * mean_rank_bounds(same, passes)[0]
                    found = cut_bounds(same, passes, np.zeros(1), limit_s)
                    with monkeypatch.context() as patch:
                        patch.setattr(
                            StageChains, "most_layers", lambda own, *_: len(own.same.pattern)
                        )
                        every = cut_bounds(same, passes, np.zeros(1), limit_s)
                rounding_s = same.m[0] * len(same.pattern) / NS_PER_S
                assert found[0] <= every[0] + rounding_s
                if found[0] < limit_s:
                    assert found[0] == every[0]
                    below[several] += 1
    assert StageChains.most_layers is layers
    assert min(below) > 5


def _compared(proof: Simulated, draw: random.Random) -> bool:
    row = draw.randrange(len(proof.space.layouts))
    variants = proof.space.variants(row)
    if not variants:
        return False
    variant = draw.choice(variants)
    problem = stage_problem(proof.space, proof.prices, row, variant)
    fitting = (s for s in every_plan(problem) if draw.random() < 0.3)
    plans = [stages for stages, _ in zip(fitting, range(30), strict=False)]
    plans = [stages for stages in plans if evaluate(problem, stages) is not None]
    if not plans:
        return False
    layout = layout_of_row(proof.space.layouts, row, variant, StagePlan(plans[0], 0, ()))
    times = CutTimes(proof.setting, layout, proof.passes, row, variant.columns)
    passes = Passes.of(proof.passes, np.array([row]), problem.alone)
    closely = bounds_of_splits if problem.vpp > 1 else simulated_bounds
    least = closely(problem.alone, passes, 1e9)[0]
    rough = bounds_of_any_split if problem.vpp > 1 else mean_rank_bounds
    for stages in plans:
        assert rough(problem.alone, passes)[0] <= times.step_s(stages) * CLOSE
        assert least <= times.step_s(stages) * CLOSE
        assert proof.open.row_bounds[row] <= times.step_s(stages) * CLOSE
    if problem.splits and problem.vpp > 1:
        _chains_bound(problem, passes, times, plans)
        _mixes_bound(problem, times, plans)
    if problem.vpp == 1:
        _cuts_bound(problem, passes, times, plans)
    own = layout_of_row(proof.space.layouts, row, variant, StagePlan(plans[-1], 0, ()))
    own = replace(own, selective_modules=variant.replayed)
    model = StageModel(proof.setting, own)
    assert times.step_s(plans[-1]) == pytest.approx(step_time(model).step_time_s, rel=1e-9)
    return True


def _cuts_bound(
    problem: StageProblem, passes: Passes, times: CutTimes, plans: list[tuple[Stage, ...]]
) -> None:
    """Every plan that fits is a mix of a cut of the list and not faster than its bound; where any
    cut is legal, not faster than the bound of all, whatever chains are known. And a limit above its
    step leaves its layout open, with the chains of a list's first plan too.
    """
    chains, known = KnownChains(), None
    if problem.splits is not None:
        chains.learn((problem.schedule, problem.pp, 1, problem.m), times, plans[0], 2.0)
        known = chains.bounds_s
    for stages in plans:
        limit_s = times.step_s(stages) * CLOSE
        assert cut_bounds(problem.alone, passes, np.zeros(1), limit_s)[0] < limit_s
        assert cut_bounds(problem.alone, passes, np.zeros(1), limit_s, known)[0] < limit_s
    if problem.splits is None:
        _paths_bound(PathCuts(problem, passes, times, 1e9), plans)
        return
    named = {
        tuple(stage.layers for stage in cut.least): cut.bound_s
        for cut in cuts_below(problem, passes, KnownChains(), lambda: 1e9, Tally())
    }
    for stages in plans:
        bound_s = named[tuple(stage.layers for stage in stages)]
        assert bound_s <= times.step_s(stages) * CLOSE


def _paths_bound(cuts: PathCuts, plans: list[tuple[Stage, ...]]) -> None:
    """With each chain that is learnt the bound is closer, and the cut that it was learnt from is
    then no faster than its simulation says.
    """
    least_s = min(cuts.times.step_s(stages) for stages in plans)
    for _ in range(4):
        bound_s, likeliest, _ = cuts.least(1e9, 1, 10**9)
        assert bound_s <= least_s * CLOSE
        assert likeliest is not None
        cuts.learn(likeliest)
        least_s = min(least_s, cuts.times.step_s(likeliest))
    again_s, found, _ = cuts.least(1e9, 1, 10**9)
    assert again_s >= bound_s / CLOSE
    if found == likeliest:
        assert again_s == pytest.approx(cuts.times.step_s(found), rel=1e-8)


def _chains_bound(
    problem: StageProblem, passes: Passes, times: CutTimes, plans: list[tuple[Stage, ...]]
) -> None:
    """A chain learnt from one cut, with what the rank at its end reduces, bounds all others."""
    shape, chains = shape_of(problem), KnownChains()
    chains.learn(shape, times, plans[0], 2.0)
    assert chains.count(shape) == 1
    bounds = chains.bounds_s(problem.alone, SplitTimes.of(problem.alone, passes))[0]
    for stages in plans:
        split = (problem.splits or ()).index(tuple(stage.layers for stage in stages))
        assert bounds[split] <= times.step_s(stages) * CLOSE


def _mixes_bound(problem: StageProblem, times: CutTimes, plans: list[tuple[Stage, ...]]) -> None:
    """With no more memory than a plan needs, what its split takes at least with the recomputation
    that fits is not above any mix that fits too, of which some hide more of what they reduce;
    neither is what the mean of another split says, or of the same with more memory.
    """
    counts = tuple(stage.layers for stage in plans[0])
    alone, least = replace(problem, splits=(counts,)), min(problem.modes)
    bare = tuple(Stage(n, n * (least == 1), n * (least == 2)) for n in counts)
    mixes = [(evaluate(alone, stages), stages) for stages in every_plan(alone)]
    peaks = [(max(plan.peak_kib), stages) for plan, stages in mixes if plan]
    means = [_mean_of(problem, times, plans[-1], min(kib for kib, _ in peaks))]
    for cap_kib, _ in peaks[:: max(1, len(peaks) // 4)]:
        tight = replace(alone, prices=replace(alone.prices, cap_kib=cap_kib))
        fastest_s = min(times.step_s(stages) for kib, stages in peaks if kib <= cap_kib)
        after = times.least_after_s(bare, range(problem.pp), fastest_s)
        chains = RecomputeChains(tight, times, bare, after)
        for mean in filter(None, means):
            assert chains.bound_s(mean) <= fastest_s * CLOSE
        answer = chains.answer(math.inf)
        means.append(answer.mean)
        assert answer.bound_s <= fastest_s * CLOSE
        if not problem.first:  # that rule leaves one mix, which is found without
            _exact_is_fastest(tight, times, bare, after, fastest_s)


def _mean_of(
    problem: StageProblem, times: CutTimes, stages: tuple[Stage, ...], cap_kib: int
) -> MeanOfChains | None:
    """The mean of chains of the split of `stages`, none where it does not fit."""
    counts, least = tuple(stage.layers for stage in stages), min(problem.modes)
    prices = replace(problem.prices, cap_kib=cap_kib)
    tight = replace(problem, splits=(counts,), prices=prices)
    bare = tuple(Stage(n, n * (least == 1), n * (least == 2)) for n in counts)
    return RecomputeChains(tight, times, bare, times.after_s(bare)).answer(math.inf).mean


def _exact_is_fastest(
    problem: StageProblem, times: CutTimes, bare: tuple[Stage, ...], after: After, fastest_s: float
) -> None:
    """With rounds enough the mixes of one split are its fastest, and none is below it; with one
    round the bound holds.
    """
    for rounds, ends in ((1, False), (1_000, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exact_mixes, "ROUNDS", rounds)
            answer = ExactMixes(problem, times, bare, after, 1.2 * fastest_s).answer((), 10.0)
            below = ExactMixes(problem, times, bare, after, 0.999 * fastest_s).answer((), 10.0)
        assert fastest_s / CLOSE <= answer.step_s <= fastest_s * (1 + 1e-6) or not ends
        assert answer.bound_s <= fastest_s * CLOSE
        assert answer.bound_s >= answer.step_s / EQUAL or not ends
        assert below.bound_s <= 0.999 * fastest_s <= below.step_s
        assert below.bound_s >= 0.999 * fastest_s / EQUAL or not ends
