"""What fits by every moment and not by the bound: the mixes of one cut, and what a rank needs."""

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
from nightly import cases
from simulated_oracle import every_kind, recomputed
from small_cuts import cuts, every_layout, small_question

from meshplan.costmodels.layout import Layout, Schedule, Stage
from meshplan.costmodels.prices.prices import bytes_beside_one_layer
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.problem.coefficients import KIB, NS_PER_S, Coefficients
from meshplan.planner.problem.stage_problem import (
    StageProblem,
    chunk_times_ns,
    evaluate,
    modes_of,
    peak_kib,
    starts_of,
)
from meshplan.planner.search.held_memory.counted_cuts import CountedCut
from meshplan.planner.search.row_layout import layers_of
from meshplan.planner.search.rows.least_held import LeastHeld
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space
from meshplan.planner.search.simulation.counted_ranks import CountedRanks, RankWays
from meshplan.planner.search.simulation.ranks_that_fit import RanksThatFit
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.space.stage_splits import MOST_WAYS, lists_all, splits

Stages = tuple[Stage, ...]


def drawn_cuts(
    seeds: range, schedules: frozenset[Schedule] = frozenset(get_args(Schedule))
) -> Iterator[tuple[Question, CutTimes, StageProblem, tuple[Stage, ...], random.Random]]:
    """A random cut of a random layout of `native` for each question, with a part of the memory that
    it needs with nothing recomputed.
    """
    for seed in seeds:
        draw = random.Random(seed)
        question = replace(small_question(seed, 5), engine=load_engine("native"))
        every = list(every_layout(question))
        if layouts := [each for each in every if each[1].schedule in schedules]:
            number = draw.randrange(len(layouts))
            times, problem = layouts[number]
            bare = tuple(map(Stage, draw.choice(list(cuts(problem)))))
            own = step_model_of(case_at(question, replace(times.layout, stages=bare)))
            memory = max(rank.needed for rank in stage_memory(own)) * draw.uniform(0.7, 1.0)
            cluster = question.cluster.model_copy(update={"usable_memory_bytes": memory})
            question = replace(question, cluster=cluster)
            again = [each for each in every_layout(question) if each[1].schedule in schedules]
            times, problem = again[number]
            yield question, times, problem, bare, draw


def test_what_a_rank_needs_is_what_the_step_model_says() -> None:
    """Of ranks of another cut than the layout's, under mixes of which the last is asked for."""
    for question, times, problem, bare, draw in drawn_cuts(range(8)):
        counts = tuple(stage.layers for stage in bare)
        mix = draw.choice(list(recomputed(counts, problem.modes, "any")))
        first = next(cuts(problem))
        other = replace(times.layout, stages=tuple(map(Stage, first)))
        ranks = CountedRanks(problem, StepModel(times.model.setting, other))
        own = step_model_of(case_at(question, replace(times.layout, stages=mix)))
        starts = starts_of(mix)
        for rank, memory in enumerate(stage_memory(own)):
            needed = ranks.needed_bytes(rank, starts, mix)
            assert needed == pytest.approx(memory.needed, rel=1e-12)


def of_several_kinds(seeds: range) -> Iterator[tuple[Question, CutTimes, StageProblem, Stages]]:
    """A random mix of a random cut of a hybrid, in an engine whose passes are not counted; under
    some modules of multi-token prediction are a part of the stack.
    """
    for seed in seeds:
        draw = random.Random(seed)
        engine = load_engine(draw.choice(("megatron", "torchtitan", "generic", "deepspeed")))
        question = replace(small_question(seed, 6, draw.choice(("1..", "2.."))), engine=engine)
        placed = int(engine.legality.modules_apart and draw.random() < 0.7)
        pins = {axis: pin.text for axis, pin in question.pins.axes.items()}
        pins |= {"pipeline_parallel": draw.choice(("1..", "1", "2..")), "zero_stage": "0.."}
        question = replace(
            question, model=replace(question.model, mtp_layers=placed), pins=parse_pins(pins)
        )
        if layouts := list(every_layout(question)):
            times, problem = draw.choice(layouts)
            counts = draw.choice(list(cuts(problem)))
            yield (
                question,
                times,
                problem,
                draw.choice(list(recomputed(counts, problem.modes, "any"))),
            )


def as_layout(question: Question, times: CutTimes, stack: Stages) -> Layout:
    """The layout whose stages hold this stack."""
    if not times.model.setting.places_modules:
        return replace(times.layout, stages=stack)
    apart = stack[-1].layers == 0
    return replace(times.layout, stages=layers_of(stack), modules_apart=apart)


