"""README's plan, written for the frameworks that run it, read back and checked: it fits, with the
memory of the plan."""

import random
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from nightly import cases
from random_plans import ANYTHING, missing_facts, random_plan
from random_plans import plan_of as layout_plan

from meshplan.costmodels.layout import InvalidLayout, Layout, even_stages
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.core_loss import with_loss
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import predicted, stage_memory, step_model_of
from meshplan.planner.case.reading import Exported, Fact
from meshplan.planner.case.resolve import Case, check_case, engine_named, model_named, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import case_of, check_paths
from meshplan.planner.cli.check import tools

ONE_OF_EACH = Training(seq_len=4096, global_batch_size=8)


@cache
def planned(engine: str) -> Plan:
    """README's question for one engine: 256 H100, sequences of 8192, 4M tokens a step."""
    asked = ask(
        Arguments(
            model="llama-3.1-70b", gpus=256, cluster="dgx-h100", seq_len="8192",
            global_batch_tokens="4M", engine=engine,
        )
    )  # fmt: skip
    return plan_of(asked, solve(asked.question, 1))


def _peaks(case: Case) -> list[float]:
    return [rank.reserved for rank in stage_memory(step_model_of(case))]


def _as_planned(case: Case, exported: Exported) -> Case:
    """With the loss of Transformer Engine, where the format lists it as what it cannot say."""
    if "loss" not in {each.name for each in exported.cannot_say}:
        return case
    return replace(case, engine=with_loss(case.engine, "te"))


WHOLE = [
    ("megatron-bridge", "megatron"),
    ("megatron-bridge", "bridge"),
    ("torchtitan", "torchtitan"),
    ("torchtitan-0.2", "torchtitan-0.2"),
    ("torchtitan-eager", "torchtitan-0.2"),
    ("torchtitan-eager-chunked-loss", "torchtitan"),
    ("nanotron", "nanotron"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("engine", "to"), WHOLE)
def test_a_plan_exported_to_its_own_engine_fits_as_planned(
    engine: str, to: str, tmp_path: Path
) -> None:
    """`check` of each file that `export` wrote says `fits`; every rank needs what the plan says."""
    plan = planned(engine)
    exported = exporter_named(to)(plan, 8)
    assert not [each for each in exported.cannot_say if each.name.startswith("layout")]
    given = missing_facts(plan, exported)
    assert plan.prediction is not None
    for name, text in exported.files.items():
        (tmp_path / name).write_text(text)
        case = resolve(read_config(text, name), given, Settings())
        assert case.engine.name == engine
        peaks = _peaks(_as_planned(case, exported))
        assert peaks == pytest.approx([rank.reserved for rank in plan.prediction.memory])
        (found,) = check_paths([tmp_path / name], tools(), given)
        assert found.verdict == "fits", found.text


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "to", "listed"),
    [
        pytest.param("deepspeed", "deepspeed", "layout.stages.recompute", id="DeepSpeed's is code"),
        pytest.param("nemo", "bridge", None, id="NeMo: the engine is said apart"),
    ],
)
def test_what_is_listed_is_all_that_differs(engine: str, to: str, listed: str | None) -> None:
    """With what the format cannot say put back, the file needs the memory of the plan."""
    plan = planned(engine)
    exported = exporter_named(to)(plan, 8)
    assert listed is None or listed in {each.name for each in exported.cannot_say}
    name, text = next(iter(exported.files.items()))
    case = resolve(read_config(text, name), missing_facts(plan, exported), Settings())
    stages = plan.layout.stages if listed else case.layout.stages
    case = replace(case, engine=engine_named(engine), layout=replace(case.layout, stages=stages))
    check_case(case)
    assert plan.prediction is not None
    assert _peaks(case) == pytest.approx([rank.reserved for rank in plan.prediction.memory])


EXPORTED = {
    "megatron": ("megatron",), "megatron-bridge": ("bridge", "megatron"), "nemo": ("bridge",),
    "torchtitan": ("torchtitan", "torchtitan-0.2"), "nanotron": ("nanotron",),
    "deepspeed": ("deepspeed",), "accelerate": ("accelerate",),
}  # fmt: skip
"""Engines, and the formats that they run from."""


