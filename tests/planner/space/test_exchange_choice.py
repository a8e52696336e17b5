"""Kinds of context parallelism and dispatchers: where they are legal, and which of them stay."""

import random
from dataclasses import replace

import numpy as np
import pytest

from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, InvalidLayout, Layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.ranks.kind_costs import _seconds, kind_costs
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.seconds.layer import DIRECTIONS
from meshplan.costmodels.seconds.process_groups import place
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dispatchers import load_dispatchers
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.space.exchange_choice import with_fastest_kinds
from meshplan.planner.space.exchange_rules import (
    check_exchanges,
    context_kinds,
    dispatches,
    splits_heads,
)
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.ui.layouts import case_of_choice, choice_of
from meshplan.planner.ui.requests import SliderLayout


def model_named(name: str) -> Model:
    return model_from_config(load_model_config(name), name)


def question(model: str, engine: str = "megatron", **pins: str) -> Question:
    return Question(
        model=model_named(model), training=Training(seq_len=32768, global_batch_size=64), gpus=32,
        cluster=load_cluster("dgx-h100"), engine=load_engine(engine), pins=parse_pins(pins),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "packed", "kinds"),
    [
        pytest.param("llama-3.1-8b", None, {*CONTEXT_KINDS}, id="all"),
        pytest.param("gpt-oss-20b", None, {"all_gather", "all_to_all"}, id="sliding windows"),
        pytest.param(
            "deepseek-v3", None, {"ring", "hierarchical"}, id="keys of 192, values of 128"
        ),
        pytest.param("llama-3.1-8b", 512, {"ring", "all_gather", "all_to_all"}, id="packed"),
        pytest.param("deepseek-v3", 512, {"ring"}, id="packed, and 192 beside 128"),
        pytest.param("deepseek-v3.2", None, {"all_gather"}, id="latents that an indexer chose"),
        pytest.param("glm-5.2", 512, {"all_gather"}, id="the same, packed"),
    ],
)
def test_kinds_that_go_with_a_model(model: str, packed: int | None, kinds: set[str]) -> None:
    """What Transformer Engine refuses (NVIDIA/TransformerEngine@015d2257 context_parallel.py), and
    Megatron's attention over chosen latents (NVIDIA/Megatron-LM@d98e8a64 dsa.py).
    """
    training = Training(seq_len=4096, global_batch_size=8, packed_mean_length=packed)
    found, why = context_kinds(model_named(model), training, load_engine("megatron"))
    assert set(found) == kinds
    assert bool(why) == (kinds != {*CONTEXT_KINDS})


@pytest.mark.parametrize(
    ("tp", "cp", "kind", "splits"),
    [
        pytest.param(1, 8, "all_to_all", True, id="8 key/value heads on 8 ranks"),
        pytest.param(2, 8, "all_to_all", False, id="4 on 8"),
        pytest.param(2, 8, "hierarchical", True, id="4 on the 4 ranks of a node, 2 nodes"),
        pytest.param(1, 8, "hierarchical", False, id="one node is no second level"),
        pytest.param(4, 16, "hierarchical", True, id="2 on 2, 8 nodes"),
        pytest.param(8, 4, "hierarchical", False, id="one rank of a node is no first level"),
        pytest.param(8, 4, "ring", True, id="a ring splits no heads"),
    ],
)
def test_heads_that_ranks_divide(tp: int, cp: int, kind: str, splits: bool) -> None:
    """Llama-3.1-8B has 32 heads and 8 key/value heads; nodes have 8 ranks."""
    model, group = model_named("llama-3.1-8b"), place(cp * 1.0, tp * 1.0, 8)
    assert splits_heads(kind, model, tp * 1.0, group) == splits  # type: ignore[arg-type]
    many = place(np.array([cp * 1.0]), np.array([tp * 1.0]), 8)
    assert splits_heads(kind, model, np.array([tp * 1.0]), many)[0] == splits  # type: ignore


@pytest.mark.parametrize(
    ("name", "ranks", "cluster", "runs"),
    [
        pytest.param("deepep", 8, "dgx-h100", True, id="the ranks of a node"),
        pytest.param("deepep", 64, "dgx-h100", True, id="8 nodes"),
        pytest.param("deepep", 40, "dgx-h100", False, id="no kernels for 40"),
        pytest.param("deepep", 8, "gb200-nvl72", False, id="not for GB200"),
        pytest.param("hybridep", 64, "gb200-nvl72", True, id="HybridEP is"),
        pytest.param("hybridep", 8, "mi300x-8", False, id="not for AMD"),
        pytest.param("all_to_all", 40, "mi300x-8", True, id="a collective runs anywhere"),
    ],
)
def test_where_a_dispatcher_runs(name: str, ranks: int, cluster: str, runs: bool) -> None:
    """By `dispatchers.toml`."""
    where = load_cluster(cluster)
    group = place(ranks * 1.0, 1.0, where.gpus_per_node)
    assert dispatches(name, group, where) == runs  # type: ignore[arg-type]


