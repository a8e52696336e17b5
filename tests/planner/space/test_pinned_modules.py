"""A pin of what selective recomputation replays."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.result import SearchResult
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import PinError, parse_pins
from meshplan.planner.whatif.changes import Change, changed

AXIS = "recompute_modules"


def asking(engine: str = "megatron", **pins: str) -> Question:
    """30B with experts on 16 H100 without context parallelism: layers recompute."""
    return Question(
        model=read_model("qwen3-30b-a3b")[1],
        training=Training(seq_len=12288, global_batch_size=128),
        cluster=load_cluster("dgx-h100"), engine=load_engine(engine), gpus=16,
        pins=parse_pins({"context_parallel": "1"} | pins),
    )  # fmt: skip


@pytest.fixture(scope="module")
def free() -> SearchResult:
    """The answer without a pin."""
    return solve(asking(), 1)


def test_a_pinned_set_is_never_faster_and_the_answers_own_is_the_answer(
    free: SearchResult,
) -> None:
    """Every set that the search offers, pinned."""
    best = free.solutions[0]
    assert any(stage.selective_layers for stage in best.layout.stages), "or the law says nothing"
    sets = recompute_sets(asking().setting)
    assert best.layout.selective_modules in sets
    assert len(sets) > 1
    for modules in sets:
        result = solve(asking(**{AXIS: ",".join(modules)}), 1)
        pinned = result.solutions[0]
        assert pinned.step_time_s >= free.bound_s * (1 - 1e-6)
        if modules == best.layout.selective_modules:
            assert pinned.step_time_s == pytest.approx(best.step_time_s, rel=1e-6)
            assert set(pinned.layout.selective_modules) == set(modules)
            assert replace(pinned.layout, selective_modules=modules) == best.layout


@pytest.mark.parametrize("words", ["moe_act,core_attention", "core_attention,moe_act"])
def test_a_set_that_is_never_offered_can_be_pinned(words: str) -> None:
    """It replays these and no others, in whichever order they are said."""
    modules = ("core_attention", "moe_act")
    assert set(modules) not in map(set, recompute_sets(asking().setting))
    question = asking(**{AXIS: words, "recompute": "selective"})
    assert recompute_sets(question.setting) == (modules,)
    layout = solve(question, 1).solutions[0].layout
    assert layout.recompute == "selective"
    assert layout.selective_modules == modules
    assert question.engine.legality.recompute_modules != modules


def said(engine: str, modules: str, model: str = "qwen3-30b-a3b") -> Arguments:
    return Arguments(
        model=model, gpus=16, cluster="dgx-h100", global_batch=128,
        engine=engine, pins={AXIS: modules},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "modules", "why"),
    [
        ("megatron", "norm", "megatron replays core_attention, layernorm, .*, moe$"),
        ("torchtitan", "norm", "torchtitan replays all of norm, pointwise, linear_half$"),
        ("native", "layernorm", "native replays core_attention, mlp, moe$"),
        ("generic", "mlp", "generic replays core_attention$"),
        ("nanotron", "core_attention", "nanotron has no selective recompute$"),
    ],
)
def test_a_set_that_the_engine_lacks(engine: str, modules: str, why: str) -> None:
    """One line, with what the engine has."""
    with pytest.raises(InvalidLayout, match=f"^recompute_modules {modules}: engine {why}"):
        ask(said(engine, modules))


@pytest.mark.parametrize(
    ("model", "modules", "why"),
    [
        ("llama-3.1-8b", "moe", "no moe of llama-3.1-8b, but core_attention, mlp"),
        ("llama-3.1-8b", "mlp,moe_act,moe", "no moe_act and no moe of .*, but core_attention, mlp"),
        ("llama-3.1-8b", "layernorm", "no layernorm of .*"),  # it is fused into what follows
        ("qwen3-30b-a3b", "mla_up_proj", "no mla_up_proj of .*, but .*moe_act, moe"),
        ("qwen3-30b-a3b", "moe,shared_experts", "no shared_experts of qwen3-30b-a3b, but .*"),
    ],
)  # fmt: skip
def test_a_module_that_the_model_lacks(model: str, modules: str, why: str) -> None:
    """It would replay nothing; what the engine replays of this model is named."""
    with pytest.raises(InvalidLayout, match=f"^{AXIS} {modules}: engine megatron replays {why}$"):
        ask(said("megatron", modules, model))


def test_all_of_a_policy_need_not_be_in_the_model() -> None:
    """torchtitan's set is replayed as a whole, so it is no choice."""
    ask(said("torchtitan", "norm,pointwise,linear_half", "llama-3.1-8b"))


def test_a_module_that_nobody_has() -> None:
    """The pin says which there are."""
    with pytest.raises(PinError, match="'layers' is not known; it is one of core_attention, "):
        ask(said("megatron", "mlp,layers"))


def test_another_engine_is_asked_for_the_same_set() -> None:
    """`what-if --engine` keeps the pin, or refuses it by name."""
    asked = ask(said("megatron", "moe_act"))
    with pytest.raises(InvalidLayout, match="engine torchtitan replays all of"):
        changed(asked, Change(engine="torchtitan"))
    kept = changed(asked, Change(engine="megatron-bridge")).question
    assert recompute_sets(kept.setting) == (("moe_act",),)


@pytest.mark.parametrize("modes", ["none", "full", "none,full"])
def test_a_set_that_no_pinned_mode_replays_is_refused(modes: str) -> None:
    """It would be passed over in silence."""
    arguments = Arguments(
        model="llama-3.1-8b", gpus=8, cluster="dgx-h100", global_batch=64,
        pins={AXIS: "mlp", "recompute": modes},
    )  # fmt: skip
    with pytest.raises(InvalidLayout, match=f"recompute {modes} is no selective recompute"):
        ask(arguments)
    ask(replace(arguments, pins={AXIS: "mlp", "recompute": "none,selective"}))
