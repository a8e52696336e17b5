"""How much memory a plan leaves free, what that costs, and what a refusal says of it."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.errors.memory_needs import FITS
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer import spare_memory as spare_memory_module
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.full_plan import as_fastest
from meshplan.planner.answer.headroom import with_headroom
from meshplan.planner.answer.question import Arguments, Asked, ask
from meshplan.planner.answer.spare_memory import spare_memory
from meshplan.planner.case.memory_limit import with_usable, with_usual_headroom
from meshplan.planner.case.plan_findings import Bought, Choice, SpareMemory
from meshplan.planner.report.fit import fits_fuller, misfit_document, misfit_lines
from meshplan.planner.report.tables import spare_lines
from meshplan.planner.search.faster import Faster
from meshplan.planner.search.footprint import Explanation
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import parse_pins

SMALL = Arguments(model="llama-3.1-8b", gpus=64, cluster="dgx-h100", global_batch=1024)
NOTHING = Explanation((), {}, None, None, None, None, {})


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["nanotron", "megatron-bridge", "torchtitan", "megatron"])
def test_what_fills_the_rest_fits(engine: str) -> None:
    """A plan that fills what it may use fits with the stated probability, and no engine's plan may
    use more than the profile lets a rank use.
    """
    cluster = load_cluster("dgx-h100")
    kept = with_usual_headroom(cluster, engine)
    assert kept.fillable_bytes <= cluster.capacity_bytes
    asked = ask(replace(SMALL, engine=engine))
    assert asked.question.cluster.fillable_bytes == kept.fillable_bytes
    prediction = plan_of(asked, solve(asked.question, 1)).prediction
    assert prediction is not None
    assert prediction.fits_probability is not None
    assert prediction.fits_probability >= FITS


def test_a_headroom_that_is_told_is_taken() -> None:
    """`--headroom` overrides what is usual, in either direction."""
    cluster = load_cluster("dgx-h100")
    for text, free_bytes in (("1GiB", GIB), ("40GiB", 40 * GIB)):
        told, said = with_headroom(text, cluster, "nanotron")
        assert told.fillable_bytes == pytest.approx(cluster.gpu.memory_bytes - free_bytes)
        assert said.startswith(f"as stated: headroom {text}, ")


@pytest.fixture(scope="module")
def asked() -> Asked:
    """A question whose plan recomputes for want of memory."""
    return ask(replace(SMALL, headroom="6.8GiB"))


def test_what_more_memory_buys_is_at_most_what_a_search_finds(asked: Asked) -> None:
    """The plan's degrees with more memory are never faster than the best layout with as much, and
    all the memory buys no less than one GiB.
    """
    plan = plan_of(asked, solve(asked.question, 1))
    spare = spare_memory(asked, as_fastest(plan))
    assert spare is not None
    assert spare.one_gib is not None
    assert spare.all is not None
    assert plan.prediction is not None
    for bought, more_bytes in ((spare.one_gib, GIB), (spare.all, spare.all_bytes)):
        usable = asked.question.cluster.fillable_bytes + more_bytes
        q = replace(asked.question, cluster=with_usable(asked.profile, usable))
        assert bought.step_time_s >= solve(q, 1).solutions[0].step_time_s * (1 - 1e-6)
        gain = plan.prediction.step_time_s / bought.step_time_s - 1
        assert bought.faster_fraction == pytest.approx(gain)
    assert spare.all.step_time_s <= spare.one_gib.step_time_s
    assert spare.all.fits_probability is not None
    assert spare.all.fits_probability < plan.prediction.fits_probability  # type: ignore[operator]
    assert all("%" in line for line in spare_lines(spare))


def test_one_gib_buys_a_larger_micro_batch() -> None:
    """The degrees of 8B on 16 H100 in nanotron, 42 GiB left free, take two sequences at once with
    one GiB more: the plan says so, and is not slower than a search of those with as much memory.
    """
    job = replace(SMALL, gpus=16, global_batch=256, engine="nanotron", headroom="42GiB")
    asked = ask(job)
    plan = plan_of(asked, solve(asked.question, 1))
    spare = spare_memory(asked, as_fastest(plan))
    assert spare is not None
    usable = asked.question.cluster.fillable_bytes + GIB
    degrees = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")
    pins = parse_pins({name: str(getattr(plan.layout, name)) for name in degrees})
    q = replace(asked.question, cluster=with_usable(asked.profile, usable), pins=pins)
    best = solve(q, 1).solutions[0]
    assert best.layout.micro_batch_size > plan.layout.micro_batch_size
    assert spare.one_gib is not None
    assert spare.one_gib.step_time_s == best.step_time_s
    assert spare.one_gib_most == pytest.approx(spare.one_gib.faster_fraction)


def test_what_fits_in_one_gib_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all the memory buys a layout, proved, that one GiB holds too, that is what one GiB
    buys: so says a search of its own.
    """
    asked = ask(replace(SMALL, gpus=16, global_batch=256, engine="nanotron", headroom="42GiB"))
    little_more = asked.question.cluster.fillable_bytes + 1.5 * GIB
    profile = asked.profile.model_copy(update={"usable_memory_bytes": little_more})
    asked = replace(asked, profile=profile)
    plan, searches = plan_of(asked, solve(asked.question, 1)), list[float]()
    real = spare_memory_module.faster_exactly

    def counted(question: Question, *arguments: Any) -> Faster:
        searches.append(question.cluster.fillable_bytes)
        return real(question, *arguments)

    monkeypatch.setattr(spare_memory_module, "faster_exactly", counted)
    once = spare_memory(asked, as_fastest(plan))
    assert searches == [little_more]
    monkeypatch.setattr(spare_memory_module.Gain, "is_all_of", lambda *_: False)
    assert spare_memory(asked, as_fastest(plan)) == once
    assert len(searches) == 3
    assert once is not None
    assert once.one_gib is not None


