"""The search as a whole: proof, honest gaps, runners-up, determinism."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from meshplan.costmodels.layout import check_layout
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Pricer, Question, closed_form, price_space
from meshplan.planner.search.search import search
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.solve import Solver

Questions = Callable[..., Question]
Pricers = Callable[[int, float, int], Pricer]
PATTERN = (0, 0, 1, 1, 1, 1, 1, 1)


@pytest.fixture
def asked(question: Questions) -> Question:
    """Eight layers of two kinds on sixteen GPUs."""
    return question(PATTERN, 16, 32)


@pytest.fixture
def price(pricer: Pricers) -> Pricer:
    """Prices under which memory binds."""
    return pricer(7, 5e7, 2)


def test_the_result_is_a_certificate(asked: Question, price: Pricer) -> None:
    """OPTIMAL: no gap, the parts add up to the step, each layout is solved, a misfit or bounded."""
    result = search(asked, price=price)
    best = result.solutions[0]
    assert result.status == "OPTIMAL"
    assert result.gap == 0
    assert result.bound_s == best.step_time_s
    assert result.candidates == result.misfits + result.solved + result.bounded
    assert best.layout.world_size == 16
    check_layout(best.layout, asked.model, asked.training)


def test_equal_questions_have_equal_answers(asked: Question, price: Pricer) -> None:
    """The same question gives the same plans and the same number of solves."""
    first, second = (search(asked, price=price, k=4) for _ in range(2))
    assert first.solutions == second.solutions
    assert first.cpsat_solves == second.cpsat_solves


def test_runners_up_differ_in_kind_and_come_in_order(asked: Question, price: Pricer) -> None:
    """The k best differ in (tp, cp, pp, ep), do not get faster, and a larger k only adds."""
    many = search(asked, price=price, k=6).solutions
    kinds = [
        (s.layout.tensor_parallel, s.layout.context_parallel, s.layout.pipeline_parallel,
         s.layout.expert_parallel)
        for s in many
    ]  # fmt: skip
    assert len(many) == len(set(kinds)) == 6
    assert all(a.step_time_s <= b.step_time_s for a, b in pairwise(many))
    assert many[0] == search(asked, price=price).solutions[0]
    for solution, (tp, cp, pp, ep) in zip(many, kinds, strict=True):
        only = parse_pins({
            "tensor_parallel": str(tp), "context_parallel": str(cp),
            "pipeline_parallel": str(pp), "expert_parallel": str(ep),
        })  # fmt: skip
        alone = search(replace(asked, pins=only), price=price).solutions[0]
        assert not solution.proved or alone.step_time_s == solution.step_time_s


def test_no_time_gives_no_false_proof(asked: Question, price: Pricer) -> None:
    """Stopped at once, the search holds a plan, a bound below it, and the gap between them."""
    result = search(asked, price=price, time_limit_s=0.0)
    optimum = search(asked, price=price).solutions[0].step_time_s
    assert result.bound_s <= optimum <= result.solutions[0].step_time_s
    assert result.status == "FEASIBLE"
    assert result.gap == pytest.approx(1 - result.bound_s / result.solutions[0].step_time_s)


def test_interruption_returns_the_best_so_far(
    question: Questions, pricer: Pricers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while CP-SAT runs leaves a FEASIBLE answer whose bound is still a bound."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    price, pins = pricer(1, 4e7, 2), parse_pins({"virtual_stages": "2.."})
    asked = question((0,) * 5 + (1,) * 7, 8, 16)
    chunked = replace(asked, pins=pins, engine=load_engine("generic"))
    proved = search(chunked, price=price)
    assert proved.cpsat_solves > 0
    monkeypatch.setattr(Solver, "solve", interrupted)
    result = search(chunked, price=price)
    assert result.status == "FEASIBLE"
    assert result.bound_s <= proved.solutions[0].step_time_s <= result.solutions[0].step_time_s


def test_pins_never_make_it_faster(asked: Question, price: Pricer) -> None:
    """Each pin removes layouts, so the best of the rest is at most as fast."""
    free = search(asked, price=price).solutions[0].step_time_s
    for axis, text in (("tensor_parallel", "2"), ("recompute", "full"), ("zero_stage", "0,1")):
        pinned = search(replace(asked, pins=parse_pins({axis: text})), price=price)
        assert pinned.solutions[0].step_time_s >= free


def test_chunks_are_priced_as_chunks() -> None:
    """Exchanges between experts hide behind another micro-batch's pass where ranks have several
    chunks: a pin to them finds nothing faster than all layouts, nor than the bound of all.
    """
    few = {"tensor_parallel": "1", "pipeline_parallel": "8"}
    asked = Question(
        model=read_model("deepseek-v3")[1],
        training=Training(seq_len=4096, global_batch_size=4096),
        gpus=256,
        cluster=load_cluster("dgx-h100"),
        engine=load_engine("megatron-bridge"),
        pins=parse_pins(few),
    )
    free = search(asked)
    pins = parse_pins({**few, "expert_parallel": "32", "virtual_stages": "2.."})
    pinned_s = search(replace(asked, pins=pins)).solutions[0].step_time_s
    assert free.solutions[0].step_time_s <= pinned_s * (1 + 1e-9)
    assert free.bound_s <= pinned_s * (1 + 1e-9)
    space = enumerate_space(
        asked.model, asked.training, 256, asked.engine, parse_pins({"pipeline_parallel": "8"}), 8
    )
    for row, chunks in enumerate(space.layouts.virtual_stages.tolist()):
        variants = space.variants(row)
        assert variants
        assert all(chunks in (0, min(v.virtual_stages, 2)) for v in variants)
        away = space.layouts.expert_parallel[row] * space.layouts.expert_tensor_parallel[row] > 8
        assert bool(away) == (chunks > 0)


def test_a_tied_table_is_held_once_where_both_ends_meet() -> None:
    """A V-shaped pipeline has both ends on one rank, so rows say whether they are run as one: the
    head's second table is what they differ by.
    """
    asked = Question(
        model=read_model("llama-3.2-1b")[1],
        training=Training(seq_len=4096, global_batch_size=64),
        gpus=8,
        cluster=load_cluster("dgx-h100"),
        engine=load_engine("native"),
        pins=parse_pins({"pipeline_parallel": "2", "zero_stage": "..2"}),
    )
    q = asked
    space = enumerate_space(q.model, q.training, 8, q.engine, q.pins, 8)
    prices = price_space(q, space, closed_form)
    for row, variants in enumerate(map(space.variants, range(len(space.layouts)))):
        assert len({variant.schedule in V_SHAPED for variant in variants}) == 1
        if variants[0].schedule in V_SHAPED:
            assert space.layouts.tensor_parallel[row] == space.layouts.tensor_parallel[row - 1]
            second_kib = prices.head_state_kib[row - 1] - prices.head_state_kib[row]
            assert second_kib == pytest.approx(prices.embedding_state_kib[row], abs=2)


def test_more_memory_is_never_slower(question: Questions, pricer: Pricers) -> None:
    """A larger capacity keeps every plan, so the optimum does not rise."""
    times = [
        search(question(PATTERN, 8, 16), price=pricer(3, capacity, 2)).solutions[0].step_time_s
        for capacity in (4e7, 5e7, 7e7, 1e9)
    ]
    assert all(a >= b for a, b in pairwise(times))


def test_progress_reports_bounds(
    asked: Question, price: Pricer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs the search tells its best and its bound; the bound does not fall."""
    monkeypatch.setattr("meshplan.planner.search.progress.PROGRESS_S", 0.0)
    seen: list[Progress] = []
    result = search(asked, price=price, progress=seen.append)
    assert seen
    assert all(a.bound_s <= b.bound_s for a, b in pairwise(seen))
    assert seen[-1].bound_s <= result.bound_s


