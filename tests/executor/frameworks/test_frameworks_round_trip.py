"""A plan written in a framework's format and read back is the same plan, as far as it can say."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from nightly import cases
from random_plans import (
    ANYTHING,
    ENGINES,
    Habits,
    differences,
    missing_facts,
    model_named,
    plan_of,
    random_plan,
)

from meshplan.costmodels.layout import SCHEDULES, InvalidLayout, Layout, Stage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import split_by_cost
from meshplan.costmodels.training import Precision, Training
from meshplan.executor.frameworks import FRAMEWORKS, exporter_named, read_config
from meshplan.hardware_profiles.load_models import model_names
from meshplan.planner.case.plan_file import Plan, PlanModel
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

LAYOUTS = cases(50, nightly=500)
SHAPE = ("hidden", "vocab", "kinds", "pattern", "gated", "norm", "bias", "tied", "mtp_layers")
HABITS = {
    "megatron": Habits(
        schedules=("1f1b", "interleaved_1f1b"),
        recompute=("none", "selective", "full", "block"),
        precisions=("bf16", "fp8"),
        even=False,
    ),
    "bridge": Habits(
        schedules=("1f1b", "interleaved_1f1b"),
        recompute=("none", "selective", "full", "block"),
        even=False,
    ),
    "torchtitan": Habits(
        schedules=("1f1b", "gpipe", "interleaved_1f1b", "zb_v"), zero_stages=(2, 3), even=False
    ),
    "nanotron": Habits(schedules=("1f1b", "gpipe")),
    "deepspeed": Habits(zero_stages=(1, 2, 3), recompute=("none",), context=False,
                        sequence_parallel=False),
    "accelerate": Habits(zero_stages=(2, 3), sequence_parallel=False),
    "transformers": Habits(zero_stages=(3,), recompute=("none",), context=False,
                           sequence_parallel=False),
}  # fmt: skip
ELSEWHERE = {
    "deepspeed": {"training.seq_len", "model"},
    "accelerate": {
        "training.seq_len",
        "training.global_batch_size",
        "training.optimizer",
        "layout.micro_batch_size",
        "model",
    },
    "transformers": {
        "training.seq_len",
        "training.global_batch_size",
        "training.optimizer",
        "layout.micro_batch_size",
        "model",
    },
}
"""What a format leaves to the training code whatever the layout."""


@pytest.mark.parametrize("name", [*FRAMEWORKS, "torchtitan-0.2"])
def test_round_trip(name: str) -> None:
    """Each of 80 random legal layouts (nightly 500) comes back unchanged, but for what was listed
    as unsaid; one that the framework would train wrongly is refused."""
    export, framework = exporter_named(name), name.split("-0")[0]
    rng = random.Random(20250807)
    wrong: list[str] = []
    unsaid: Counter[str] = Counter()
    whole = refused = 0
    for number in range(LAYOUTS):
        plan = random_plan(rng, ANYTHING if number % 2 else HABITS[framework])
        try:
            exported = export(plan, 8)
        except InvalidLayout:
            refused += 1
            continue
        file = next(iter(exported.files))
        reading = read_config(exported.files[file], file)
        assert reading.framework == framework
        back = resolve(reading, missing_facts(plan, exported), Settings())
        found = differences(plan.layout, plan.training, back, exported)
        wrong += [f"{plan.layout.label}: {each}" for each in found]
        names = {each.name for each in exported.cannot_say}
        selective = any(stage.selective_layers for stage in plan.layout.stages)
        assert selective or "layout.selective_modules" not in names
        unsaid.update(names)
        names = {name for name in names if not name.startswith("numerics.")}
        whole += names <= ELSEWHERE.get(framework, set())
    assert not wrong, wrong[:5]
    refuses = dict.fromkeys(("accelerate", "deepspeed", "torchtitan"), 2 / 3)
    refuses["transformers"] = 5 / 6
    assert refused <= LAYOUTS * refuses.get(framework, 0)
    assert whole >= LAYOUTS // 15, f"only {whole} layouts were said whole; unsaid: {unsaid}"


def test_random_plans_cover_what_they_claim() -> None:
    """Every engine, schedule, kind of attention and of layer is among such random plans: 600, as
    the rarest engine is drawn once in 80: one of 1,400 such lists misses it, one of 6 of 150 plans.
    """
    rng = random.Random(20250807)
    plans = [random_plan(rng, ANYTHING) for _ in range(4 * LAYOUTS)]
    models = [model_named(plan.model.name) for plan in plans]
    kinds = [kind for model in models for kind in model.kinds]
    assert {plan.engine for plan in plans} == set(ENGINES)
    assert {plan.layout.schedule for plan in plans} == set(SCHEDULES)
    assert sum(plan.layout.virtual_stages > 1 for plan in plans) >= len(plans) // 10
    assert sum(plan.layout.expert_parallel > 1 for plan in plans) >= len(plans) // 10
    assert sum(kind.attention.is_mla for kind in kinds) >= len(plans) // 25
    assert sum(kind.attention.window is not None for kind in kinds) >= len(plans) // 25


@pytest.mark.few(1)
@pytest.mark.parametrize(("framework", "least"), [("megatron", 50), ("nanotron", 25)])
def test_the_model_comes_back(framework: str, least: int) -> None:
    """Each built-in model that the format can say comes back as the same shape."""
    wrong, said = [], 0
    for name in model_names():
        model = model_named(name)
        layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(model.num_layers),))
        plan = plan_of(name, layout, Training(seq_len=2048, global_batch_size=8))
        try:
            exported = FRAMEWORKS[framework].export(plan, 8)
        except UnsupportedModel:  # its first layer is none of attention, or has heads of odd width
            heads = model.kinds[0].attention.heads
            assert not heads or model.hidden % heads
            continue
        if any(each.name.startswith("model") for each in exported.cannot_say):
            continue
        file = next(iter(exported.files))
        reading = read_config(exported.files[file], file)
        back = resolve(reading, missing_facts(plan, exported), Settings()).model
        said += 1
        asked, answered = _uncounted_bias(model), _uncounted_bias(back)
        wrong += [
            f"{name}: {field}"
            for field in SHAPE
            if getattr(answered, field) != getattr(asked, field)
        ]
        unsaid = {each.name for each in exported.cannot_say}
        wrong += [f"{name}: {each}" for each in _numerics_lost(model, back, unsaid)]
    assert not wrong
    assert said >= least


def _uncounted_bias(model: Model) -> Model:
    """Without the bias that decides on the choice alone, which `numerics` says: some families count
    it among their parameters, others keep it as a buffer, and a format states no more than it.
    """
    if not (model.numerics.router and model.numerics.router.bias):
        return model
    return replace(
        model,
        kinds=tuple(
            replace(kind, experts=replace(kind.experts, router_bias=False))
            if kind.experts
            else kind
            for kind in model.kinds
        ),
    )


def _numerics_lost(model: Model, back: Model, unsaid: set[str]) -> list[str]:
    """Numerics that a format says and loses: epsilon, initialisation, rotary base and stretch, the
    router's groups and scale."""

    def told(each: Model) -> dict[str, object]:
        n, rotary, router = each.numerics, each.numerics.rotary, each.numerics.router
        scaling = rotary.scaling and (rotary.scaling.kind, rotary.scaling.factor)
        found = {"norm_epsilon": n.norm_epsilon, "init_std": n.init_std}
        if not model.learned_positions:
            found |= {"rotary_base": rotary.base, "rotary_scaling": scaling}
        if router is not None:
            found |= {"router": (router.groups, router.top_groups, router.scale or 1)}
        return found

    ours, theirs = told(model), told(back)
    return [
        f"numerics.{field}: {value} became {theirs.get(field)}"
        for field, value in ours.items()
        if value is not None
        and theirs.get(field) != value
        and not any(name.startswith(f"numerics.{field}") for name in unsaid)
    ]


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        pytest.param("megatron", "--optimizer-offload-fraction 1.0", id="megatron: the default"),
        pytest.param("bridge", "optimizer_offload_fraction", id="bridge: its default is 0"),
    ],
)
def test_an_optimizer_on_the_host_is_there_whole(framework: str, words: str) -> None:
    """The fraction that the plan was priced with is said, since defaults differ."""
    layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(32),), optimizer_offload=True)
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=8))
    assert any(words in text for text in FRAMEWORKS[framework].export(plan, 8).files.values())