def test_deepep_needs_eight_ranks_on_each_of_several_nodes() -> None:
    """16 ranks on nodes of 4 have 4 on each."""
    where = load_cluster("dgx-h100").model_copy(update={"gpus_per_node": 4})
    assert not dispatches("deepep", place(16.0, 1.0, 4), where)
    assert dispatches("deepep", place(4.0, 1.0, 4), where)


def test_facts_agree() -> None:
    """What an engine usually does is among what it can, and every library is known."""
    for engine in map(load_engine, engine_names()):
        rules = engine.legality
        assert set(rules.usual_dispatchers) <= set(rules.dispatchers)
        assert bool(rules.usual_dispatchers) == bool(rules.dispatchers)
        assert not rules.context_kinds or engine.kernels.context in rules.context_kinds
    assert {"all_to_all", *load_dispatchers()} == set(DISPATCHERS)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("engine", "model"),
    [
        *(("megatron", each) for each in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite")),
        ("torchtitan-0.2", "llama-3.1-8b"),
    ],
)
def test_no_kind_that_was_dropped_is_better(model: str, engine: str) -> None:
    """Of random layouts, recomputing nothing, in part or in full, none with a kind that was dropped
    is faster than all that stay and keep no more."""
    q, draw, compared = question(model, engine), random.Random(model + engine), 0
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    rules, plain, opened = q.engine.legality, enumerate_space(
        q.model, q.training, q.gpus, q.engine, q.pins, 8
    ), space_of(q)  # fmt: skip
    la = opened.layouts
    for row in draw.sample(range(len(plain.layouts)), 40):
        variant = next(iter(plain.variants(row)), None)
        if variant is None or variant.virtual_stages > 1:
            continue
        pp = int(plain.layouts.pipeline_parallel[row])
        layers, rest = divmod(q.model.num_layers, pp)
        mode = draw.randrange(3)
        stages = StagePlan(_stages(layers, rest, pp, mode), 0, ())
        silent = layout_of_row(plain.layouts, row, variant, stages)
        mine = [
            layout_of_row(la, int(other), variant, stages)
            for other in np.flatnonzero(_same(la, plain.layouts, row))
        ]
        kept = [StepModel(setting, layout) for layout in mine]
        steps = [(m.time().step_time_s, _most_bytes(m)) for m in kept]
        for layout in _every(silent, q, rules.context_kinds, rules.usual_dispatchers):
            if layout in mine:
                continue
            model_of = StepModel(setting, layout)
            step_s = model_of.time().step_time_s
            held = _most_bytes(model_of)
            assert any(s <= step_s * (1 + 1e-9) and b <= held for s, b in steps), layout
            compared += 1
    assert compared >= 10


def _most_bytes(model: StepModel) -> float:
    return max(float(memory.allocated) for memory in model.memory())


def _stages(layers: int, rest: int, pp: int, mode: int):
    from meshplan.costmodels.layout import Stage

    counts = [layers + (at < rest) for at in range(pp)]
    return tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)


def _same(opened, plain, row: int):
    """The opened rows that are `row` but for the kinds."""
    names = [name for name in plain.__slots__ if name not in ("context_kind", "dispatcher")]
    return np.all([getattr(opened, n) == getattr(plain, n)[row] for n in names], axis=0)


def _every(silent: Layout, q: Question, kinds, sends) -> list[Layout]:
    """All kinds that are legal for a layout."""
    found = []
    for kind in kinds if silent.context_parallel > 1 and kinds else [""]:
        for send in sends if silent.expert_parallel > 1 and sends else [""]:
            layout = replace(silent, context_kind=kind, dispatcher=send)
            ranks = place(silent.expert_parallel * silent.expert_tensor_parallel * 1.0, 1.0, 8)
            try:
                check_exchanges(layout, q.model, q.training, q.engine, q.cluster)
            except InvalidLayout:
                continue
            if not send or dispatches(send, ranks, q.cluster):
                found.append(layout)
    return found


