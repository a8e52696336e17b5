"""Schedules that compute the gradients of inputs and of weights apart, and pipelines of models with
tied embeddings, by engine.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_plans import plan_of

from meshplan.costmodels.layout import MODES, InvalidLayout, Layout, Schedule, Stage, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools
from meshplan.planner.space.engine_rules import MIXED, check_engine, unpriced
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins

MODEL = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
TRAINING = Training(seq_len=4096, global_batch_size=64)


def _layout(schedule: Schedule, zero: int, recompute: str = "none") -> Layout:
    return Layout(
        data_parallel=4, pipeline_parallel=2, virtual_stages=2, zero_stage=zero,
        schedule=schedule, stages=even_stages(32, 4, recompute),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("schedule", ["zb_v", "dualpipe_v"])
@pytest.mark.parametrize(
    ("zero", "recompute", "why"),
    [
        (3, "none", r"zero_stage 3: torchtitan .* wrong gradients"),
        (2, "selective", r"recompute selective: torchtitan .* does not replay"),
        (2, "full", r"recompute full: torchtitan .* does not replay"),
    ],
)
def test_torchtitan_refuses(schedule: Schedule, zero: int, recompute: str, why: str) -> None:
    """What torch 2.13 gets wrong is illegal, in one line with the value and a fix."""
    with pytest.raises(InvalidLayout, match=why) as refused:
        check_engine(_layout(schedule, zero, recompute), MODEL, TRAINING, load_engine("torchtitan"))
    assert "use " in str(refused.value)


@pytest.mark.parametrize("zero", [2, 3])
def test_a_whole_backward_is_legal(zero: int) -> None:
    """Nothing is raised: interleaving shards and recomputes as it likes; zero bubble has ZeRO-2
    without replays.
    """
    engine = load_engine("torchtitan")
    check_engine(_layout("interleaved_1f1b", zero, "full"), MODEL, TRAINING, engine)
    check_engine(_layout("zb_v", 2), MODEL, TRAINING, engine)


@pytest.mark.parametrize("zero", [0, 3])
def test_one_replica_shards_nothing(zero: int) -> None:
    """With data_parallel x context_parallel 1 no gradient is sharded, so none is wrong: an
    export to torchtitan shards over 1 rank, which reads as ZeRO-0. Nothing is raised.
    """
    alone = replace(_layout("zb_v", zero), data_parallel=1)
    check_engine(alone, MODEL, TRAINING, load_engine("torchtitan"))


@pytest.mark.parametrize("name", engine_names())
def test_the_search_offers_what_check_accepts(name: str) -> None:
    """Every row's schedules and recompute modes pass the engine's own rules."""
    engine = load_engine(name)
    space = enumerate_space(MODEL, TRAINING, 16, engine, parse_pins({}), 8)
    layouts = space.layouts
    seen = set()
    for row in range(len(layouts.zero_stage)):
        pp, zero = int(layouts.pipeline_parallel[row]), int(layouts.zero_stage[row])
        for variant in space.variants(row):
            seen |= {(variant.schedule, zero, pp, mode) for mode in variant.modes}
    assert seen
    for schedule, zero, pp, mode in seen:
        if schedule not in ZERO_BUBBLE:
            continue
        layout = _layout(schedule, zero, MODES[mode])
        chunks = {"zb_h1": 1}.get(schedule, 2)
        stages = even_stages(32, pp * chunks, MODES[mode])  # type: ignore[arg-type]
        layout = replace(layout, pipeline_parallel=pp, virtual_stages=chunks, stages=stages)
        check_engine(layout, MODEL, replace(TRAINING, global_batch_size=4096), engine)


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "ZBVZeroBubble"
fsdp_reshard_after_forward = "{policy}"
[activation_checkpoint]
mode = "{mode}"
"""


@pytest.mark.parametrize(
    ("policy", "mode", "said"),
    [
        ("always", "none", "wrong gradients"),
        ("never", "full", "does not replay"),
        ("never", "none", None),
    ],
)
def test_check_says_illegal(policy: str, mode: str, said: str | None, tmp_path: Path) -> None:
    """A torchtitan file with such a combination is illegal at its line; a right one is priced."""
    file = tmp_path / "train.toml"
    file.write_text(TITAN.format(policy=policy, mode=mode))
    (found,) = check_paths([file], tools(), Settings(cluster="dgx-h100", gpus=16))
    assert (found.verdict == "illegal") == (said is not None), found.text
    assert said is None or re.search(said, found.text)


@pytest.mark.parametrize(
    ("engine", "ranks", "count", "legal"),
    [
        ("nanotron", 4, 3, True),  # nb_microbatches >= PP_SIZE - 1, its engine.py asserts
        ("nanotron", 4, 2, False),
        ("internevo", 4, 4, True),
        ("internevo", 4, 3, False),
        ("megatron", 4, 1, True),
    ],
)
def test_how_few_micro_batches_fill_a_pipeline(
    engine: str, ranks: int, count: int, *, legal: bool
) -> None:
    """Both what `check` refuses and what a plan chooses from."""
    training = Training(seq_len=4096, global_batch_size=count)
    rules = load_engine(engine)
    layout = Layout(pipeline_parallel=ranks, stages=even_stages(32, ranks, "none"))
    pins = parse_pins({"pipeline_parallel": str(ranks), "micro_batch_size": "1"})
    space = enumerate_space(MODEL, training, ranks, rules, pins, 8)
    assert (len(space.layouts.zero_stage) > 0) == legal
    if legal:
        check_engine(layout, MODEL, training, rules)
    else:
        with pytest.raises(InvalidLayout, match="fewer than the"):
            check_engine(layout, MODEL, training, rules)