def test_nothing_fits(question: Questions, pricer: Pricers) -> None:
    """A model beyond all memory is refused by name."""
    with pytest.raises(NoLayoutFits, match="small"):
        search(question(PATTERN, 2, 4), price=pricer(1, 3e6, 2))


def test_search_opens_few_of_many(asked: Question, price: Pricer) -> None:
    """Most layouts are bounded away: the solver sees under a tenth of them."""
    q = asked
    space = enumerate_space(q.model, q.training, 16, q.engine, q.pins, 8)
    result = search(asked, price=price)
    assert result.candidates > len(space.layouts) > 100
    assert result.cpsat_solves < result.candidates / 10


@pytest.mark.parametrize(
    ("on_host", "said"), [(None, "fits on"), ("0", "fits on"), ("0,1", "was found that fits on")]
)
def test_a_refusal_by_a_bound_of_memory_says_so(on_host: str | None, said: str) -> None:
    """With activations on the host what ranks are priced to need is more than they may."""
    model = read_model("llama-3.1-70b")[1]
    asked = Question(
        model=model, gpus=1, cluster=load_cluster("dgx-h100"), engine=load_engine("megatron"),
        training=Training(seq_len=4096, global_batch_size=8),
        pins=parse_pins({"activation_offload": on_host} if on_host else {}),
    )  # fmt: skip
    with pytest.raises(NoLayoutFits, match=f"no layout of llama-3.1-70b {said}"):
        search(asked)