def test_what_a_rank_needs_of_the_kinds_that_it_holds() -> None:
    """To the last digit what the step model says; the least is not above that, the priced one not
    below.
    """
    less = asked = 0
    for question, times, problem, stack in of_several_kinds(range(22)):
        own = step_model_of(case_at(question, as_layout(question, times, stack)))
        ranks = CountedRanks(problem, StepModel(times.model.setting, times.layout))
        space, rows = every_kind(question), np.array([times.row])
        prices = price_space(question, space, closed_form)
        least = LeastOfKinds(prices, space.layouts, times.model.setting, rows).take(rows)
        of_least = replace(problem, prices=least.recomputing(problem.columns))
        starts, modes = starts_of(stack), [modes_of(stage) for stage in stack]
        for rank, memory in enumerate(stage_memory(own)):
            needed = ranks.needed_bytes(rank, starts, stack)
            assert needed == pytest.approx(memory.needed, rel=1e-12)
            priced = peak_kib(problem, rank, starts, modes) * KIB
            assert peak_kib(of_least, rank, starts, modes) * KIB <= needed <= priced
            less, asked = less + (needed < priced - 2**20), asked + 1
    assert asked > 20
    assert less > asked / 5


def test_a_rank_fits_where_some_mix_of_its_chunks_needs_no_more() -> None:
    """Of every rank of drawn cuts, with a memory that just holds the mix that needs least, and with
    a MiB less: as the step model says of each mix.
    """
    asked = 0
    for question, times, problem, stack in of_several_kinds(range(cases(12, nightly=60))):
        mixes = list(recomputed([each.layers for each in stack], problem.modes, "any"))
        if len(mixes) > 300 or times.model.setting.places_modules:
            continue
        needs = np.array([
            [rank.needed for rank in stage_memory(
                step_model_of(case_at(question, replace(times.layout, stages=mix))))]
            for mix in mixes
        ])  # fmt: skip
        proof = SimpleNamespace(
            problem=lambda *_, p=problem: (p, None), times_of=lambda *_, t=times: t
        )
        variant = SimpleNamespace(replayed=times.layout.selective_modules)
        starts = starts_of(stack)
        for rank, least in enumerate(needs.min(axis=0).tolist()):
            for cap, fits in ((least, True), (least - 2**20, False)):
                held = RanksThatFit(cast(Any, proof), 0, cast(Any, variant), 1e9)
                held.ranks.fillable_bytes = cap * (1 + 1e-9)
                assert held.fits(rank, held.ranks.spans(rank, starts)) == fits
                assert held.work > 0
                asked += 1
    assert asked > 10


def test_the_least_memory_is_not_above_what_ranks_hold() -> None:
    """Of random mixes of random cuts; in the median within a third of it."""
    shares = []
    for question, times, problem, bare, draw in drawn_cuts(range(cases(8, nightly=12))):
        counts = tuple(stage.layers for stage in bare)
        mix = draw.choice(list(recomputed(counts, problem.modes, "any")))
        own = step_model_of(case_at(question, replace(times.layout, stages=mix)))
        least = replace(problem, prices=least_prices(question, times, problem))
        modes, starts = [modes_of(stage) for stage in mix], starts_of(mix)
        for rank, memory in enumerate(stage_memory(own)):
            held = peak_kib(least, rank, starts, modes) * KIB
            assert held <= memory.needed
            shares.append(held / memory.needed)
    assert statistics.median(shares) > 2 / 3


def test_a_rank_needs_no_less_than_each_of_its_layers_alone() -> None:
    """Whatever its cut, mix and ZeRO stage; in some more than two thirds of it."""
    shares = []
    for seed in range(8):
        draw = random.Random(seed)
        question = replace(small_question(seed, 6, "1.."), engine=load_engine("native"))
        pins = {axis: pin.text for axis, pin in question.pins.axes.items()}
        pins |= {"pipeline_parallel": draw.choice(("1", "2..")), "zero_stage": "0.."}
        question = replace(question, gpus=4, pins=parse_pins(pins))
        alone = bytes_beside_one_layer(every_kind(question).layouts, question.setting)
        layouts = list(every_layout(question))
        for times, problem in draw.sample(layouts, min(4, len(layouts))):
            counts = draw.choice(list(cuts(problem)))
            mix = draw.choice(list(recomputed(counts, problem.modes, "any")))
            own = step_model_of(case_at(question, replace(times.layout, stages=mix)))
            starts = starts_of(mix)
            for rank, memory in enumerate(stage_memory(own)):
                spans = [slice(*starts[at : at + 2]) for at in problem.chunks_of_rank[rank]]
                kinds = {kind for span in spans for kind in problem.pattern[span]}
                shares += [alone[times.row, kind] / memory.needed for kind in kinds]
    assert 2 / 3 < max(shares) <= 1