def _piped(stages: tuple[Stage, ...] = (), **changed: Any) -> Layout:
    """Two pipeline ranks of 16 layers of Megatron's, and eight replicas."""
    usual = {"data_parallel": 8, "pipeline_parallel": 2, "zero_stage": 1}
    return Layout(**usual | {"stages": stages or even_stages(32, 2)} | changed)


@pytest.mark.parametrize(
    ("engine", "layout", "named"),
    [
        pytest.param("megatron", _piped(), [], id="all of it"),
        pytest.param("megatron", _piped(zero_stage=3), ["zero_stage 3 with a pipeline"], id="ZeRO"),
        pytest.param(
            "megatron", Layout(data_parallel=8, zero_stage=3, stages=even_stages(32, 1)), [],
            id="ZeRO-3 without a pipeline",
        ),
        pytest.param(
            "megatron", Layout(data_parallel=8, zero_stage=2, stages=even_stages(32, 1)),
            ["zero_stage 2"], id="a stage that it lacks",
        ),
        pytest.param("megatron", _piped(schedule="zb_h1"), ["schedule zb_h1"], id="schedule"),
        pytest.param(
            "megatron", Layout(schedule="zb_h1", stages=even_stages(32, 1)), [],
            id="one rank has no schedule",
        ),
        pytest.param(
            "megatron", _piped(tensor_parallel=2), ["sequence_parallel False"], id="always on"
        ),
        pytest.param("megatron", _piped(tensor_parallel=2, sequence_parallel=True), [], id="on"),
        pytest.param(
            "deepspeed", _piped(tensor_parallel=2, sequence_parallel=True),
            ["sequence_parallel True"], id="never on",
        ),
        pytest.param("deepspeed", _piped(expert_parallel=2), ["expert_parallel"], id="experts"),
        pytest.param("megatron", _piped(expert_parallel=2), [], id="experts that it places"),
        pytest.param("megatron", _piped(shard_group=4), ["shard_group"], id="hybrid sharding"),
        pytest.param(
            "megatron",
            _piped(even_stages(32, 2, "selective"), selective_modules=("attention",)),
            ["selective recompute of attention"], id="a set that it does not replay",
        ),
        pytest.param("megatron", _piped(even_stages(32, 2, "selective")), [], id="its own"),
        pytest.param(
            "megatron", _piped((Stage(16, full_layers=3), Stage(16, full_layers=5))),
            [MIXED["first"]], id="two numbers of first layers",
        ),
        pytest.param(
            "megatron", _piped((Stage(16, full_layers=3), Stage(16, full_layers=3))), [],
            id="one number",
        ),
    ],
)  # fmt: skip
def test_what_a_profile_does_not_cover_is_named(
    engine: str, layout: Layout, named: list[str]
) -> None:
    """What a config states all the same is priced, and its price said to be a guess."""
    said = [f"the profile of {engine} does not cover {each}" for each in named]
    assert unpriced(layout, load_engine(engine)) == tuple(said)


TIED = model_from_config(load_model_config("qwen3-1.7b"), "qwen3-1.7b")
SPLIT = Layout(
    data_parallel=2, pipeline_parallel=2, zero_stage=2, stages=even_stages(28, 2, "none")
)


@pytest.mark.parametrize(
    ("engine", "model", "legal"),
    [
        ("torchtitan", TIED, False),  # "Weight tying is not supported with Pipeline Parallel"
        ("torchtitan-0.2", TIED, False),
        ("automodel", TIED, False),  # validate_hf_model_for_pipeline_support
        ("torchtitan", replace(TIED, tied=False), True),
        ("megatron", TIED, True),  # keeps a copy on the last stage
        ("nanotron", TIED, True),
    ],
)
def test_tied_embeddings_in_a_pipeline(engine: str, model: Model, *, legal: bool) -> None:
    """Both what `check` refuses and what a plan chooses from."""
    rules = load_engine(engine)
    space = enumerate_space(model, TRAINING, 4, rules, parse_pins({}), 8)
    assert bool((space.layouts.pipeline_parallel > 1).any()) == legal
    if legal:
        check_engine(SPLIT, model, TRAINING, rules)
    else:
        with pytest.raises(InvalidLayout, match=r"^pipeline_parallel 2: .* refuses .*; use 1"):
            check_engine(SPLIT, model, TRAINING, rules)


def test_how_the_loss_is_made_changes_nothing_that_is_legal() -> None:
    """Accelerate and DeepSpeed split and shard alike with the logits at once and in pieces; what a
    pipeline could be is no matter where there is none.
    """
    of_pipelines = {"tied_with_pipeline", "zero_with_split_backward", "pipeline_in_code",
                    "recompute_with_split_backward"}  # fmt: skip
    for engine in ("accelerate", "deepspeed"):
        whole, pieces = (load_engine(f"{engine}{kind}") for kind in ("", "-chunked-loss"))
        apart = of_pipelines if not whole.legality.zero_with_pipeline else set()
        stated = [each.legality.model_dump(exclude=apart) for each in (whole, pieces)]
        assert stated[0] == stated[1]


def test_torchtitan_is_handed_no_tied_pipeline() -> None:
    """A plan of an engine that trains it, as torchtitan's file would refuse it."""
    plan = plan_of("qwen3-1.7b", replace(SPLIT, zero_stage=1), TRAINING)
    with pytest.raises(InvalidLayout, match="refuses in a pipeline"):
        exporter_named("torchtitan")(plan, 4)