@pytest.mark.parametrize("framework", ["megatron", "bridge", "deepspeed"])
def test_fractions_on_the_host_come_back(framework: str) -> None:
    """Half of the optimizer: Megatron's fraction, DeepSpeed's ratio. 8 of 32 layers' activations
    come back where the file states how many layers there are.
    """
    layout = Layout(
        data_parallel=8, zero_stage=3, stages=(Stage(32),), optimizer_offload=0.5,
        activation_offload=0.25 if framework == "megatron" else 0.0,
    )  # fmt: skip
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=8))
    exported = FRAMEWORKS[framework].export(plan, 8)
    file = next(iter(exported.files))
    reading = read_config(exported.files[file], file)
    back = resolve(reading, missing_facts(plan, exported), Settings()).layout
    assert back.optimizer_offload == 0.5
    assert back.activation_offload == layout.activation_offload


@pytest.mark.parametrize("framework", ["megatron", "nanotron"])
def test_a_plan_of_before_loads_and_says_what_it_lacks(framework: str) -> None:
    """A plan file whose model states sizes only is exported without a guessed base or epsilon."""
    layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(32),))
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=8))
    lacking = ("rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act", "initializer_range")
    config = {key: value for key, value in plan.model.config.items() if key not in lacking}
    old = plan.model_copy(update={"model": PlanModel.of("llama-3.1-8b", config)})
    exported = FRAMEWORKS[framework].export(Plan.from_yaml(old.to_yaml()), 8)
    (text,) = exported.files.values()
    guessed = ("rotary-base", "norm-epsilon", "rope_theta", "rms_norm_eps")
    said = [line for line in text.splitlines() if not line.startswith("#")]
    assert not any(word in line for word in guessed for line in said)
    unsaid = {each.name for each in exported.cannot_say if each.value == "not stated"}
    assert len(unsaid) == 4, unsaid


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "gpt-oss-20b", "qwen3-0.6b", "gemma-2-27b", "llama-3.1-8b"]
)
@pytest.mark.parametrize("pp", [2, 4])
def test_nanotron_cuts_the_model_that_its_file_describes(name: str, pp: int) -> None:
    """Stages that are cut by the costs of blocks come back, or are listed as unsaid where the
    file's blocks are not the model's (latent attention, heads wider than hidden / heads)."""
    model = model_named(name)
    stages = tuple(Stage(n) for n in split_by_cost(model, pp))
    layout, training = (
        Layout(pipeline_parallel=pp, stages=stages),
        Training(seq_len=2048, global_batch_size=16),
    )
    plan = plan_of(name, layout, training)
    exported = FRAMEWORKS["nanotron"].export(plan, 8)
    ((file, text),) = exported.files.items()
    back = resolve(read_config(text, file), missing_facts(plan, exported), Settings())
    assert not differences(layout, training, back, exported)
    unsaid = {each.name for each in exported.cannot_say}
    assert ("layout.stages" in unsaid) == (name != "llama-3.1-8b")