def test_a_rank_of_one_layer_needs_hardly_more_than_that() -> None:
    """In each schedule and ZeRO stage, its experts on one rank and on two. Less is said where the
    backward is split, or where only a backward that is not holds the experts' gradients (ZeRO-2).
    """
    question, model = small_question(0, 6), read_model("olmoe-7b-a1b")[1]
    schedules = set[str]()
    for ranks in (1, 3):
        pins = {"pipeline_parallel": f"{ranks}", "data_parallel": "2", "zero_stage": "0.."}
        q = replace(
            question, engine=load_engine("native"), gpus=2 * ranks,
            model=replace(model, pattern=model.pattern[:ranks], vocab=1024),
            training=replace(question.training, seq_len=8192, global_batch_size=2),
            pins=parse_pins(pins | {"micro_batch_size": "1"}),
        )  # fmt: skip
        alone = bytes_beside_one_layer(every_kind(q).layouts, q.setting)[:, 0]
        for times, _ in every_layout(q):
            layout = replace(times.layout, stages=(Stage(1),) * ranks)
            needs = [rank.needed for rank in stage_memory(step_model_of(case_at(q, layout)))]
            least = 0.97 if layout.zero_stage < 2 and layout.schedule != "zb_h1" else 0.85
            assert all(least < alone[times.row] / need <= 1 for need in needs), layout
            schedules.add(layout.schedule)
    assert schedules == {"1f1b", "gpipe", "zb_h1"}


def test_covers_of_v_shapes_are_not_above_what_ranks_hold() -> None:
    """Of random mixes of random cuts; in the median within a fifth of it."""
    shares = []
    for question, times, problem, bare, draw in drawn_cuts(range(8), V_SHAPED):
        counts = tuple(stage.layers for stage in bare)
        mix = draw.choice(list(recomputed(counts, problem.modes, "any")))
        own = step_model_of(case_at(question, replace(times.layout, stages=mix)))
        least = replace(problem, prices=least_prices(question, times, problem))
        covers, modes, starts = least.alone, [modes_of(stage) for stage in mix], starts_of(mix)
        late = least.prices.layer_deferred_kib[0]
        for rank, memory in enumerate(stage_memory(own)):
            held_kib = []
            for which in range(covers.covers.shape[1]):
                kib = least.fixed_kib
                for at, chunk in enumerate(least.chunks_of_rank[rank]):
                    layers = zip(
                        least.pattern[starts[chunk] : starts[chunk + 1]], modes[chunk], strict=True
                    )
                    for kind, mode in layers:
                        kib += least.state_kib[kind]
                        kib += covers.covers[0, which, rank, at] * least.saved_kib[kind][mode]
                        kib += covers.late[0, which, rank, at] * late[kind]
                held_kib.append(kib)
            assert max(held_kib) * KIB <= memory.needed
            shares.append(max(held_kib) * KIB / memory.needed)
    assert len(shares) >= 8
    assert statistics.median(shares) > 0.8


def least_prices(question: Question, times: CutTimes, problem: StageProblem) -> Coefficients:
    """Those of the layout whose `problem` is given."""
    space = every_kind(question)
    rows = np.array([times.row])
    prices = price_space(question, space, closed_form)
    least = LeastHeld(prices, space.layouts, times.model.setting, rows).take(rows)
    return least.recomputing(problem.columns).held_as(problem.schedule)


def test_the_mix_that_is_found_is_the_fastest_that_fits() -> None:
    """Against every mix of the cut, played; some fit by every moment alone."""
    found = beyond = 0
    for question, times, problem, bare, _ in drawn_cuts(range(8)):
        counts = tuple(stage.layers for stage in bare)
        every = recomputed(counts, problem.modes, "any")
        layout, least_s = times.layout, math.inf
        for step_s, stages in sorted(((times.step_s(mix), mix) for mix in every), key=_first):
            if math.isfinite(simulated_s(case_at(question, replace(layout, stages=stages)))):
                least_s = step_s
                break
        ranks = CountedRanks(problem, StepModel(times.model.setting, layout))
        limit_s = 1e9 if math.isinf(least_s) else least_s * 1.01
        answer = CountedCut(problem, times, ranks, bare, limit_s).answer(np.zeros(problem.pp))
        assert math.isinf(answer.bound_s)
        assert (answer.stages is None) == math.isinf(least_s)
        if answer.stages:
            assert times.step_s(answer.stages) == pytest.approx(least_s, rel=1e-9)
            found, beyond = found + 1, beyond + (evaluate(problem, answer.stages) is None)
    assert found >= 2
    assert beyond >= 1