def _put_back(case: Case, plan: Plan, exported: Exported) -> Case:
    """The case with each field that `exported` lists as unsaid as the plan has it."""
    unsaid = {each.name.split(".")[1] for each in exported.cannot_say if "." in each.name}
    if any(each.name == "dispatch" for each in exported.cannot_say):
        unsaid.add("dispatcher")  # the engine's usual one, which the framework does not bring along
    unsaid |= {"stages"} if unsaid & {"pipeline_parallel", "virtual_stages"} else set()
    layout = {f.name: getattr(plan.layout, f.name) for f in fields(Layout) if f.name in unsaid}
    training = {
        f.name: getattr(plan.training, f.name) for f in fields(Training) if f.name in unsaid
    }
    return replace(
        case, engine=engine_named(plan.engine),
        layout=replace(case.layout, **layout), training=replace(case.training, **training),
    )  # fmt: skip


@pytest.mark.parametrize("engine", EXPORTED)
def test_memory_differs_by_what_is_listed_alone(engine: str) -> None:
    """Ten random plans (nightly 60) of each engine, experts, latent attention, context parallel,
    uneven stages and 8-bit formats among them: what is not listed as unsaid costs no byte."""
    rng, seen, same = random.Random(16), 0, 0
    while seen < cases(10, nightly=60):
        plan = random_plan(rng, ANYTHING)
        if plan.engine != engine:
            continue
        seen += 1
        for to in EXPORTED[engine]:
            try:
                exported = exporter_named(to)(plan, 8)
            except InvalidLayout:
                continue  # the framework would train something else: refused
            name, text = next(iter(exported.files.items()))
            reading = read_config(text, name)
            shape_unsaid = any(each.name.startswith("model") for each in exported.cannot_say)
            if reading.model_config and shape_unsaid:
                continue
            case = resolve(reading, missing_facts(plan, exported), Settings())
            here, there = _peaks(_put_back(case, plan, exported)), _peaks(case_of(plan))
            assert here == pytest.approx(there), (to, plan.model.name, plan.layout.label)
            same += 1
    assert same


@cache
def exchanging(engine: str, context_kind: str, dispatcher: str) -> Plan:
    """Experts on several ranks, and sequences too, by those kinds."""
    degrees = {"context_parallel": "8", "expert_parallel": "8", "pipeline_parallel": "1"}
    kinds = {"context_kind": context_kind, "dispatcher": dispatcher}
    pins = {**degrees, "tensor_parallel": "2", **kinds}
    asked = ask(
        Arguments(
            model="mixtral-8x7b", gpus=64, cluster="dgx-h100", seq_len="32768", global_batch=64,
            engine=engine, pins=pins,
        )
    )  # fmt: skip
    return plan_of(asked, solve(asked.question, 1))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("engine", "to", "context_kind", "dispatcher"),
    [
        ("megatron-bridge", "megatron", "ring", "deepep"),
        ("megatron-bridge", "bridge", "all_gather", "all_to_all"),
        ("megatron-bridge", "bridge", "hierarchical", "hybridep"),
        ("megatron", "megatron", "hierarchical", "hybridep"),
        ("torchtitan-0.2", "torchtitan-0.2", "ring", "deepep"),
        ("torchtitan-0.2", "torchtitan-0.2", "all_gather", "all_to_all"),
    ],
)
def test_kinds_of_exchanges_come_back_with_their_price(
    engine: str, to: str, context_kind: str, dispatcher: str
) -> None:
    """The file of a plan states both kinds, and its step is that of the plan."""
    plan = exchanging(engine, context_kind, dispatcher)
    assert (plan.layout.context_kind, plan.layout.dispatcher) == (context_kind, dispatcher)
    assert plan.prediction is not None
    exported = exporter_named(to)(plan, 8)
    unsaid = {each.name for each in exported.cannot_say}
    assert not unsaid & {"layout.context_kind", "layout.dispatcher", "dispatch"}
    for name, text in exported.files.items():
        case = resolve(read_config(text, name), missing_facts(plan, exported), Settings())
        case = replace(case, layout=replace(case.layout, stages=plan.layout.stages))
        check_case(case)
        case = _as_planned(case, exported)
        assert case.layout.context_kind == context_kind
        assert case.layout.dispatcher == dispatcher
        assert predicted(case).step_time_s == pytest.approx(plan.prediction.step_time_s, rel=1e-12)