@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8", "nvfp4"])
def test_bridge_reads_the_narrow_gradients_that_it_writes(precision: Precision) -> None:
    """An engine of 16-bit gradients has its mixed precision written out; what a named recipe sets
    to the same value is understood."""
    layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(32),))
    training = Training(seq_len=2048, global_batch_size=8, precision=precision)
    plan = plan_of("llama-3.1-8b", layout, training).model_copy(
        update={"engine": "megatron-bridge"}
    )
    exported = FRAMEWORKS["bridge"].export(plan, 8)
    for file, text in exported.files.items():
        reading = read_config(text, file)
        back = resolve(reading, missing_facts(plan, exported), Settings())
        assert not differences(layout, training, back, exported)
        assert back.engine.name == "megatron-bridge"


@pytest.mark.parametrize("name", ["torchtitan", "torchtitan-0.2", "megatron", "bridge"])
def test_a_format_of_experts_alone(name: str) -> None:
    """torchtitan converts them by a converter of their own; Megatron says that it does not."""
    layout = Layout(data_parallel=8, expert_parallel=8, zero_stage=2, stages=(Stage(27),))
    training = Training(seq_len=2048, global_batch_size=8, precision="mxfp8_experts")
    plan = plan_of("deepseek-v2-lite", layout, training)
    exported = exporter_named(name)(plan, 8)
    says = name.startswith("torchtitan")
    assert ("training.precision" in {each.name for each in exported.cannot_say}) != says
    file, text = next(iter(exported.files.items()))
    back = resolve(read_config(text, file), missing_facts(plan, exported), Settings())
    assert back.training.precision == ("mxfp8_experts" if says else "bf16")