def test_steps_of_a_cut_are_played_once() -> None:
    """Ranks with one way each have one step together, and a way that is the fastest for all chunks
    of its rank changes none: of two ways for one rank two steps are played.
    """
    _, times, problem, bare, _ = next(iter(drawn_cuts(range(8))))
    ranks = CountedRanks(problem, StepModel(times.model.setting, times.layout))
    chunks = len(problem.chunks_of_rank[0])
    nothing = np.zeros((1, chunks), np.int64)
    one = RankWays(nothing.astype(float), nothing, nothing, math.inf, 0.0)
    slower_s = np.full((1, chunks), 1.0)
    two = one._replace(
        added_s=np.concatenate([one.added_s, slower_s]),
        full=np.concatenate([nothing] * 2), selective=np.concatenate([nothing] * 2),
    )  # fmt: skip
    for ways, played in (([one] * problem.pp, 1), ([two, *[one] * (problem.pp - 1)], 2)):
        cut = CountedCut(problem, times, ranks, bare, 1e9)
        assert cut._searched(ways).stages == bare
        assert cut.played == played


def _first(timed: tuple[float, tuple[Stage, ...]]) -> float:
    return timed[0]


def test_a_cut_has_the_mix_that_it_has_alone_whatever_was_asked_before() -> None:
    """One chunk per rank, or one number of first layers: what ranks of other cuts were asked is
    known, and the rank that settled the cut before comes first.
    """
    fit = misfit = 0
    for question, *_ in of_several_kinds(range(8)):
        several = (each for each in every_layout(question) if each[1].vpp == 1 or each[1].first)
        for times, problem in islice((each for each in several if each[1].pp > 1), 3):
            model, draw = StepModel(times.model.setting, times.layout), random.Random(0)
            ranks, alone = (CountedRanks(problem, model) for _ in range(2))
            some = draw.sample(every := list(cuts(problem)), min(5, len(every)))
            kept = tuple(Stage(n) for n in some[0])
            needed = (ranks.needed_bytes(rank, starts_of(kept), kept) for rank in range(problem.pp))
            ranks.fillable_bytes = alone.fillable_bytes = max(needed) * draw.choice((0.95, 1.0))
            for counts in some:
                found = ranks.fastest_of_cut(counts)
                alone._fastest.clear()
                alone._first.clear()
                alone.killer = 0
                assert found == alone.fastest_of_cut(counts)
                fit, misfit = fit + (found is not None), misfit + (found is None)
            before = ranks.work
            ranks.fastest_of_cut(some[-1])
            assert ranks.work == before
    assert min(fit, misfit) > 5


def test_ways_of_a_rank_are_all_that_fit() -> None:
    """Against every mix of its chunks, asked one by one: the same least time."""
    asked = 0
    for _, times, problem, bare, draw in drawn_cuts(range(cases(9, nightly=14))):
        ranks = CountedRanks(problem, StepModel(times.model.setting, times.layout))
        rank, starts = draw.randrange(problem.pp), starts_of(bare)
        held = problem.chunks_of_rank[rank]
        every = recomputed(tuple(bare[chunk].layers for chunk in held), problem.modes, "any")
        fitting = []
        for mix in every:
            stages = list(bare)
            for chunk, stage in zip(held, mix, strict=True):
                stages[chunk] = stage
            if ranks.needed_bytes(rank, starts, stages) <= ranks.fillable_bytes:
                fitting.append(
                    sum(chunk_times_ns(problem, tuple(stages), list(map(modes_of, stages))))
                )
        ways = ranks.ways(rank, ranks.spans(rank, starts), 1e9)
        assert ways.every
        assert bool(fitting) == bool(len(ways.added_s))
        if fitting:
            least_ns = min(fitting) - sum(chunk_times_ns(problem, bare, list(map(modes_of, bare))))
            assert ways.least_s == pytest.approx(least_ns / NS_PER_S, abs=1e-8)
            asked += least_ns > 0
    assert asked >= 2


def test_every_cut_is_listed_where_there_are_few() -> None:
    """8 layers in 4 chunks: 7 places for 3 bars, 35 cuts; 32 in 4 are 4,495, and rows stand for
    them.
    """
    question = small_question(0)
    rules, model = load_engine("native").legality, question.model
    model = replace(model, kinds=model.kinds[:1], pattern=(0,))
    eight, many = (replace(model, pattern=(0,) * layers) for layers in (8, 32))
    found = splits(eight, rules, 2, 2)
    assert found is not None
    assert len(set(found)) == math.comb(7, 3) <= MOST_WAYS
    assert all(sum(cut) == 8 and min(cut) >= 1 for cut in found)
    assert lists_all(eight, rules, 2, 2)
    assert not lists_all(many, rules, 2, 2)
    assert len(splits(many, rules, 2, 2) or ()) < MOST_WAYS