def test_pins_on_kinds() -> None:
    """A pinned kind is the only one; rows without the exchange stay; others are counted."""
    free = space_of(question("mixtral-8x7b"))
    pinned = space_of(question("mixtral-8x7b", context_kind="all_to_all", dispatcher="all_to_all"))
    la = pinned.layouts
    of_ring = 1 + CONTEXT_KINDS.index("all_to_all")
    assert set(la.context_kind[la.context_parallel > 1]) == {of_ring}
    assert set(la.context_kind[la.context_parallel == 1]) == {0}
    assert set(la.dispatcher) == {0, 1}
    lost = "no kind of context parallelism that the engine has, or the pins, splits the heads"
    assert pinned.dropped[lost] > 0
    assert lost not in free.dropped
    both = (free.layouts.context_parallel == 1).sum(), (la.context_parallel == 1).sum()
    assert both[0] >= both[1] > 0


@pytest.mark.parametrize(
    ("pins", "cluster", "engine", "words"),
    [
        (
            {"context_kind": "ring"},
            "dgx-h100",
            "megatron",
            "not with sliding windows; what",
        ),
        ({"dispatcher": "deepep"}, "mi300x-8", "megatron", "does not run on mi300x"),
        ({"dispatcher": "deepep"}, "gb200-nvl72", "megatron", "does not run on gb200"),
        ({"context_kind": "ring"}, "dgx-h100", "native", "engine native has one"),
        ({"context_kind": "all_to_all"}, "dgx-h100", "torchtitan-0.2", "has all_gather, ring"),
        ({"context_kind": "ring"}, "dgx-h100", "torchtitan", "has all_gather"),
        ({"dispatcher": "hybridep"}, "dgx-h100", "nemo", "has all_to_all"),
    ],
)
def test_pins_that_nothing_can_follow(
    pins: dict[str, str], cluster: str, engine: str, words: str
) -> None:
    """One line, before anything is searched."""
    arguments = Arguments(
        model="gpt-oss-20b", gpus=8, cluster=cluster, global_batch=8, engine=engine, pins=pins
    )
    with pytest.raises(InvalidLayout, match=words):
        ask(arguments)


def test_a_library_of_its_own_needs_a_pin_where_recipes_do_without() -> None:
    """torchtitan's default is a collective; Megatron-Bridge's recipes use DeepEP."""
    usual = {
        engine: set(
            space_of(question("qwen3-30b-a3b", engine, expert_parallel="8")).layouts.dispatcher
        )
        for engine in ("torchtitan", "megatron-bridge")
    }
    every, deepep = 1 + DISPATCHERS.index("all_to_all"), 1 + DISPATCHERS.index("deepep")
    assert usual["torchtitan"] == {every}
    assert deepep in usual["megatron-bridge"]
    pinned = question("qwen3-30b-a3b", "torchtitan", expert_parallel="8", dispatcher="deepep")
    assert set(space_of(pinned).layouts.dispatcher) == {deepep}


def test_open_kinds_are_filled_with_the_fastest() -> None:
    """A silent layout gets a kind for each exchange that it has; a stated one that runs stays."""
    q = question("mixtral-8x7b")
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    silent = Layout(
        data_parallel=4, context_parallel=8, expert_parallel=8, zero_stage=1,
        stages=_stages(32, 0, 1, 0),
    )  # fmt: skip
    filled = with_fastest_kinds(silent, setting)
    assert filled.context_kind
    assert filled.dispatcher
    mine = StepModel(setting, filled).time().step_time_s
    for layout in _every(silent, q, CONTEXT_KINDS, DISPATCHERS):
        assert mine <= StepModel(setting, layout).time().step_time_s * (1 + 1e-9)
    stated = replace(silent, context_kind="all_gather")
    assert with_fastest_kinds(stated, setting).context_kind == "all_gather"
    alone = replace(silent, data_parallel=32, context_parallel=1, expert_parallel=1)
    assert with_fastest_kinds(alone, setting) == alone


def test_a_faster_kind_that_keeps_more_leaves_the_other() -> None:
    """GPT-3 on four nodes: all 96 heads send much, so a ring between nodes waits for the network;
    exchanging heads first is faster and keeps the outputs, so a ring stays beside it.
    """
    opened = space_of(question("gpt3-175b", context_parallel="16", tensor_parallel="1"))
    la = opened.layouts
    rows = np.flatnonzero((la.pipeline_parallel == 1) & (la.micro_batch_size == 1))
    named = {CONTEXT_KINDS[code - 1] for code in la.context_kind[rows]}
    assert "ring" in named
    assert named & {"all_to_all", "hierarchical"}
    assert "all_gather" not in named


def test_a_ring_whose_steps_the_host_issues_leaves_the_gather() -> None:
    """PyTorch's ring waits less and is as many kernels, but its steps are calls of the host. A step
    of few tokens waits for them: the gather is faster with everything recomputed.
    """
    q = replace(
        question("llama-3.2-1b", "accelerate", context_parallel="4", tensor_parallel="1"),
        training=Training(seq_len=4096, global_batch_size=8),
        cluster=load_cluster("gh200-vista"),
    )
    space = space_of(q)
    kinds = {CONTEXT_KINDS[code - 1] for code in np.unique(space.layouts.context_kind)}
    assert "all_gather" in kinds


