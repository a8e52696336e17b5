"""Modules of multi-token prediction with the loss or apart from it: cuts, prices, rules, pins."""

import dataclasses
from dataclasses import replace

import pytest
from simulated_oracle import DENSE

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.memory import step_memory
from meshplan.costmodels.step.seconds import schedule_work, step_time
from meshplan.costmodels.step.stages import StageModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.case.plan_file import said
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.row_layout import layers_of
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.engine_rules import check_engine
from meshplan.planner.space.module_splits import can_split_stack, stack_splits
from meshplan.planner.space.pins import parse_pins

MEGATRON = load_engine("megatron")
TRAINING = Training(seq_len=2048, global_batch_size=16)


def predicting(layers: int, modules: int = 1) -> Model:
    """Equal layers and so many modules."""
    return Model(
        name="small", hidden=2048, vocab=64_000, kinds=(DENSE,), pattern=(0,) * layers,
        mtp_layers=modules,
    )  # fmt: skip


def setting(modules: int = 1, engine: str = "megatron") -> Setting:
    """Eight layers and so many modules on H100s of nodes of one."""
    cluster = load_cluster("dgx-h100").model_copy(update={"gpus_per_node": 1})
    return Setting.fitted(predicting(8, modules), TRAINING, cluster, load_engine(engine))


def layout(*layers: int, apart: bool) -> Layout:
    """One chunk per rank with so many layers each."""
    return Layout(
        data_parallel=2, pipeline_parallel=len(layers), zero_stage=1, modules_apart=apart,
        stages=tuple(map(Stage, layers)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        pytest.param(7, 3, 1, {(n, 8 - n, 0) for n in range(8)}, id="7 = n + (7 - n), module, 0"),
        pytest.param(8, 5, 1, {(2, 2, 2, 3, 0), (3, 2, 2, 2, 0), (1, 3, 3, 2, 0), (2, 3, 3, 1, 0)},
                     id="8 = f + 2q + r, r <= q, q - 2 <= f <= q + 1: q 2, q 3"),
        pytest.param(4, 3, 2, {(1, 1, 1, 1, 1, 0), (0, 1, 1, 1, 2, 0)},
                     id="4 = f + 3 + r in six chunks: f + r = 1"),
        pytest.param(8, 2, 2, set(), id="two ranks: a module would be on the first"),
    ],
)  # fmt: skip
def test_cuts_apart_from_the_loss_by_hand(
    layers: int, pp: int, vpp: int, expected: set[tuple[int, ...]]
) -> None:
    """Parts of the stack on each stage: the last holds none, the one before it the module too."""
    model, rules = predicting(layers), MEGATRON.legality
    assert set(stack_splits(model, rules, pp, vpp, (True,)) or ()) == expected
    assert can_split_stack(model, rules, pp, vpp, (True,)) == bool(expected)


def test_deepseek_s_recipe_is_among_the_cuts() -> None:
    """NVIDIA's `Et*3|(tt|)*29m|L`: 61 layers on 32 stages."""
    ways = stack_splits(predicting(61), MEGATRON.legality, 16, 2, (True,))
    assert (3, *[2] * 29, 1, 0) in (ways or ())


def test_with_the_loss_the_last_stage_has_one_part_more() -> None:
    """The cuts of the layers alone, and the module behind them; without modules the layers'."""
    rules = MEGATRON.legality
    with_loss = stack_splits(predicting(8), rules, 4, 1, (False,))
    alone = stack_splits(predicting(8, 0), rules, 4, 1)
    assert alone is not None
    assert with_loss == tuple((*counts[:-1], counts[-1] + 1) for counts in alone)


def test_the_stack_s_last_part_is_no_layer() -> None:
    """Of a stage that recomputes all its parts the module is left out, and of one that has it alone
    nothing is left.
    """
    assert layers_of((Stage(2), Stage(3, 1, 2), Stage(0))) == (Stage(2), Stage(2, 0, 2), Stage(0))
    assert layers_of((Stage(2), Stage(1, 1), Stage(0))) == (Stage(2), Stage(0), Stage(0))


@pytest.mark.parametrize("modules", [1, 2])
def test_apart_each_message_behind_the_modules_is_as_much_wider(modules: int) -> None:
    """Four layers a stage, then the modules alone, then the heads: what is put out of the last
    layer and of each module crosses together, and the gradients back, half of it waited for
    (Megatron-Core, not interleaved). The ranks before send as ever; the last one's forward hands
    nothing on.
    """
    asked = setting(modules)
    one = StageModel(asked, layout(4, 4, 0, 0, apart=True))
    work, hop_s = schedule_work(one), float(one.hops.hop_s)
    assert hop_s > 0
    wider_s = modules * 0.5 * hop_s
    host_s = asked.tuning.micro_batch_s / 2
    plain_s = 0.5 * hop_s + host_s
    module, loss = one.ends[2], one.ends[1]
    assert work.forward_s[2] == pytest.approx(float(module.forward.total_s) + plain_s + wider_s)
    assert work.input_grad_s[2] == pytest.approx(float(module.input_grad.total_s) + plain_s)
    assert work.forward_s[3] == pytest.approx(float(loss.forward.total_s) + host_s)
    assert work.input_grad_s[3] == pytest.approx(float(loss.input_grad.total_s) + plain_s + wider_s)
    assert work.forward_s[0] == schedule_work(
        StageModel(asked, layout(4, 4, 0, 0, apart=False))
    ).forward_s[0]  # fmt: skip