@pytest.mark.parametrize(("context_kind", "listed"), [("ring", True), ("all_gather", False)])
def test_torchtitan_0_3_has_one_kind(context_kind: str, listed: bool) -> None:
    """Its ParallelismConfig (torchtitan 0.3.0 config/configs.py) lost 0.2's key: the file never
    states it, lists the ring of an older plan, and is priced as the default, all_gather."""
    plan = exchanging("torchtitan", "all_gather", "all_to_all")
    layout = replace(plan.layout, context_kind=context_kind)  # type: ignore[arg-type]
    plan = plan.model_copy(update={"layout": layout})
    plan = plan.model_copy(update={"prediction": predicted(case_of(plan))})
    exported = exporter_named("torchtitan")(plan, 8)
    name, text = next(iter(exported.files.items()))
    assert "rotate_method" not in text
    assert ("layout.context_kind" in {each.name for each in exported.cannot_say}) is listed
    case = resolve(read_config(text, name), missing_facts(plan, exported), Settings())
    case = replace(case, layout=replace(case.layout, stages=plan.layout.stages))
    assert plan.prediction is not None
    same = predicted(case).step_time_s == pytest.approx(plan.prediction.step_time_s, rel=1e-12)
    assert same is not listed


def test_a_plan_file_states_its_kinds() -> None:
    """They come back from YAML; a plan without these exchanges names neither."""
    plan = exchanging("megatron-bridge", "ring", "deepep")
    assert "context_kind: ring" in plan.to_yaml()
    assert Plan.from_yaml(plan.to_yaml()).layout == plan.layout
    alone = plan.model_copy(
        update={"layout": replace(plan.layout, context_kind="", dispatcher="")}
    ).to_yaml()
    assert "context_kind" not in alone.split("runners_up")[0].split("pins")[0]


@pytest.mark.parametrize(
    ("context_kind", "word"), [("ring", "alltoall"), ("all_gather", "allgather")]
)
def test_accelerate_says_how_chunks_go_round(context_kind: str, word: str) -> None:
    """`alltoall` is PyTorch's word for passing them on; another kind is listed."""
    layout = Layout(
        data_parallel=8, context_parallel=8, zero_stage=3, stages=even_stages(32, 1),
        context_kind=context_kind,
    )  # fmt: skip
    plan = layout_plan("llama-3.1-8b", layout, Training(seq_len=32768, global_batch_size=8))
    exported = exporter_named("accelerate")(plan, 8)
    assert "layout.context_kind" not in {each.name for each in exported.cannot_say}
    text = exported.files["accelerate.yaml"]
    assert f"parallelism_config_cp_comm_strategy: {word}" in text
    reading = read_config(text, "accelerate.yaml")
    assert reading.facts["context_kind"].value == context_kind
    other = plan.model_copy(update={"layout": replace(layout, context_kind="hierarchical")})
    unsaid = {each.name for each in exporter_named("accelerate")(other, 8).cannot_say}
    assert "layout.context_kind" in unsaid


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3.5-9b", "xlstm-7b"])
@pytest.mark.parametrize(
    ("framework", "words"),
    [("megatron", "softmax attention.*--to bridge"), ("nanotron", "softmax attention in every")],
)
def test_arguments_state_attention(name: str, framework: str, words: str) -> None:
    """A model whose first layer is a state-space or linear one is refused in words, not by a count
    of heads that its reader finds to be 0.
    """
    layers = model_named(name).num_layers
    plan = layout_plan(name, Layout(data_parallel=8, stages=even_stages(layers, 1)), ONE_OF_EACH)
    with pytest.raises(UnsupportedModel, match=words):
        exporter_named(framework)(plan, 8)


@pytest.mark.parametrize(
    ("engine", "loss", "unsaid"),
    [("megatron", "unfused", []), ("nemo", "native", []), ("megatron-bridge", "unfused", ["loss"])],
)
def test_a_script_has_the_loss_of_its_plan_or_says_so(
    engine: str, loss: str, unsaid: list[str]
) -> None:
    """NeMo's is Megatron-Core's own, fused, which a flag asks for; a script had it unfused."""
    layout = Layout(data_parallel=8, stages=even_stages(32, 1))
    plan = layout_plan("llama-3.1-8b", layout, ONE_OF_EACH).model_copy(update={"engine": engine})
    exported = exporter_named("megatron")(plan, 8)
    assert read_config(exported.files["train.sh"], "train.sh").loss == loss
    assert [each.name for each in exported.cannot_say if each.name == "loss"] == unsaid