def test_what_the_host_issues_is_compared_by_direction_and_replay() -> None:
    """Each is a column of what kinds are compared by: one alone may tell two kinds apart. Where
    everything is recomputed the forward pass is issued once more.
    """
    q = question("llama-3.2-1b", "accelerate", context_parallel="4", tensor_parallel="1")
    layouts = space_of(q).layouts.take(np.arange(1))
    columns, rank = kind_costs(layouts, q.setting, [0])[0], Rank(q.setting, layouts)
    forward_s, *others_s = (
        float(np.ravel(rank.pricer.issued_s(rank.operations(0), each))[0]) for each in DIRECTIONS
    )
    replay_s = float(np.ravel(rank.pricer.issued_s(rank.run_forward(0, "full"), "forward"))[0])
    assert forward_s == replay_s > 0
    assert np.sum(columns == forward_s) >= 2
    assert others_s
    assert all(np.any(columns == each) for each in others_s)


def test_kernels_are_compared_where_checkpoints_take_the_host_some_time_for_each() -> None:
    """Under PyTorch's hooks a kind of more kernels may be the slower one where a layer recomputes,
    though the host issues it no later.
    """
    q = question("llama-3.2-1b", "torchtitan-eager", context_parallel="4", tensor_parallel="1")
    layouts = space_of(q).layouts.take(np.arange(1))
    rank = Rank(q.setting, layouts)
    assert rank.pricer.checkpoint_hooks
    launches = float(np.ravel(rank.pricer.launches(rank.operations(0)))[0])
    assert launches in kind_costs(layouts, q.setting, [0])[0]


def test_a_model_without_attention_has_the_usual_kind() -> None:
    """Nothing is exchanged for queries: the engine's default stands."""
    q = question("llama-3.1-8b", context_parallel="2")
    kinds = (replace(q.model.kinds[0], attention=replace(q.model.kinds[0].attention, heads=0)),)
    opened = space_of(replace(q, model=replace(q.model, kinds=kinds)))
    assert set(opened.layouts.context_kind) == {1 + CONTEXT_KINDS.index("ring")}


def test_kinds_are_compared_by_what_a_forward_pass_with_experts_takes() -> None:
    """Its longest chain through host and device is among the costs: longer than the device's time,
    which is there too.
    """
    q = question("mixtral-8x7b", expert_parallel="8", tensor_parallel="2", micro_batch_size="1")
    setting, layouts = q.setting, space_of(q).layouts.take(np.arange(3))
    costs = kind_costs(layouts, setting, [0])
    forward = Rank(setting, layouts).plain_cost(0, "none").forward
    for seconds in (forward.total_s, forward.total_s - forward.host_s):
        assert np.any(np.all(np.isclose(costs, np.reshape(seconds, (-1, 1)), rtol=1e-12), axis=0))
    assert np.all(forward.host_s > 0)


def test_the_page_prices_the_kind_that_a_search_would_take() -> None:
    """Sliders without a kind are priced with the fastest; those of a plan with the plan's own."""
    asked = ask(
        Arguments(model="mixtral-8x7b", gpus=64, cluster="dgx-h100", global_batch=64,
                  seq_len="32768", engine="megatron-bridge")
    )  # fmt: skip
    degrees = {"context_parallel": 8, "expert_parallel": 8, "zero_stage": 1, "tensor_parallel": 2}
    moved = case_of_choice(asked, SliderLayout(**degrees)).layout  # type: ignore[arg-type]
    assert moved.context_kind
    assert moved.dispatcher == "hybridep"  # its calls permute too, so the host issues less
    stated = SliderLayout(**degrees, context_kind="all_gather")  # type: ignore[arg-type]
    layout = case_of_choice(asked, stated).layout
    assert layout.context_kind == "all_gather"
    assert choice_of(layout).context_kind == "all_gather"


def test_an_exchange_that_is_hidden_leaves_weights_no_room() -> None:
    """Two passes of 5 s. One waits for 1 s of an exchange and hides 2 s of it on the links that the
    weights take, so these have 2 s; the other waits for all 3 s, and they have as many.
    """
    hides = Pass(matmul_s=4.0, context_s=1.0, more_room_s=-2.0)
    waits = Pass(matmul_s=2.0, context_s=3.0)
    assert [_seconds(each) for each in (hides, waits)] == [(5.0, 3.0), (5.0, 3.0)]
    assert (hides.room_s, waits.room_s) == (2.0, 2.0)