def test_parts_of_a_step_add_up_where_modules_are_apart() -> None:
    """The busiest rank sends the wider message: its parts still sum to the step."""
    found = StageModel(setting(2), layout(2, 2, 4, 0, apart=True))
    step = step_time(found)
    assert step.bubble_s > 0
    parts = sum(getattr(step, each.name) for each in dataclasses.fields(step))
    assert step.step_time_s == pytest.approx(parts)


def test_twice_the_micro_batches_send_twice_as_long_where_modules_are_apart() -> None:
    """The wider message is sent for each of them."""
    sent = []
    for batch in (16, 32):
        asked = replace(setting(2), training=replace(TRAINING, global_batch_size=batch))
        sent.append(step_time(StageModel(asked, layout(2, 2, 4, 0, apart=True))).send_s)
    assert sent[1] == pytest.approx(2 * sent[0], rel=1e-12)


def test_memory_goes_with_the_module() -> None:
    """Apart, the last rank loses the module's states and the one before it gains them."""
    together, apart = (
        step_memory(StageModel(setting(), layout(4, 4, 0, 0, apart=way))) for way in (False, True)
    )
    module = StageModel(setting(), layout(4, 4, 0, 0, apart=True))
    states = module.state_memory(module.end_parameters[2]).states
    assert together[3].states - apart[3].states == pytest.approx(float(states))
    assert apart[2].states - together[2].states == pytest.approx(float(states))


@pytest.mark.parametrize(
    ("counts", "model", "why"),
    [
        ((4, 4, 0), predicting(8, 0), "small has no modules"),
        ((4, 3, 1), predicting(8), "must hold 0 layers"),
        ((4, 4, 0, 0, 0), predicting(8), "stage 2 of 5 is empty"),
    ],
)
def test_a_layout_that_places_no_module_is_refused(
    counts: tuple[int, ...], model: Model, why: str
) -> None:
    """Without modules, with a layer behind them, or with a stage that holds nothing at all."""
    with pytest.raises(InvalidLayout, match=why):
        check_layout(layout(*counts, apart=True), model, TRAINING)
    check_layout(layout(4, 4, 0, 0, apart=True), predicting(8), TRAINING)


@pytest.mark.parametrize(
    ("engine", "counts", "why"),
    [
        ("native", (4, 4, 0), "engines that can apart from the loss: .*megatron"),
        ("nemo", (4, 4, 0), "on the last stage"),
        ("megatron", (8, 0), "use 3 or more"),
    ],
)
def test_engines_that_cannot_place_modules(engine: str, counts: tuple[int, ...], why: str) -> None:
    """One line with the rule and what to do."""
    with pytest.raises(InvalidLayout, match=why):
        check_engine(layout(*counts, apart=True), predicting(8), TRAINING, load_engine(engine))


def asking(**pins: str) -> Question:
    """Eight layers and two modules on four GPUs, one pipeline."""
    fixed = {"pipeline_parallel": "4", "virtual_stages": "1", "micro_batch_size": "1", **pins}
    return Question(
        model=predicting(8, 2), training=TRAINING, gpus=4, engine=MEGATRON,
        cluster=load_cluster("dgx-h100"), pins=parse_pins(fixed),
    )  # fmt: skip


def test_a_pin_places_the_modules() -> None:
    """Two modules and three heads weigh more than three layers: apart is faster, without a pin too;
    a pin fixes either, and two ranks have no place apart.
    """
    free, together, apart = (
        solve(asking(**pins), 1).solutions[0]
        for pins in ({}, {"modules_apart": "off"}, {"modules_apart": "on"})
    )
    assert free.layout.modules_apart
    assert apart.layout == free.layout
    assert not together.layout.modules_apart
    assert together.step_time_s > free.step_time_s
    assert free.layout.stages[-1].layers == 0
    with pytest.raises(NoLayoutFits):
        solve(asking(modules_apart="on", pipeline_parallel="2"), 1)


def test_a_pin_that_asks_for_what_the_engine_lacks_leaves_nothing() -> None:
    """Meshplan's own engine has modules on the last stage; a model without any has none to pin."""
    asked = replace(asking(modules_apart="on"), engine=load_engine("native"))
    with pytest.raises(NoLayoutFits):
        solve(asked, 1)
    plain = replace(asked, model=predicting(8, 0))
    assert not solve(plain, 1).solutions[0].layout.modules_apart


def test_a_plan_file_says_where_modules_are_only_where_they_are_apart() -> None:
    """Files of other layouts stay as they were."""
    assert said(layout(4, 4, 0, apart=True))["modules_apart"] is True
    assert "modules_apart" not in said(layout(4, 4, 0, apart=False))