def test_what_a_better_search_finds_is_not_bought_by_memory(asked: Asked) -> None:
    """A plan that was not proved and takes a tenth longer than its degrees can: memory buys what it
    buys the proved one, not the tenth.
    """
    plan = plan_of(asked, solve(asked.question, 1))
    assert plan.prediction is not None
    assert plan.search is not None
    slow = plan.prediction.model_copy(update={"step_time_s": 1.1 * plan.prediction.step_time_s})
    open_ = plan.search.model_copy(update={"status": "FEASIBLE", "gap": 0.1, "cuts": "all"})
    worse = plan.model_copy(update={"prediction": slow, "search": open_})
    assert spare_memory(asked, as_fastest(worse)) == spare_memory(asked, as_fastest(plan))


def test_what_a_tie_could_have_had_is_not_bought_by_memory(asked: Asked) -> None:
    """What is proved of the fastest says nothing of another layout that ties with it: one that
    takes a tenth longer than its degrees can was said to gain that by one GiB.
    """
    plan = plan_of(asked, solve(asked.question, 1))
    assert plan.prediction is not None
    step_s = plan.prediction.step_time_s
    choice = Choice(
        robust=False, candidates=2, fastest="another", fastest_step_time_s=step_s,
        slower_fraction=0.1, worst_loss_fraction=0.0, worst_where="",
        fastest_worst_loss_fraction=0.0, fastest_worst_where="", spares_bytes=0.0,
    )  # fmt: skip
    slow = plan.prediction.model_copy(update={"step_time_s": 1.1 * step_s})
    tied = plan.model_copy(update={"prediction": slow, "choice": choice})
    assert spare_memory(asked, as_fastest(tied)) == spare_memory(asked, as_fastest(plan))


@pytest.mark.parametrize(
    ("most", "said"),
    [
        pytest.param(0.0004, "at most 0.1% faster", id="0.04 % at most is nothing"),
        pytest.param(
            0.014, "no faster, as far as was found (1.4% at most)", id="1.4 % are not excluded"
        ),
        pytest.param(
            None, "no faster, as far as was found", id="an older plan file proved nothing"
        ),
    ],
)
def test_nothing_is_said_where_it_is_proved(most: float | None, said: str) -> None:
    """Where the search could not exclude a gain, the words say how much is left open."""
    spare = SpareMemory(
        free_bytes=GIB, chosen=False, one_gib=None, one_gib_most=most, all_bytes=GIB, all=None,
        all_most=most,
    )  # fmt: skip
    assert all(line.endswith(said) for line in spare_lines(spare))


def test_what_neither_would_buy_is_one_line() -> None:
    """Not where nothing is left free, nor where one of the two buys something."""
    spare = SpareMemory(
        free_bytes=GIB, chosen=False, one_gib=None, one_gib_most=0.0, all_bytes=GIB, all=None,
        all_most=0.0,
    )  # fmt: skip
    (line,) = spare_lines(spare)
    assert line.startswith(
        "with 1 GiB more per GPU, or with all the memory that a rank may use, the"
    )
    (line,) = spare_lines(spare.model_copy(update={"all_bytes": 0.0}))
    same = "the same parallel degrees would be at most 0.1% faster"
    assert line == f"with 1 GiB more per GPU {same}"
    bought = Bought(step_time_s=1.0, label="dp8", faster_fraction=0.02, fits_probability=0.9)
    assert len(list(spare_lines(spare.model_copy(update={"all": bought})))) == 2


def test_a_refusal_names_the_headroom_with_which_it_fits() -> None:
    """32B on 8 H100 in megatron fits in all the memory only; with --headroom nothing is said."""
    tight = Arguments(
        model="qwen3-32b", gpus=8, cluster="dgx-h100", global_batch=1024, engine="megatron"
    )
    fuller = fits_fuller(ask(tight))
    assert fuller is not None
    assert fuller.fits_probability is not None
    assert fuller.fits_probability < FITS
    lines = misfit_lines(ask(tight).question, NOTHING, fuller)
    assert any("--headroom 4.0%" in line for line in lines)
    document = misfit_document(ask(tight), NOTHING, fuller, proved=True)
    assert document["fuller"]["headroom"] == "4.0%"
    assert fits_fuller(ask(replace(tight, headroom="10%"))) is None