def test_deepspeed_says_which_pin_would_do() -> None:
    """A pipeline beside tensor parallelism: its file would train replicas."""
    layout = Layout(
        data_parallel=2, tensor_parallel=2, pipeline_parallel=2, stages=even_stages(32, 2)
    )
    with pytest.raises(InvalidLayout, match="plan with --pp 1 or --tp 1"):
        exporter_named("deepspeed")(layout_plan("llama-3.1-8b", layout, ONE_OF_EACH), 8)


@pytest.mark.parametrize(("stage", "tensor"), [(3, 2), (3, 1), (2, 2)])
def test_autotp_beside_stage_3_asks_for_a_release(stage: int, tensor: int) -> None:
    """Said where it is written and where it is read."""
    layout = Layout(
        data_parallel=8 // tensor, tensor_parallel=tensor, zero_stage=stage,
        stages=even_stages(32, 1),
    )  # fmt: skip
    exported = exporter_named("deepspeed")(layout_plan("llama-3.1-8b", layout, ONE_OF_EACH), 8)
    unsaid = [each.why for each in exported.cannot_say if each.name == "layout.zero_stage"]
    reading = read_config(exported.files["ds_config.json"], "ds_config.json")
    asks = ["0.19.4" in " ".join(said) for said in (unsaid, reading.notes)]
    assert asks == [(stage, tensor) == (3, 2)] * 2


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        pytest.param("glm-4.5-air", 1, id="shared experts"),
        pytest.param("minimax-m2", 3, id="no shared experts"),
    ],
)
def test_prediction_modules_come_back_from_megatron(name: str, modules: int) -> None:
    """Grouped-query attention, experts and modules of multi-token prediction: the script's
    `--mtp-num-layers` is read, and every rank needs what the plan's layout does.
    """
    model = model_named(name)
    layout = Layout(
        data_parallel=16, tensor_parallel=4, pipeline_parallel=2, expert_parallel=16,
        zero_stage=1, stages=even_stages(model.num_layers, 2),
    )  # fmt: skip
    plan = layout_plan(name, layout, replace(ONE_OF_EACH, global_batch_size=128))
    exported = exporter_named("megatron")(plan, 8)
    assert not [each for each in exported.cannot_say if "mtp" in each.name]
    (script, text), *_ = exported.files.items()
    case = resolve(read_config(text, script), missing_facts(plan, exported), Settings())
    assert case.model.mtp_layers == model.mtp_layers == modules
    kinds = [replace(kind, attention=replace(kind.attention, qk_norm="head"))
             for kind in model.kinds]  # fmt: skip
    by_head = replace(model, kinds=tuple(kinds)) if name == "minimax-m2" else model
    assert _peaks(case) == pytest.approx(_peaks(replace(case, model=by_head)), rel=1e-4)


def test_dense_layers_with_prediction_modules_are_read() -> None:
    """A module is one layer like the last, a 2 h x h projection and three norms:
    4 h^2 of attention, 3 h f, 2 h^2, and 2 + 3 norms of h.
    """
    text = (
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
        "--ffn-hidden-size 128 --swiglu --normalization RMSNorm --disable-bias-linear "
        "--position-embedding-type rope --vocab-size 256 --seq-length 128 --micro-batch-size 1 "
        "--global-batch-size 8 --tensor-model-parallel-size 1 --mtp-num-layers %d"
    )
    models = [model_from_config(read_config(text % each, "a.sh").model_config, "x")
              for each in (0, 2)]  # fmt: skip
    without, with_two = (model_parameters(each).total for each in models)
    assert with_two - without == 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64**2 + 5 * 64)
    biased = read_config((text % 1).replace("--disable-bias-linear ", ""), "a.sh")
    assert "--mtp-num-layers" in str(biased.unread)


@pytest.mark.parametrize("chunks", [1, 2])
def test_overrides_leave_no_degree_to_the_recipe(chunks: int) -> None:
    """Many recipes set chunks, recompute or experts' degree, which a plan without them unsets."""
    layout = Layout(
        data_parallel=4, pipeline_parallel=2, virtual_stages=chunks, zero_stage=1,
        stages=even_stages(32, 2 * chunks), schedule="1f1b" if chunks == 1 else "interleaved_1f1b",
    )  # fmt: skip
    exported = exporter_named("bridge")(layout_plan("llama-3.1-8b", layout, ONE_OF_EACH), 8)
    for name, text in exported.files.items():
        reading = read_config(text, name, "bridge")
        assert not reading.left_to_recipe
        assert reading.facts.get("virtual_stages", Fact(1, 1)).value == chunks
